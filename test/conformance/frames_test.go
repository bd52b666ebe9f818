package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// markerStream is the stream of the request that follows each one over HTTP/2.
const markerStream = 101

// frames writes the frames of a file to out. A line is one frame:
//
//	HEADERS STREAM FLAG... and then, indented, one field in each line: NAME = VALUE
//	CONTINUATION STREAM FLAG... with fields as well
//	DATA STREAM FLAG... "TEXT"
//	RST STREAM
//	RAW TEXT, any bytes
//
// Flags are END_STREAM and END_HEADERS.
func frames(t *testing.T, lines []string, out io.Writer) (streams []uint32) {
	t.Helper()
	framer := http2.NewFramer(out, nil)
	framer.AllowIllegalWrites = true
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := 0; i < len(lines); i++ {
		words := strings.Fields(lines[i])
		if words[0] == "RAW" {
			io.WriteString(out, unescape(t, strings.TrimPrefix(lines[i], "RAW ")))
			continue
		}
		stream, err := strconv.ParseUint(words[1], 10, 32)
		if err != nil {
			t.Fatalf("%s: %v", lines[i], err)
		}
		id, ends, whole := uint32(stream), slices.Contains(words, "END_STREAM"), slices.Contains(words, "END_HEADERS")
		block.Reset()
		for i+1 < len(lines) && strings.HasPrefix(lines[i+1], "  ") {
			i++
			name, value, found := strings.Cut(lines[i][2:], " = ")
			if !found {
				t.Fatalf("%s is no field", lines[i])
			}
			encoder.WriteField(hpack.HeaderField{Name: unescape(t, name), Value: unescape(t, value), Sensitive: true})
		}
		switch words[0] {
		case "HEADERS":
			if !slices.Contains(streams, id) {
				streams = append(streams, id)
			}
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: ends, EndHeaders: whole})
		case "CONTINUATION":
			framer.WriteContinuation(id, whole, block.Bytes())
		case "DATA":
			_, text, _ := strings.Cut(lines[i], `"`)
			framer.WriteData(id, ends, []byte(unescape(t, strings.TrimSuffix(text, `"`))))
		case "RST":
			framer.WriteRSTStream(id, http2.ErrCodeCancel)
		default:
			t.Fatalf("%s is no frame", lines[i])
		}
	}
	return streams
}

// sendFrames sends a request over HTTP/2 and returns its verdict.
func (p *proxy) sendFrames(t *testing.T, m malformed, quiet time.Duration) (v verdict) {
	t.Helper()
	conn, err := net.Dial("tcp", p.h2)
	if err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	defer conn.Close()
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	http2.NewFramer(&out, nil).WriteSettings()
	streams := frames(t, append(slices.Clone(m.lines), fmt.Sprintf("HEADERS %d END_STREAM END_HEADERS", markerStream),
		"  :method = GET", "  :scheme = http", "  :path = /marker", "  :authority = marker.example"), &out)
	go conn.Write(out.Bytes())
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	answers := map[uint32]string{}
	ended := func(id uint32, with string) {
		if _, done := answers[id]; !done {
			answers[id] = fmt.Sprintf("%d:%s", id, with)
		}
	}
	status := map[uint32]string{}
	for len(answers) < len(streams) {
		conn.SetReadDeadline(time.Now().Add(quiet))
		frame, err := framer.ReadFrame()
		if err != nil {
			var late net.Error
			if !(errors.As(err, &late) && late.Timeout()) && len(v.answers) == 0 {
				v.answers = append(v.answers, "connection:closed")
			}
			break
		}
		id := frame.Header().StreamID
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				framer.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			if code := frame.PseudoValue("status"); code != "" {
				status[id] = code
			}
			if frame.StreamEnded() {
				ended(id, status[id])
			}
		case *http2.DataFrame:
			if frame.StreamEnded() {
				ended(id, status[id])
			}
		case *http2.RSTStreamFrame:
			if status[id] != "" {
				ended(id, status[id])
			} else {
				ended(id, frame.ErrCode.String())
			}
		case *http2.GoAwayFrame:
			if frame.ErrCode != http2.ErrCodeNo {
				v.answers = append(v.answers, "connection:"+frame.ErrCode.String())
			}
		}
	}
	conn.Close()
	slices.Sort(streams)
	for _, id := range streams {
		if text := answers[id]; text != "" {
			v.answers = append(v.answers, text)
		} else if len(v.answers) == 0 || !strings.HasPrefix(v.answers[0], "connection:") {
			v.answers = append(v.answers, fmt.Sprintf("%d:none", id))
		}
	}
	v.got = p.upstream.take(2 * quiet)
	// Streams end in any order.
	slices.SortStableFunc(v.got, func(a, b message) int { return strings.Compare(a.target, b.target) })
	return v
}
