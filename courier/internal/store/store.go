// Package store keeps calls, their bodies, results and dead letters in NATS JetStream: in a server
// inside this process, or in one that exists.
//
// Owns: the streams EBB_*, their consumers, and the directory of the server inside. Reads: them.
// Writes: them. Never: says that a call is kept before JetStream has acknowledged it and, for the
// server inside, before it is on the disk.
package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/internal/shares"
)

// Names of the streams. Each subject ends in <namespace>.<service>.<id>.
const (
	calls     = "EBB_CALLS"
	results   = "EBB_RESULTS"
	dead      = "EBB_DEAD"
	callbacks = "EBB_CALLBACKS"
	state     = "EBB_STATE"
	bodies    = "EBB_BODIES"
)

// subjects begin the subjects of each stream.
var subjects = map[string]string{calls: "ebb.calls", results: "ebb.results", dead: "ebb.dead", callbacks: "ebb.callbacks", state: "ebb.state"}

// parts are those of Options.Bytes, in percent.
var parts = map[string]int64{calls: 35, bodies: 38, results: 20, dead: 5, callbacks: 1, state: 1}

// headerOf is the header of a message that holds the Call or Record. Its data is the body.
const headerOf = "Ebb-Call"

const (
	// Inline is the largest body that is stored in the message of its call.
	Inline = 256 << 10
	// ackWait is how long a call is left alone whose attempt does not say that it goes on: as long
	// as calls wait that were under way when the courier was killed.
	ackWait = 15 * time.Second
	// timeout bounds a question to JetStream.
	timeout = 5 * time.Second
	// syncs is how often the server inside writes to the disk what is not waited for.
	syncs = 10 * time.Second
)

// Options say where calls are kept, how many and for how long.
type Options struct {
	Dir string // of the server inside
	URL string // of the server that exists; "" starts the one inside
	// Credentials is a file for the server that exists, "" for none.
	Credentials string
	Bytes       int64 // of all streams
	Queue       time.Duration
	Results     time.Duration
	Dead        time.Duration
	Replicas    int // of each stream, for a cluster that exists
	// Synced waits until a call is on the disk of the server inside.
	Synced bool
	// Idle is how long a queue is empty before it is removed.
	Idle time.Duration
	Log  *slog.Logger
}

// Store is where calls are kept.
type Store struct {
	// Secret makes the IDs of calls with an idempotency key. It is kept with them.
	Secret []byte

	// Stored is called with the service of each call that JetStream has, before it is on the disk.
	Stored func(call.Service)

	// Called is called with the namespace of each callback that is stored.
	Called func(namespace string)

	idle   time.Duration
	starts []time.Time // of couriers, the newest last
	server *server.Server
	conn   *nats.Conn
	js     jetstream.JetStream
	bodies jetstream.ObjectStore
	calls  jetstream.Stream
	found  jetstream.Stream // results
	disk   *disk            // nil if nothing is synced

	held          *held // of calls
	results, dead *ledger
	large         *shares.Pool // bytes of large bodies
	callbacks     *shares.Pool // bytes of callbacks
	calling       sync.Map     // namespaces that have a queue of callbacks
}

// ErrNone is returned for what is not stored.
var ErrNone = errors.New("it is not stored")

// ErrOther is returned for a call whose ID another one has.
var ErrOther = errors.New("another call has its idempotency key")

// Open starts or connects to the server and makes the streams what they are to be.
func Open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{idle: cmp.Or(o.Idle, idleQueue)}
	var err error
	if o.URL == "" {
		s.server, s.conn, err = inside(o)
	} else {
		s.conn, err = outside(o)
	}
	if err != nil {
		return nil, err
	}
	if s.js, err = jetstream.New(s.conn, jetstream.WithDefaultTimeout(timeout)); err == nil {
		err = s.streams(ctx, o)
	}
	if err == nil {
		s.Secret, err = s.secret(ctx)
	}
	if err == nil {
		err = s.started(ctx, time.Now(), o.Queue)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	if err := s.count(ctx); err != nil {
		s.Close()
		return nil, err
	}
	if s.server != nil && o.Synced {
		at := filepath.Join(o.Dir, "jetstream", "$G", "streams")
		s.disk = newDisk(filepath.Join(at, calls, "msgs"), filepath.Join(at, "OBJ_"+bodies, "msgs"))
	}
	return s, nil
}

// inside starts a server that only this process can reach.
func inside(o Options) (*server.Server, *nats.Conn, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make the directory of JetStream: %w", err)
	}
	// The streams have the limits. One of the server would refuse to make a store smaller, because
	// it counts what the other streams had before.
	one, err := server.NewServer(&server.Options{ServerName: "courier", DontListen: true, JetStream: true, StoreDir: o.Dir, SyncInterval: syncs,
		JetStreamMaxStore: math.MaxInt64, JetStreamMaxMemory: 16 << 20, NoSigs: true, NoLog: true, MaxPayload: 1 << 20})
	if err != nil {
		return nil, nil, fmt.Errorf("make the server of JetStream: %w", err)
	}
	one.SetLoggerV2(serverLog{o.Log}, false, false, false)
	one.Start()
	if !one.ReadyForConnections(time.Minute) {
		one.Shutdown()
		return nil, nil, fmt.Errorf("the server of JetStream in %s did not start", o.Dir)
	}
	conn, err := nats.Connect("", nats.InProcessServer(one), nats.Name("courier"), nats.MaxReconnects(-1))
	if err != nil {
		one.Shutdown()
		return nil, nil, fmt.Errorf("connect to the server of JetStream inside: %w", err)
	}
	return one, conn, nil
}

