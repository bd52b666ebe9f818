package coap

import (
	"context"
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/plgd-dev/go-coap/v3/dtls/server"
	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/message/pool"
	coapnet "github.com/plgd-dev/go-coap/v3/net"
	"github.com/plgd-dev/go-coap/v3/net/blockwise"
	"github.com/plgd-dev/go-coap/v3/net/monitor/inactivity"
	"github.com/plgd-dev/go-coap/v3/net/responsewriter"
	"github.com/plgd-dev/go-coap/v3/options/config"
	"github.com/plgd-dev/go-coap/v3/udp/client"
	"golang.org/x/sync/semaphore"

	"ebb.dev/ebb/coap/internal/peers"
	"ebb.dev/ebb/coap/internal/translate"
)

const (
	// transferTime is how long a body may take that comes or goes in blocks.
	transferTime = 60 * time.Second
	// idleTime ends the session of a peer that sends nothing and waits for nothing.
	idleTime = 5 * time.Minute
	// messagesAtOnce is how many messages of one peer are worked on at a time.
	messagesAtOnce = 16
)

type (
	writer  = responsewriter.ResponseWriter[*client.Conn]
	handler = config.HandlerFunc[*client.Conn]
)

// session is what the entry knows of one peer. go-coap codes its messages, retransmits, recognizes
// duplicates and puts blocks together; the session bounds what that keeps.
type session struct {
	entry    *Entry
	peer     *peers.Peer
	conn     *client.Conn
	slots    chan struct{}
	requests *semaphore.Weighted

	mutex     sync.Mutex
	uploadEnd time.Time // when the memory of a request that comes in blocks is given back
	fetched   map[string]kept
	observed  map[string]*observation // by token
}

// kept is memory of an answer that go-coap keeps until its last block is fetched.
type kept struct {
	bytes int
	until time.Time
}

// serve is the session of a peer, over UDP or DTLS. It returns when that ends.
func (e *Entry) serve(ctx context.Context, p *peers.Peer, over net.Conn) {
	s := &session{entry: e, peer: p, slots: make(chan struct{}, messagesAtOnce), requests: semaphore.NewWeighted(int64(e.options.PerPeer)),
		fetched: map[string]kept{}, observed: map[string]*observation{}}
	settings := client.DefaultConfig
	settings.Errors = func(error) {} // of what peers send; metrics count the answers
	settings.Handler = s.handle
	settings.ProcessReceivedMessage = s.process
	settings.MessagePool = e.messages
	settings.BlockwiseEnable, settings.BlockwiseSZX, settings.BlockwiseTransferTimeout = true, blockwise.SZX1024, transferTime
	settings.MaxPendingMessages = 4 * messagesAtOnce
	settings.MaxMessageSize, settings.MTU = datagramSize, datagramSize
	s.conn = client.NewConnWithOpts(
		&notes{server.NewSession(ctx, coapnet.NewConn(over), datagramSize, datagramSize, true), s}, &settings,
		client.WithBlockWise(func(c *client.Conn) *blockwise.BlockWise[*client.Conn] {
			b := blockwise.New(c, transferTime, settings.Errors, func(t message.Token) (*pool.Message, bool) { return c.GetObservationRequest(t) })
			b.SetMaxReceiveBodySize(int64(e.options.Body))
			b.SetReceivingMessagesCacheMaxEntries(1)
			return b
		}),
		client.WithInactivityMonitor(inactivity.New(idleTime, s.idle)),
		client.WithRequestMonitor(s.monitor),
		client.WithResponseMessageCache(newAnswers()),
	)
	e.mutex.Lock()
	e.sessions[s] = struct{}{}
	e.mutex.Unlock()
	defer func() {
		e.mutex.Lock()
		delete(e.sessions, s)
		e.mutex.Unlock()
		s.end()
	}()
	defer s.recover()
	_ = s.conn.Run() // it ends with the peer, and says so
}

// recover keeps a message that go-coap cannot bear from ending the process, and ends its session.
func (s *session) recover() {
	if v := recover(); v != nil {
		s.entry.options.Log.Error("a CoAP message failed", "panic", v, "stack", string(debug.Stack()))
		_ = s.conn.Close()
	}
}

// idle ends the session, unless it observes: then events come when they come.
func (s *session) idle(*client.Conn) {
	s.mutex.Lock()
	observes := len(s.observed) > 0
	s.mutex.Unlock()
	if !observes {
		_ = s.conn.Close()
	}
}

// end gives back what the session held.
func (s *session) end() {
	_ = s.conn.Close()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.endUpload()
	for token := range s.fetched {
		s.forget(token)
	}
}

// expire is called about once in a second.
func (s *session) expire(now time.Time) {
	s.conn.CheckExpirations(now)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if now.After(s.uploadEnd) {
		s.endUpload()
	}
	for token, k := range s.fetched {
		if now.After(k.until) {
			s.forget(token)
		}
	}
}

