package coap

import (
	"sync"
	"time"

	"github.com/plgd-dev/go-coap/v3/message/pool"
	"github.com/plgd-dev/go-coap/v3/udp/client"
	"github.com/plgd-dev/go-coap/v3/udp/coder"
)

// Bounds of the answers that are remembered for one peer. RFC 7252 section 4.5 wants all of 247 s,
// and allows less: a peer may send one message for each answer that it waits for (NSTART), by
// default one.
const (
	maxAnswers     = 64
	maxAnswerBytes = 16 << 10
)

// answers are the newest answers to a peer, by message ID, so that a request that comes again is
// answered again and not done again.
type answers struct {
	mutex sync.Mutex
	byKey map[string]sentAnswer
	order []string
	bytes int
}

type sentAnswer struct {
	datagram []byte
	until    time.Time
}

func newAnswers() *answers { return &answers{byKey: map[string]sentAnswer{}} }

// Load sets the answer into m and reports whether there is one.
func (a *answers) Load(key string, m *pool.Message) (bool, error) {
	a.mutex.Lock()
	sent, known := a.byKey[key]
	a.mutex.Unlock()
	if !known || time.Now().After(sent.until) {
		return false, nil
	}
	_, err := m.UnmarshalWithDecoder(coder.DefaultCoder, sent.datagram)
	return err == nil, err
}

// Store remembers an answer, and forgets the oldest beyond the bounds.
func (a *answers) Store(key string, m *pool.Message) error {
	datagram, err := m.MarshalWithEncoder(coder.DefaultCoder)
	if err != nil {
		return err
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if old, known := a.byKey[key]; known {
		if time.Now().Before(old.until) {
			return nil
		}
		a.bytes -= len(old.datagram) // it stays where it is in the order
	} else {
		a.order = append(a.order, key)
	}
	a.byKey[key] = sentAnswer{append([]byte(nil), datagram...), time.Now().Add(client.ExchangeLifetime)}
	a.bytes += len(datagram)
	for len(a.order) > 1 && (len(a.order) > maxAnswers || a.bytes > maxAnswerBytes) {
		a.drop()
	}
	return nil
}

func (a *answers) drop() {
	a.bytes -= len(a.byKey[a.order[0]].datagram)
	delete(a.byKey, a.order[0])
	a.order = append(a.order[:0], a.order[1:]...)
}

// CheckExpirations forgets answers that nobody can ask for any more.
func (a *answers) CheckExpirations(now time.Time) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for len(a.order) > 0 && now.After(a.byKey[a.order[0]].until) {
		a.drop()
	}
}
