package forward

import (
	"bufio"
	"bytes"
	"io"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// link2 is a connection of the program with HTTP/2.
type link2 struct {
	*link
	fr    *http2.Framer
	out   bytes.Buffer // the frames that are written together
	block bytes.Buffer
	enc   *hpack.Encoder
}

// stream2 is a request on it.
type stream2 struct {
	v     *turn
	again bool
	body  []byte
	early bool
}

// serve2 answers requests of HTTP/2.
func (l *link) serve2() {
	hello := make([]byte, len(preface))
	r := bufio.NewReader(l.conn)
	if _, err := io.ReadFull(r, hello); err != nil {
		return
	}
	p := &link2{link: l}
	p.fr = http2.NewFramer(&p.out, r)
	p.fr.AllowIllegalWrites = true
	p.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.enc = hpack.NewEncoder(&p.block)
	p.frames(func() { p.fr.WriteSettings() })
	streams := map[uint32]*stream2{}
	for {
		f, err := p.fr.ReadFrame()
		if err != nil {
			return
		}
		id := f.Header().StreamID
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				p.frames(func() { p.fr.WriteSettingsAck() })
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				p.frames(func() { p.fr.WritePing(true, f.Data) })
			}
		case *http2.MetaHeadersFrame:
			mark := ""
			for _, field := range f.RegularFields() {
				if field.Name == "number" {
					mark = field.Value
				}
			}
			v, again := l.s.find(f.PseudoValue("method"), f.PseudoValue("path"), mark)
			if v == nil {
				return
			}
			st := &stream2{v: v, again: again, early: !again && (v.ends == endsEarly || v.ends == endsUnread)}
			streams[id] = st
			if st.early {
				p.answer(id, st)
			}
			p.end(id, st, f.StreamEnded())
		case *http2.DataFrame:
			if n := uint32(len(f.Data())); n > 0 {
				p.frames(func() { p.fr.WriteWindowUpdate(0, n); p.fr.WriteWindowUpdate(id, n) })
			}
			if st := streams[id]; st != nil {
				st.body = append(st.body, f.Data()...)
				p.end(id, st, f.StreamEnded())
			}
		case *http2.RSTStreamFrame:
			delete(streams, id)
		}
	}
}

// end answers a request that is whole.
func (p *link2) end(id uint32, st *stream2, whole bool) {
	if !whole {
		return
	}
	p.take(st.v, bytes.NewReader(st.body))
	if !st.early {
		p.answer(id, st)
	}
}

// frames writes frames in one system call.
func (p *link2) frames(write func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Reset()
	write()
	p.writeLocked(p.out.Bytes())
}

func (p *link2) head(id uint32, end bool, status int, v *turn, more ...string) {
	p.block.Reset()
	fields := append([]string{":status", strconv.Itoa(status), "number", strconv.Itoa(v.number)}, more...)
	for i := 0; i < len(fields); i += 2 {
		p.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.block.Bytes(), EndStream: end, EndHeaders: true})
}

func (p *link2) data(id uint32, end bool, b []byte) {
	for first := true; first || len(b) > 0; first = false {
		n := min(len(b), 8000)
		p.fr.WriteData(id, end && n == len(b), b[:n])
		b = b[n:]
	}
}

// answer does what the turn says, elsewhere if it has to wait.
func (p *link2) answer(id uint32, st *stream2) {
	v, body := st.v, tagged(st.v.number, st.v.size)
	length := []string{"content-length", strconv.Itoa(v.size)}
	plain := func(status int) func() {
		return func() {
			p.head(id, len(body) == 0, status, v)
			if len(body) > 0 {
				p.data(id, true, body)
			}
		}
	}
	later := func(d time.Duration, write func()) { time.AfterFunc(d, func() { p.frames(write) }) }
	if st.again {
		p.frames(plain(200))
		return
	}
	// over answers without a body, and then sends one.
	over := func(status int, fields ...string) {
		end := v.whole // the stream has ended before
		first, second := func() { p.head(id, end, status, v, fields...) }, func() { p.data(id, true, v.strays()) }
		if v.after == 0 {
			p.unasked(v, func() { p.frames(func() { first(); second() }) })
			return
		}
		p.frames(first)
		p.unasked(v, func() { p.frames(second) })
	}
	switch v.ends {
	case endsHead:
		over(200, length...)
	case ends204:
		over(204)
	case ends304:
		over(304)
	case endsHints:
		p.frames(func() { p.head(id, false, 103, v); p.data(id, false, v.strays()); plain(200)() })
	case endsMore:
		p.frames(func() { p.head(id, false, 200, v, length...); p.data(id, false, body) })
		p.unasked(v, func() { p.frames(func() { p.data(id, true, v.strays()) }) })
	case endsChunks, endsClosed:
		p.frames(plain(200))
		if v.ends == endsClosed {
			p.frames(func() { p.fr.WriteGoAway(id, http2.ErrCodeNo, nil) })
			return
		}
		p.unasked(v, func() { p.frames(func() { p.data(id, true, v.strays()) }) })
	case endsUnread:
		p.frames(func() { plain(200)(); p.fr.WriteRSTStream(id, http2.ErrCodeNo) })
	case endsStalled:
		p.frames(func() { p.head(id, false, 200, v); p.data(id, false, body[:v.size/2]) })
		later(stallsFor, func() { p.data(id, true, body[v.size/2:]) })
	case endsSilent:
		later(stallsFor, plain(200))
	case endsAgain:
		p.frames(plain(503))
	case endsReset:
		p.frames(func() {
			p.head(id, false, 200, v)
			p.data(id, false, body[:v.size/2])
			p.fr.WriteRSTStream(id, http2.ErrCodeInternal)
		})
	case endsGone:
		p.frames(func() { p.fr.WriteRSTStream(id, http2.ErrCodeRefusedStream) })
	case endsLeft:
		later(v.after, plain(200))
	default:
		p.frames(plain(200))
	}
}
