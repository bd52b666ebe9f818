package events

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func all(stream io.Reader, most int) (got []string, err error) {
	r := NewReader(stream, most)
	for {
		data, err := r.Next()
		if err != nil {
			return got, err
		}
		got = append(got, string(data))
	}
}

func TestEvents(t *testing.T) {
	for name, try := range map[string]struct {
		stream string
		want   []string
	}{
		"one":                     {"data: a\n\n", []string{"a"}},
		"several lines":           {"data: a\ndata:b\ndata\n\n", []string{"a\nb\n"}},
		"all ends of lines":       {"data: a\r\n\r\ndata: b\r\rdata: c\n\n", []string{"a", "b", "c"}},
		"comments and other":      {": hi\nevent: x\nid: 1\nretry: 5\ndata: a\n\n: ping\n\n", []string{"a"}},
		"an event without data":   {"event: x\n\ndata: a\n\n", []string{"a"}},
		"empty data":              {"data:\n\n", []string{""}},
		"one space goes":          {"data:  a\n\n", []string{" a"}},
		"a mark at the beginning": {"\ufeffdata: a\n\n", []string{"a"}},
		"an end too early":        {"data: a\n\ndata: b\n", []string{"a"}},
		"nothing":                 {"", nil},
	} {
		for kind, stream := range map[string]io.Reader{"at once": strings.NewReader(try.stream), "byte by byte": iotest.OneByteReader(strings.NewReader(try.stream))} {
			got, err := all(stream, 100)
			if !slices.Equal(got, try.want) || err != io.EOF {
				t.Errorf("%s, %s: got %q %v, want %q", name, kind, got, err, try.want)
			}
		}
	}
}

func TestALongEventIsAnError(t *testing.T) {
	for _, stream := range []string{"data: " + strings.Repeat("x", 11) + "\n\n", strings.Repeat("data: xxxx\n", 3), ": " + strings.Repeat("x", 100)} {
		if got, err := all(strings.NewReader(stream), 10); !errors.Is(err, ErrTooLong) {
			t.Errorf("%.20q: got %q %v", stream, got, err)
		}
	}
}

// An event is given out when its last byte has come, not when the next one comes.
func TestAnEventDoesNotWaitForTheNext(t *testing.T) {
	for _, event := range []string{"data: a\r\r", "data: a\n\n", "data: a\r\n\r\n"} {
		from, to := io.Pipe()
		go to.Write([]byte(event))
		if data, err := NewReader(from, 10).Next(); string(data) != "a" || err != nil {
			t.Errorf("%q: got %q %v", event, data, err)
		}
		from.Close()
	}
}

func FuzzEvents(f *testing.F) {
	f.Add("data: a\r\ndata: b\r\rdata: c\n\n")
	f.Fuzz(func(t *testing.T, stream string) {
		once, errOnce := all(strings.NewReader(stream), 64)
		slow, errSlow := all(iotest.OneByteReader(strings.NewReader(stream)), 64)
		if !slices.Equal(once, slow) || errOnce != errSlow {
			t.Fatalf("%q %v at once, %q %v byte by byte", once, errOnce, slow, errSlow)
		}
		for _, event := range once {
			if len(event) > 64 || strings.Contains(event, "\r") {
				t.Fatalf("event %q", event)
			}
		}
	})
}
