package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/internal/shares"
)

// ErrShare is returned for what a namespace has no room for, because it holds more of the store
// than is free.
var ErrShare = errors.New("its namespace has no share left of the store")

// leastCost is what a message counts at least: each takes memory of JetStream, too.
const leastCost = 4 << 10

// cost is what a message takes of the store.
func cost(header nats.Header, size int) int64 {
	n := size + 256
	for name, values := range header {
		for _, value := range values {
			n += len(name) + len(value) + 4
		}
	}
	return max(int64(n), leastCost)
}

// ledger is what each namespace has in a stream from which the oldest goes: results, dead letters.
type ledger struct {
	stream jetstream.Stream
	keep   time.Duration
	pool   *shares.Pool
	drop   func(namespace, body string, size int64)

	mu sync.Mutex
	of map[string][]entry // by namespace, the oldest first
}

// entry is one message.
type entry struct {
	sequence uint64
	cost     int64
	at       time.Time
	body     string // large body that goes with it
	size     int64  // of that
}

// read takes over what the stream has.
func (l *ledger) read(ctx context.Context) error {
	info, err := l.stream.Info(ctx)
	if err != nil || info.State.Msgs == 0 {
		return err
	}
	consumer, err := l.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{HeadersOnly: true})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		m, err := messages.Next()
		if err != nil {
			return err
		}
		about, err := m.Metadata()
		if err != nil {
			return err
		}
		size, _ := strconv.Atoi(m.Headers().Get("Nats-Msg-Size"))
		e := entry{sequence: about.Sequence.Stream, cost: cost(m.Headers(), size), at: about.Timestamp}
		e.body, e.size = bodyOf(m.Headers())
		if namespace := namespaceOf(m.Subject()); namespace != "" {
			l.add(namespace, e)
		}
		if about.NumPending == 0 {
			return nil
		}
	}
}

// bodyOf returns the large body that a record or a dead letter names.
func bodyOf(h nats.Header) (name string, size int64) {
	if r, err := call.DecodeRecord(h.Get(headerOf)); err == nil {
		return r.Body, r.Size
	}
	return "", 0
}

func namespaceOf(subject string) string {
	if parts := strings.Split(subject, "."); len(parts) == 5 {
		return parts[2]
	}
	return ""
}

func (l *ledger) add(namespace string, e entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pool.Add(namespace, e.cost)
	l.of[namespace] = append(l.of[namespace], e)
}

// room removes the oldest of the namespace that has most, until there is room for n bytes.
func (l *ledger) room(ctx context.Context, n int64) error {
	l.expire(time.Now())
	for l.pool.Free() < n {
		largest, _ := l.pool.Largest()
		if largest == "" {
			return nil
		}
		if _, err := l.oldest(ctx, largest); err != nil {
			return err
		}
	}
	return nil
}

// trim keeps the newest of each namespace that has more than most.
func (l *ledger) trim(ctx context.Context, most int) error {
	l.expire(time.Now())
	for {
		namespace := ""
		l.mu.Lock()
		for one, list := range l.of {
			if len(list) > most {
				namespace = one
			}
		}
		l.mu.Unlock()
		if namespace == "" {
			return nil
		}
		if _, err := l.oldest(ctx, namespace); err != nil {
			return err
		}
	}
}

// expire forgets what JetStream has removed because it is old.
func (l *ledger) expire(now time.Time) {
	for _, e := range l.expired(now) {
		if e.body != "" {
			l.drop(e.namespace, e.body, e.size)
		}
	}
}

type expired struct {
	entry
	namespace string
}

func (l *ledger) expired(now time.Time) (out []expired) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for namespace, list := range l.of {
		n := 0
		for n < len(list) && now.Sub(list[n].at) > l.keep {
			l.pool.Give(namespace, list[n].cost)
			out = append(out, expired{list[n], namespace})
			n++
		}
		l.set(namespace, list[n:])
	}
	return out
}

func (l *ledger) set(namespace string, list []entry) {
	if len(list) == 0 {
		delete(l.of, namespace)
	} else {
		l.of[namespace] = list
	}
}

// oldest removes the oldest of a namespace; it is false if there is none.
func (l *ledger) oldest(ctx context.Context, namespace string) (bool, error) {
	l.mu.Lock()
	list := l.of[namespace]
	if len(list) == 0 {
		l.pool.Give(namespace, l.pool.Held(namespace))
		l.mu.Unlock()
		return false, nil
	}
	e := list[0]
	l.set(namespace, list[1:])
	l.pool.Give(namespace, e.cost)
	l.mu.Unlock()
	if e.body != "" {
		l.drop(namespace, e.body, e.size)
	}
	// One that is not there any more was too old.
	if err := l.stream.DeleteMsg(ctx, e.sequence); err != nil && !errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		return true, fmt.Errorf("remove the oldest of namespace %s: %w", namespace, err)
	}
	return true, nil
}