// notes is the session below go-coap. It notes the message IDs of notifications, which go-coap
// chooses.
type notes struct {
	*server.Session
	session *session
}

func (n *notes) WriteMessage(m *pool.Message) error {
	if m.HasOption(message.Observe) {
		n.session.mutex.Lock()
		if o := n.session.observed[string(m.Token())]; o != nil {
			o.sent = m.MessageID()
		}
		n.session.mutex.Unlock()
	}
	return n.Session.WriteMessage(m)
}

// monitor sees each message before it is queued. A peer resets a notification that it does not want
// (RFC 7641 section 3.6).
func (s *session) monitor(_ *client.Conn, m *pool.Message) (drop bool, err error) {
	if m.Type() == message.Reset {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		for _, o := range s.observed {
			if o.sent == m.MessageID() {
				o.cancel()
			}
		}
	}
	return false, nil
}

// process works on a message in a goroutine of its own, so that a request that waits does not hold
// up the peer's others.
func (s *session) process(m *pool.Message, c *client.Conn, next handler) {
	select {
	case s.slots <- struct{}{}:
	case <-c.Context().Done():
		c.ReleaseMessage(m)
		return
	}
	s.peer.Hold()
	go func() {
		defer func() { <-s.slots }()
		defer s.peer.Release()
		defer s.recover()
		c.ProcessReceivedMessageWithHandler(m, s.account(next))
	}()
}

// account reserves memory for a request that comes in blocks, before its first block is kept, and
// gives memory back when the last block has come or gone.
func (s *session) account(next handler) handler {
	return func(w *writer, m *pool.Message) {
		number, more, has := block(m, message.Block1)
		isRequest := m.Code() >= codes.GET && m.Code() <= codes.IPATCH
		if isRequest && has && more && number == 0 && !s.beginUpload() {
			refuse(w, m, translate.Diagnosis(codes.ServiceUnavailable, "there is no memory for a request in blocks now"))
			return
		}
		next(w, m)
		answer := w.Message()
		if isRequest && has && (!more || answer.Code() >= codes.BadRequest) {
			s.mutex.Lock()
			s.endUpload()
			s.mutex.Unlock()
		}
		if number, more, has := block(answer, message.Block2); has && !more && number > 0 {
			s.mutex.Lock()
			s.forget(string(answer.Token()))
			s.mutex.Unlock()
		}
	}
}

// refuse answers a message that go-coap has not seen yet.
func refuse(w *writer, m *pool.Message, a translate.Answer) {
	answer := w.Message()
	a.Write(answer)
	answer.SetType(message.NonConfirmable)
	if m.Type() == message.Confirmable {
		answer.SetType(message.Acknowledgement)
		answer.SetMessageID(m.MessageID())
	}
}

func block(m *pool.Message, option message.OptionID) (number int64, more, has bool) {
	value, err := m.GetOptionUint32(option)
	if err != nil {
		return 0, false, false
	}
	_, number, more, err = blockwise.DecodeBlockOption(value)
	return number, more, err == nil
}

// beginUpload reserves memory for one request in blocks. A peer has one at a time.
func (s *session) beginUpload() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.uploadEnd.IsZero() && !s.entry.memory.Take(s.entry.options.Body) {
		return false
	}
	s.uploadEnd = time.Now().Add(transferTime + 2*time.Second) // go-coap looks once in a second
	return true
}

// endUpload needs the mutex.
func (s *session) endUpload() {
	if !s.uploadEnd.IsZero() {
		s.uploadEnd = time.Time{}
		s.entry.memory.Give(s.entry.options.Body)
	}
}

// keep says that go-coap keeps an answer of so many bytes, taken from the budget already, until its
// blocks are fetched.
func (s *session) keep(token message.Token, bytes int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.forget(string(token))
	s.fetched[string(token)] = kept{bytes, time.Now().Add(transferTime + 2*time.Second)}
}

// forget gives back the memory of an answer. It needs the mutex.
func (s *session) forget(token string) {
	s.entry.memory.Give(s.fetched[token].bytes)
	delete(s.fetched, token)
}

// blockSize is the size of block in bytes in which an answer to m goes.
func blockSize(m *pool.Message) int {
	size := blockwise.SZX1024.Size()
	for _, option := range []message.OptionID{message.Block1, message.Block2} {
		if value, err := m.GetOptionUint32(option); err == nil {
			if szx, _, _, err := blockwise.DecodeBlockOption(value); err == nil {
				size = min(size, szx.Size())
			}
		}
	}
	return int(size)
}

func codeName(code codes.Code) string { return fmt.Sprintf("%d.%02d", code>>5, code&31) }
