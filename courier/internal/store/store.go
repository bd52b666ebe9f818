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
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/internal/shares"
)

// headerOf is the header of a message that holds the Call or Record. Its data is the body.
const headerOf = "Ebb-Call"

const (
	// Inline is the largest body that is stored in the message of its call.
	Inline = 256 << 10
	// ackWait is how long a call is left alone whose attempt does not say that it goes on: as long
	// as calls wait that were under way when the courier was killed.
	ackWait = 15 * time.Second
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
	// Timeout bounds a question to JetStream, 5 s by default.
	Timeout time.Duration
	Log     *slog.Logger
}

// Store is where calls are kept.
type Store struct {
	// Secret makes the IDs of calls with an idempotency key. It is kept with them.
	Secret []byte

	// Stored is called with the service of each call that JetStream has, before it is on the disk.
	Stored func(call.Service)

	// Called is called with the namespace of each callback that is stored.
	Called func(namespace string)

	idle    time.Duration
	timeout time.Duration
	starts  []time.Time // of couriers, the newest last
	server  *server.Server
	conn    *nats.Conn
	js      jetstream.JetStream
	bodies  jetstream.ObjectStore
	calls   jetstream.Stream
	found   jetstream.Stream // results
	disk    *disk            // nil if nothing is synced

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
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	s := &Store{idle: cmp.Or(o.Idle, idleQueue), timeout: o.Timeout}
	var err error
	if o.URL == "" {
		s.server, s.conn, err = inside(o)
	} else {
		s.conn, err = outside(o)
	}
	if err != nil {
		return nil, err
	}
	if s.js, err = jetstream.New(s.conn, jetstream.WithDefaultTimeout(s.timeout)); err == nil {
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

// Health asks whether JetStream serves. After its disk was full it does not, until the process is
// started again.
func (s *Store) Health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
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
