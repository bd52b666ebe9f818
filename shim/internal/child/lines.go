package child

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"sync"
	"time"
)

// maxLine is the length at which a line is broken, in bytes.
const maxLine = 4096

// Lines calls tell with each line of r that is not empty, until the end of r. A long line comes in
// parts.
func Lines(r io.Reader, tell func(string)) {
	b := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := b.ReadSlice('\n')
		if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 {
			tell(string(line))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// Rate lets so many lines pass in a second.
type Rate struct {
	mutex   sync.Mutex
	most    int
	second  time.Time // when the present second began
	passed  int
	dropped int
}

// NewRate returns a Rate of so many lines a second.
func NewRate(most int) *Rate { return &Rate{most: most} }

// Pass reports whether a line passes. missed is how many did not pass since it was told last; the
// first line of a second tells.
func (r *Rate) Pass(now time.Time) (pass bool, missed int) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if now.Sub(r.second) >= time.Second {
		missed = r.dropped
		r.second, r.passed, r.dropped = now, 0, 0
	}
	if r.passed >= r.most {
		r.dropped++
		return false, missed
	}
	r.passed++
	return true, missed
}