func outside(o Options) (*nats.Conn, error) {
	options := []nats.Option{nats.Name("ebb courier"), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(false), nats.Timeout(timeout)}
	if o.Credentials != "" {
		options = append(options, nats.UserCredentials(o.Credentials))
	}
	conn, err := nats.Connect(o.URL, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err) // not with the URL: it may hold a password
	}
	return conn, nil
}

func (s *Store) streams(ctx context.Context, o Options) (err error) {
	limit := func(name string) int64 { return o.Bytes / 100 * parts[name] }
	// What is counted stays below what JetStream refuses.
	pool := func(name string) *shares.Pool { return shares.New(limit(name) / 20 * 19) }
	s.held = &held{pool: pool(calls), touched: map[string]time.Time{}}
	s.large, s.callbacks = pool(bodies), pool(callbacks)
	s.results = &ledger{keep: o.Results, pool: pool(results), drop: s.forgetBody, of: map[string][]entry{}}
	s.dead = &ledger{keep: o.Dead, pool: pool(dead), drop: s.forgetBody, of: map[string][]entry{}}
	for name, subject := range subjects {
		config := jetstream.StreamConfig{Name: name, Subjects: []string{subject + ".>"}, Storage: jetstream.FileStorage, MaxBytes: limit(name),
			Discard: jetstream.DiscardNew, AllowDirect: true, Replicas: max(o.Replicas, 1), MaxMsgSize: 1 << 20}
		switch name {
		case calls, callbacks:
			config.Retention = jetstream.WorkQueuePolicy
		case results:
			config.MaxAge, config.Discard, config.MaxMsgsPerSubject = o.Results, jetstream.DiscardOld, 1
		case dead:
			config.MaxAge, config.Discard = o.Dead, jetstream.DiscardOld
		case state:
			config.MaxMsgsPerSubject = 1
		}
		stream, err := s.js.CreateOrUpdateStream(ctx, config)
		if err != nil {
			return fmt.Errorf("make the stream %s: %w", name, err)
		}
		switch name {
		case calls:
			s.calls = stream
		case results:
			s.found, s.results.stream = stream, stream
		case dead:
			s.dead.stream = stream
		}
	}
	// A body is no longer of use when neither its call nor its result can be there.
	s.bodies, err = s.js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: bodies, TTL: o.Queue + o.Results, MaxBytes: limit(bodies),
		Storage: jetstream.FileStorage, Replicas: max(o.Replicas, 1)})
	if err != nil {
		return fmt.Errorf("make the store of bodies: %w", err)
	}
	return nil
}

// secret returns the key of IDs, and makes it the first time. Of several couriers one wins.
func (s *Store) secret(ctx context.Context) ([]byte, error) {
	const subject = "ebb.state.secret"
	fresh := make([]byte, 32)
	rand.Read(fresh) // never fails
	_, err := s.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Data: fresh}, jetstream.WithExpectLastSequencePerSubject(0))
	if err == nil {
		return fresh, nil
	}
	if !exists(err) {
		return nil, fmt.Errorf("store the key of IDs: %w", err)
	}
	kept, err := s.last(ctx, state, subject)
	if err != nil {
		return nil, fmt.Errorf("read the key of IDs: %w", err)
	}
	return kept.Data, nil
}

// exists reports whether a message was refused because its subject has one.
func exists(err error) bool {
	api := new(jetstream.APIError)
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

func (s *Store) last(ctx context.Context, stream, subject string) (*jetstream.RawStreamMsg, error) {
	one, err := s.js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	return lastOf(ctx, one, subject)
}

func lastOf(ctx context.Context, stream jetstream.Stream, subject string) (*jetstream.RawStreamMsg, error) {
	m, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", subject, err)
	}
	return m, nil
}

func subject(stream string, of call.Service, id string) string {
	return subjects[stream] + "." + of.Namespace + "." + of.Name + "." + id
}

