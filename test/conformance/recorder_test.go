package conformance

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// message is one request as it arrived at the recorder.
type message struct {
	method, target, host, framing, body string
	fields                              []string // those of the corpus, and those that concern framing
	// unclear is why two recipients could read it in two ways.
	unclear error
}

// garbled is the method of a message that cannot be read.
const garbled = "GARBLED"

func (m message) String() string {
	text := fmt.Sprintf("%s %s host=%q%s", m.method, m.target, m.host, m.framing)
	if m.body != "" {
		text += fmt.Sprintf(" body=%q", m.body)
	}
	if len(m.fields) > 0 {
		text += " " + strings.Join(m.fields, " ")
	}
	if m.unclear != nil {
		text += fmt.Sprintf(" UNCLEAR(%v)", m.unclear)
	}
	return text
}

// recorder is the server behind a proxy. It answers each request over HTTP/1.1 and HTTP/2 and keeps
// what it was sent.
type recorder struct {
	addr string

	mu     sync.Mutex
	got    []message
	halves map[net.Conn]bool // with a message that is not complete
}

func record(t *testing.T) *recorder {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{addr: listener.Addr().String(), halves: map[net.Conn]bool{}}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go r.serve(conn)
		}
	}()
	return r
}

// take returns what arrived since the last call. A message that is not complete within the given
// time is forgotten: its recipient drops it, too.
func (r *recorder) take(within time.Duration) (out []message) {
	for deadline := time.Now().Add(within); ; <-time.After(5 * time.Millisecond) {
		r.mu.Lock()
		if len(r.halves) == 0 || time.Now().After(deadline) {
			out = r.got
			r.got = nil
			for conn := range r.halves {
				conn.Close()
			}
			clear(r.halves)
			r.mu.Unlock()
			return out
		}
		r.mu.Unlock()
	}
}

func (r *recorder) add(m message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.host = strings.ReplaceAll(m.host, r.addr, "UPSTREAM")
	if n := len(r.got); m.method == garbled && n > 0 && r.got[n-1].method == garbled {
		return // tried again
	}
	r.got = append(r.got, m)
}

func (r *recorder) serve(conn net.Conn) {
	defer func() {
		conn.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.halves, conn)
	}()
	var buf []byte
	piece := make([]byte, 64<<10)
	for {
		n, err := conn.Read(piece)
		buf = append(buf, piece[:n]...)
		if bytes.HasPrefix(buf, []byte(http2.ClientPreface)) {
			r.serveHTTP2(conn, io.MultiReader(bytes.NewReader(buf[len(http2.ClientPreface):]), conn))
			return
		}
		for len(buf) > 0 && !bytes.HasPrefix([]byte(http2.ClientPreface), buf) {
			m, used, whole := cut(buf)
			if !whole {
				break
			}
			buf = buf[used:]
			r.add(m)
			if used == 0 {
				return
			}
			answer := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
			switch m.method {
			case "CONNECT":
				answer = "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n"
			case "HEAD":
				answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
			}
			io.WriteString(conn, answer)
		}
		r.mu.Lock()
		if delete(r.halves, conn); len(buf) > 0 {
			r.halves[conn] = true
		}
		r.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// cut takes the first message from buf. One that is not clear is read as net/http does; if that
// cannot read it either, used is 0.
func cut(buf []byte) (m message, used int, whole bool) {
	m, used, err := strict(buf)
	if err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
		return m, used, err == nil
	}
	rest := bytes.NewReader(buf)
	reader := bufio.NewReader(rest)
	request, lenient := http.ReadRequest(reader)
	var body []byte
	if lenient == nil {
		body, lenient = io.ReadAll(request.Body)
	}
	if errors.Is(lenient, io.ErrUnexpectedEOF) || errors.Is(lenient, io.EOF) {
		return m, 0, false
	} else if lenient != nil {
		return message{method: garbled, target: fmt.Sprintf("%.60q", buf), unclear: err}, 0, true
	}
	return message{method: request.Method, target: request.RequestURI, host: request.Host, body: string(body), unclear: err},
		len(buf) - rest.Len() - reader.Buffered(), true
}

var (
	requestLine = regexp.MustCompile(`^([!#$%&'*+.^_|~0-9A-Za-z` + "`" + `-]+) ([!-~\x80-\xff]+) HTTP/1\.[01]$`)
	fieldLine   = regexp.MustCompile(`^([!#$%&'*+.^_|~0-9A-Za-z` + "`" + `-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*$`)
	hostValue   = regexp.MustCompile(`^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(:[0-9]*)?$`)
	digits      = regexp.MustCompile(`^[0-9]{1,18}$`)
	// Extensions have only one end, and a recipient ignores them: RFC 9112 section 7.1.1.
	chunkLine = regexp.MustCompile(`^([0-9A-Fa-f]{1,15})(;[A-Za-z0-9-]+(=([A-Za-z0-9-]+|"[^"\\]*"))?)*$`)
)

// line takes a line that ends in CRLF.
func line(buf []byte) (text string, rest []byte, err error) {
	before, after, found := bytes.Cut(buf, []byte("\r\n"))
	if !found {
		return "", nil, io.ErrUnexpectedEOF
	}
	return string(before), after, nil
}

