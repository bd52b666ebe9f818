// Package memory bounds the bytes that many holders keep together.
//
// Owns: the count. Never: waits: who gets no memory gets an answer that says so.
package memory

import (
	"errors"
	"io"
	"sync/atomic"
)

// ErrFull tells that the budget is used up, ErrTooLarge that one holder wants more than it may.
var (
	ErrFull     = errors.New("there is no memory for this now")
	ErrTooLarge = errors.New("a body is larger than it may be")
)

// Budget is how many bytes may be held.
type Budget struct {
	most int64
	used atomic.Int64
}

func New(most int64) *Budget { return &Budget{most: most} }

// Used is how many bytes are held.
func (b *Budget) Used() int64 { return b.used.Load() }

// Take reserves n bytes and reports whether it could.
func (b *Budget) Take(n int) bool {
	if b.used.Add(int64(n)) > b.most {
		b.used.Add(int64(-n))
		return false
	}
	return true
}

// Give returns n bytes that were taken.
func (b *Budget) Give(n int) { b.used.Add(int64(-n)) }

// chunk is by how much a body that is read may grow before its memory is asked for.
const chunk = 4 << 10

// ReadAll reads a body of at most so many bytes. The bytes read are taken from the budget; the
// caller gives taken back, also after an error.
func (b *Budget) ReadAll(from io.Reader, most int) (body []byte, taken int, err error) {
	for {
		if !b.Take(chunk) {
			return nil, taken, ErrFull
		}
		taken += chunk
		start := len(body)
		body = append(body, make([]byte, chunk)...)
		n, err := io.ReadFull(from, body[start:])
		body = body[:start+n]
		switch {
		case len(body) > most:
			return nil, taken, ErrTooLarge
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return body, taken, nil
		case err != nil:
			return nil, taken, err
		}
	}
}
