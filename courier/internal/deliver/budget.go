package deliver

import (
	"context"
	"net/http"
	"time"

	"ebb.dev/ebb/courier/internal/store"
	"ebb.dev/ebb/internal/shares"
)

// What calls under way may take of the courier's memory. Each namespace has a share, so who takes
// more delays itself only.
const (
	// sending is for the calls, answering for the answers while they are read and stored.
	sending, answering = 128 << 20, 64 << 20
	// overhead is what a call takes besides its message.
	overhead = 8 << 10
	// maxOfCall is the most that one may take whose body is in its message.
	maxOfCall = store.Inline + 2*(64<<10) + overhead
	// maxOfBody is what the reader of a large body takes, if it is as long.
	maxOfBody = 4 << 20
	// After a start few calls are under way at first: firstPace, twice as many after each stride,
	// and after so many strides any number. What ended the courier may be among them.
	firstPace = 64
	stride    = 2 * time.Second
	strides   = 12
)

// budget divides the memory of calls under way.
type budget struct {
	sending, answering, pace *shares.Pool
}

func newBudget() *budget {
	return &budget{sending: shares.New(sending), answering: shares.New(answering), pace: shares.New(firstPace)}
}

// quicken raises the pace until ctx is done or nothing is gained any more.
func (b *budget) quicken(ctx context.Context) {
	more := time.NewTicker(stride)
	defer more.Stop()
	for i := range strides {
		select {
		case <-ctx.Done():
			return
		case <-more.C:
			b.pace.Grow(firstPace << i)
		}
	}
	b.pace.Grow(1 << 40)
}

// reserve takes what n calls can take at most, or fewer; it returns for how many it did.
func (b *budget) reserve(namespace string, n int) int {
	for ; n > 0; n /= 2 {
		if !b.pace.Take(namespace, int64(n)) {
			continue
		}
		if b.sending.Take(namespace, int64(n)*maxOfCall) {
			return n
		}
		b.pace.Give(namespace, int64(n))
	}
	return 0
}

// release gives the places back of calls that did not come.
func (b *budget) release(namespace string, n int) {
	if n > 0 {
		b.pace.Give(namespace, int64(n))
		b.sending.Give(namespace, int64(n)*maxOfCall)
	}
}

// came keeps of a place what a call takes. ended gives it back.
func (b *budget) came(namespace string, message store.Message) (ended func()) {
	takes := int64(len(message.Data()) + overhead)
	for name, values := range message.Headers() {
		takes += int64(2 * len(name))
		for _, value := range values {
			takes += int64(2 * len(value))
		}
	}
	b.sending.Give(namespace, maxOfCall-takes)
	return func() {
		b.sending.Give(namespace, takes)
		b.pace.Give(namespace, 1)
	}
}

// answered takes what the head of an answer takes; ended gives it back.
func (b *budget) answered(namespace string, h http.Header) (ended func()) {
	takes := int64(0)
	for name, values := range h {
		takes += int64(len(name))
		for _, value := range values {
			takes += int64(len(value))
		}
	}
	b.sending.Add(namespace, takes)
	return func() { b.sending.Give(namespace, takes) }
}
