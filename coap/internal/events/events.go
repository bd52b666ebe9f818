// Package events reads a stream of server-sent events (text/event-stream, WHATWG HTML section 9.2).
//
// Owns: at most one event of bounded size. Reads: the stream. Never: reconnects; gives out an event
// that did not end.
package events

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// ErrTooLong tells of an event, or a line of it, that is longer than the reader's bound.
var ErrTooLong = errors.New("an event is too long")

// Reader reads the data of events.
type Reader struct {
	lines   *bufio.Reader
	most    int
	begun   bool // the first line, which may have a byte order mark, was read
	afterCR bool
}

// NewReader returns a reader of events of at most so many bytes of data.
func NewReader(stream io.Reader, most int) *Reader {
	return &Reader{lines: bufio.NewReaderSize(stream, 512), most: most}
}

// Next returns the data of the next event, the lines of it joined by newlines. Events without data
// and comments are passed over. It returns the stream's error, io.EOF at its end.
func (r *Reader) Next() ([]byte, error) {
	var data []byte
	has := false
	for {
		line, err := r.line()
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			if has {
				return data, nil
			}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if string(name) != "data" {
			continue
		}
		value = bytes.TrimPrefix(value, []byte(" "))
		if has {
			data = append(data, '\n')
		}
		has = true
		if data = append(data, value...); len(data) > r.most {
			return nil, ErrTooLong
		}
	}
}

// line reads a line that ends with LF, CR LF or CR, and returns it without its end. The LF after a
// CR is skipped when it comes: to wait for it would delay the event.
func (r *Reader) line() ([]byte, error) {
	var line []byte
	for {
		c, err := r.lines.ReadByte()
		if err != nil {
			return nil, err
		}
		afterCR := r.afterCR
		r.afterCR = c == '\r'
		switch {
		case c == '\n' && afterCR:
			continue
		case c == '\n' || c == '\r':
			if !r.begun {
				r.begun = true
				line = bytes.TrimPrefix(line, []byte("\ufeff"))
			}
			return line, nil
		}
		if line = append(line, c); len(line) > r.most+len("\ufeffdata: ") {
			return nil, ErrTooLong
		}
	}
}