// strict reads a message that can be read in one way only: the second implementation that Ebb's
// output is held to. It returns io.ErrUnexpectedEOF for a message that is not complete.
func strict(buf []byte) (m message, used int, err error) {
	text, rest, err := line(buf)
	if err != nil {
		return m, 0, err
	}
	parts := requestLine.FindStringSubmatch(text)
	if parts == nil {
		return m, 0, fmt.Errorf("request line %.60q", text)
	}
	m.method, m.target = parts[1], parts[2]
	var hosts, lengths, codings []string
	if rest, err = fields(rest, func(name, value string) {
		switch strings.ToLower(name) {
		case "host":
			hosts = append(hosts, value)
		case "content-length":
			lengths = append(lengths, value)
		case "transfer-encoding":
			codings = append(codings, value)
		default:
			m.note(name, value)
		}
	}); err != nil {
		return m, 0, err
	}
	switch {
	case len(hosts) != 1 || !hostValue.MatchString(hosts[0]):
		return m, 0, fmt.Errorf("host %q", hosts)
	case len(codings) > 1 || len(lengths) > 1 || len(codings)+len(lengths) > 1:
		return m, 0, fmt.Errorf("lengths %q, codings %q", lengths, codings)
	case len(codings) == 1 && !strings.EqualFold(codings[0], "chunked"):
		return m, 0, fmt.Errorf("coding %q", codings)
	case len(lengths) == 1 && !digits.MatchString(lengths[0]):
		return m, 0, fmt.Errorf("length %q", lengths)
	}
	m.host = hosts[0]
	switch {
	case len(lengths) == 1:
		m.framing = " length=" + lengths[0]
		n, _ := strconv.Atoi(lengths[0])
		if len(rest) < n {
			return m, 0, io.ErrUnexpectedEOF
		}
		m.body, rest = string(rest[:n]), rest[n:]
	case len(codings) == 1:
		m.framing = " chunked"
		if rest, err = m.chunks(rest); err != nil {
			return m, 0, err
		}
	}
	slices.Sort(m.fields)
	return m, len(buf) - len(rest), nil
}

func fields(buf []byte, each func(name, value string)) (rest []byte, err error) {
	for {
		text, after, err := line(buf)
		if err != nil {
			return nil, err
		}
		buf = after
		if text == "" {
			return buf, nil
		}
		parts := fieldLine.FindStringSubmatch(text)
		if parts == nil {
			return nil, fmt.Errorf("field line %.60q", text)
		}
		each(parts[1], parts[2])
	}
}

// note keeps the fields that the corpus is about; proxies add others.
func (m *message) note(name, value string) {
	name = strings.ToLower(name)
	if name == "te" || name == "trailer" || name == "upgrade" || name == "connection" && value != "keep-alive" && value != "" || strings.HasPrefix(name, "x-corpus") {
		m.fields = append(m.fields, fmt.Sprintf("%s=%q", name, value))
	}
}

func (m *message) chunks(rest []byte) ([]byte, error) {
	for {
		text, after, err := line(rest)
		if err != nil {
			return nil, err
		}
		parts := chunkLine.FindStringSubmatch(text)
		if parts == nil {
			return nil, fmt.Errorf("chunk size %.40q", text)
		}
		if parts[2] != "" {
			m.fields = append(m.fields, fmt.Sprintf("extension=%q", parts[2]))
		}
		n, _ := strconv.ParseInt(parts[1], 16, 64)
		rest = after
		if n == 0 {
			return fields(rest, func(name, value string) {
				m.fields = append(m.fields, fmt.Sprintf("trailer:%s=%q", strings.ToLower(name), value))
			})
		}
		if int64(len(rest)) < n+2 {
			return nil, io.ErrUnexpectedEOF
		}
		if string(rest[n:n+2]) != "\r\n" {
			return nil, fmt.Errorf("chunk of %d ends in %q", n, rest[n:n+2])
		}
		m.body += string(rest[:n])
		rest = rest[n+2:]
	}
}

// serveHTTP2 answers each stream that ends, and records it in the order in which streams end.
func (r *recorder) serveHTTP2(conn net.Conn, in io.Reader) {
	framer := http2.NewFramer(conn, in)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	framer.WriteSettings()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	streams := map[uint32]*message{}
	for {
		frame, err := framer.ReadFrame()
		var broken http2.StreamError
		if errors.As(err, &broken) {
			r.add(message{method: garbled, target: "HTTP/2 stream", unclear: broken})
			framer.WriteRSTStream(broken.StreamID, broken.Code)
			continue
		} else if err != nil {
			return
		}
		ended := false
		id := frame.Header().StreamID
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				framer.WritePing(true, frame.Data)
			}
		case *http2.MetaHeadersFrame:
			m, known := streams[id]
			if !known {
				m = &message{framing: " h2"}
				streams[id] = m
			}
			for _, f := range frame.Fields {
				switch {
				case known:
					m.fields = append(m.fields, fmt.Sprintf("trailer:%s=%q", f.Name, f.Value))
				case f.Name == ":method":
					m.method = f.Value
				case f.Name == ":path":
					m.target = f.Value
				case f.Name == ":authority":
					m.host = f.Value
				case f.Name == "host" && f.Value != m.host:
					m.unclear = fmt.Errorf("host %q beside :authority", f.Value)
				case f.Name == "content-length":
					m.framing += " length=" + f.Value
				default:
					m.note(f.Name, f.Value)
				}
			}
			ended = frame.StreamEnded()
		case *http2.DataFrame:
			if m := streams[id]; m != nil {
				m.body += string(frame.Data())
				ended = frame.StreamEnded()
			}
			if n := uint32(len(frame.Data())); n > 0 {
				framer.WriteWindowUpdate(0, n)
			}
		case *http2.RSTStreamFrame:
			delete(streams, id)
		}
		if m := streams[id]; m != nil && ended {
			slices.Sort(m.fields)
			_, length, stated := strings.Cut(m.framing, "length=")
			if stated && length != strconv.Itoa(len(m.body)) {
				m.unclear = fmt.Errorf("length %s of a body of %d", length, len(m.body))
			}
			r.add(*m)
			delete(streams, id)
			block.Reset()
			encoder.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true})
		}
	}
}
