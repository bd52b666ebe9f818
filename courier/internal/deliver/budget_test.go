package deliver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ebb.dev/ebb/courier/internal/store"
)

// message is one with a body of so many bytes.
type message struct {
	store.Message
	size      int
	delivered uint64
}

func (m message) Data() []byte         { return make([]byte, m.size) }
func (m message) Headers() nats.Header { return nats.Header{} }
func (m message) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{NumDelivered: m.delivered}, nil
}
func (m message) NakWithDelay(time.Duration) error { return nil }

// begin begins calls of a size until there is no more memory for them.
func begin(b *budget, namespace string, size int) (n int) {
	for {
		got := b.reserve(namespace, batch)
		if got == 0 {
			return n
		}
		for range got {
			b.came(namespace, message{size: size})
		}
		n += got
	}
}

func TestCallsUnderWayOfANamespaceHaveAShareOfTheMemory(t *testing.T) {
	b := newBudget()
	b.pace.Grow(1 << 40)
	n := begin(b, "attacker", store.Inline)
	if held := b.sending.Held("attacker"); held > sending/2 || n < 100 {
		t.Errorf("%d large calls of one namespace take %d MiB", n, held>>20)
	}
	if n := begin(b, "victim", 1<<10); n < 1000 {
		t.Errorf("another has %d small calls under way", n)
	}
}

func TestWhatCallsTookIsGivenBack(t *testing.T) {
	b := newBudget()
	for range 3 {
		n := b.reserve("ns", 10)
		b.came("ns", message{size: 1000})()
		b.release("ns", n-1)
	}
	if b.sending.Free() != sending || b.pace.Free() != firstPace {
		t.Errorf("%d bytes and %d places are free", b.sending.Free(), b.pace.Free())
	}
}

func TestFewCallsAreUnderWayAfterAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go b.quicken(ctx)
		first := begin(b, "attacker", 1<<10)
		if first > firstPace/2 || begin(b, "victim", 1<<10) == 0 {
			t.Errorf("at once %d calls of one namespace are under way, and %d of another", first, b.pace.Held("victim"))
		}
		time.Sleep(stride + time.Millisecond)
		if more := begin(b, "attacker", 1<<10); more == 0 || first+more > firstPace {
			t.Errorf("then %d more", more)
		}
		time.Sleep(strides * stride)
		if more := begin(b, "attacker", 1<<10); more < 1000 {
			t.Errorf("in the end %d more", more)
		}
	})
}

// A tenant has thousands of calls that ended, and no room for their callbacks.
func TestCallsThatTheStoreRefusesAreLookedAtLessAndLess(t *testing.T) {
	looks := 0
	for within, n := time.Duration(0), uint64(1); within < time.Hour; n++ {
		within += rest(message{delivered: n})
		looks++
	}
	if first := rest(message{delivered: 1}); looks > 100 || first > patience {
		t.Errorf("such a call is looked at after %v, and %d times in an hour", first, looks)
	}
}

// Each look at such a call would be a line in the log that the tenant writes as often as it likes.
func TestATenantWithoutRoomDoesNotFillTheLog(t *testing.T) {
	var out bytes.Buffer
	m := &Manager{Log: slog.New(slog.NewTextHandler(&out, nil))}
	for range 1000 {
		m.again(message{}, 0, fmt.Errorf("store the callback of call a of b/c: %w", store.ErrShare))
	}
	m.again(message{}, 0, errors.New("the disk is full"))
	if lines := strings.Count(out.String(), "\n"); lines != 1 || !strings.Contains(out.String(), "the disk is full") || m.Counts.Failed.Load() != 1001 {
		t.Errorf("%d lines for %d attempts, want the one about the disk: %.300s", lines, m.Counts.Failed.Load(), out.String())
	}
}
