package page

import (
	"context"
	"hash/maphash"
	"io"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// What open pages may take together. A page has two streams while it can be seen.
const (
	maxStreams      = 512
	maxStreamsOfOne = 64 // with the same token
	maxQuestions    = 32
	maxWait         = 5 * time.Second
	// streamRate bounds the bytes per second of all streams. Beyond it they are read more slowly,
	// and the API then sends fewer, newer states.
	streamRate  = 16 << 20
	bufferBytes = 32 << 10
)

// bounds counts what pages take.
type bounds struct {
	streams, questions chan struct{}
	pace               *rate.Limiter

	mu   sync.Mutex
	seed maphash.Seed
	of   map[uint64]int // streams by the hash of a token
}

func newBounds() *bounds {
	return &bounds{streams: make(chan struct{}, maxStreams), questions: make(chan struct{}, maxQuestions),
		pace: rate.NewLimiter(streamRate, 1<<20), seed: maphash.MakeSeed(), of: map[uint64]int{}}
}

// enterStream returns false if too many streams are open.
func (b *bounds) enterStream(token string) (leave func(), ok bool) {
	who := maphash.String(b.seed, token)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of[who] >= maxStreamsOfOne {
		return nil, false
	}
	select {
	case b.streams <- struct{}{}:
	default:
		return nil, false
	}
	b.of[who]++
	return func() {
		<-b.streams
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.of[who]--; b.of[who] == 0 {
			delete(b.of, who)
		}
	}, true
}

// enterQuestion waits a while for its turn, and returns false if there was none.
func (b *bounds) enterQuestion(ctx context.Context) (leave func(), ok bool) {
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case b.questions <- struct{}{}:
		return func() { <-b.questions }, true
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil, false
}

// paced reads a stream no faster than all streams together may be.
type paced struct {
	io.ReadCloser
	ctx  context.Context
	pace *rate.Limiter
}

// Read implements io.Reader.
func (p *paced) Read(text []byte) (int, error) {
	n, err := p.ReadCloser.Read(text)
	if n > 0 {
		if late := p.pace.WaitN(p.ctx, min(n, bufferBytes)); late != nil && err == nil {
			err = late
		}
	}
	return n, err
}

// buffers are those of answers on their way.
type buffers struct{ pool sync.Pool }

func newBuffers() *buffers {
	return &buffers{sync.Pool{New: func() any { return new([bufferBytes]byte) }}}
}

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte { return b.pool.Get().(*[bufferBytes]byte)[:] }

// Put implements httputil.BufferPool.
func (b *buffers) Put(text []byte) { b.pool.Put((*[bufferBytes]byte)(text)) }