// Add keeps a call. fresh is false if the same one, by its ID, is kept already; the error is
// ErrOther if that one asks for something else.
func (s *Store) Add(ctx context.Context, c *call.Call, body []byte) (fresh bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var options []jetstream.PublishOpt
	if c.Keyed {
		// While the call runs, its message is there; before that is removed, there is a result.
		if r, _, err := s.Result(ctx, c.Service, c.ID); err == nil {
			return false, same(r.Print, c)
		} else if !errors.Is(err, ErrNone) {
			return false, err
		}
		options = append(options, jetstream.WithExpectLastSequencePerSubject(0))
	}
	m := &nats.Msg{Subject: subject(calls, c.Service, c.ID), Header: nats.Header{headerOf: {call.Encode(c)}}, Data: body}
	takes := cost(m.Header, len(m.Data))
	if !s.held.take(c.Namespace, takes) {
		return false, ErrShare
	}
	defer func() {
		if !fresh {
			s.held.give(c.Namespace, takes)
		}
	}()
	if _, err := s.js.PublishMsg(ctx, m, options...); err != nil {
		if !c.Keyed || !exists(err) {
			return false, fmt.Errorf("store call %s of %s: %w", c.ID, c.Service, err)
		}
		if err := s.repeated(ctx, c); err != nil {
			return false, err
		}
	} else {
		fresh = true
		if s.Stored != nil {
			s.Stored(c.Service)
		}
	}
	if s.disk != nil { // for a repeated one, too: the first may not be on the disk yet
		if err := s.disk.sync(ctx); err != nil {
			return fresh, fmt.Errorf("store call %s of %s: %w", c.ID, c.Service, err)
		}
	}
	return fresh, nil
}

// repeated compares a call with the one that has its ID, which may end meanwhile.
func (s *Store) repeated(ctx context.Context, c *call.Call) error {
	before, err := s.Call(ctx, c.Service, c.ID)
	if err == nil {
		return same(before.Print, c)
	}
	if errors.Is(err, ErrNone) {
		var r *call.Record
		if r, _, err = s.Result(ctx, c.Service, c.ID); err == nil {
			return same(r.Print, c)
		}
	}
	return fmt.Errorf("read call %s of %s, which is repeated: %w", c.ID, c.Service, err)
}

func same(print string, c *call.Call) error {
	if print != c.Print {
		return ErrOther
	}
	return nil
}

// Call returns a call that is not completed.
func (s *Store) Call(ctx context.Context, of call.Service, id string) (*call.Call, error) {
	m, err := lastOf(ctx, s.calls, subject(calls, of, id))
	if err != nil {
		return nil, err
	}
	return call.Decode(m.Header.Get(headerOf))
}

// Finish keeps a record with the body of the result.
func (s *Store) Finish(ctx context.Context, r *call.Record, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	m := &nats.Msg{Subject: subject(results, r.Service, r.ID), Header: nats.Header{headerOf: {call.Encode(r)}}, Data: body}
	e := entry{cost: cost(m.Header, len(m.Data)), body: r.Body, size: r.Size}
	if err := s.add(ctx, s.results, r.Namespace, m, e); err != nil {
		return fmt.Errorf("store the result of call %s of %s: %w", r.ID, r.Service, err)
	}
	return nil
}

// Result returns the record of a call that ended, and its body unless that is a large one.
func (s *Store) Result(ctx context.Context, of call.Service, id string) (*call.Record, []byte, error) {
	m, err := lastOf(ctx, s.found, subject(results, of, id))
	if err != nil {
		return nil, nil, err
	}
	r, err := call.DecodeRecord(m.Header.Get(headerOf))
	return r, m.Data, err
}

// Bury keeps the message of a call that nobody will try again, with the reason.
func (s *Store) Bury(ctx context.Context, m jetstream.Msg, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, rest, _ := strings.Cut(m.Subject(), ".")
	_, rest, _ = strings.Cut(rest, ".")
	letter := &nats.Msg{Subject: subjects[dead] + "." + rest, Header: nats.Header{headerOf: {m.Headers().Get(headerOf)}, "Ebb-Reason": {reason}}, Data: m.Data()}
	e := entry{cost: cost(letter.Header, len(letter.Data))}
	if c, err := CallOf(m); err == nil {
		e.body, e.size = c.Body, c.Size
	}
	if err := s.add(ctx, s.dead, namespaceOf(m.Subject()), letter, e); err != nil {
		return fmt.Errorf("store the dead letter of %s: %w", m.Subject(), err)
	}
	return nil
}

// Health asks whether JetStream serves. After its disk was full it does not, until the process is
// started again.
func (s *Store) Health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := s.calls.Info(ctx); err != nil {
		return fmt.Errorf("ask JetStream: %w", err)
	}
	return nil
}

// Close ends the connection and the server inside.
func (s *Store) Close() {
	if s.conn != nil {
		s.conn.Close()
	}
	if s.server != nil {
		s.server.Shutdown()
		s.server.WaitForShutdown()
	}
}

// serverLog shows what the server inside says that matters.
type serverLog struct{ log *slog.Logger }

func (l serverLog) say(level slog.Level, format string, args []any) {
	if l.log != nil {
		l.log.Log(context.Background(), level, "JetStream: "+fmt.Sprintf(format, args...))
	}
}
func (l serverLog) Noticef(format string, v ...any) { l.say(slog.LevelDebug, format, v) }
func (l serverLog) Warnf(format string, v ...any)   { l.say(slog.LevelWarn, format, v) }
func (l serverLog) Fatalf(format string, v ...any)  { l.say(slog.LevelError, format, v) }
func (l serverLog) Errorf(format string, v ...any)  { l.say(slog.LevelError, format, v) }
func (l serverLog) Debugf(string, ...any)           {}
func (l serverLog) Tracef(string, ...any)           {}
