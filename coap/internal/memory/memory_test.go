package memory

import (
	"bytes"
	"errors"
	"testing"
	"testing/iotest"
)

func TestBodiesAreReadWithinTheBudget(t *testing.T) {
	broken := errors.New("broken")
	for name, try := range map[string]struct {
		size, most int
		budget     int64
		broken     bool
		want       error
	}{
		"it fits":         {10 << 10, 10 << 10, 12 << 10, false, nil},
		"nothing":         {0, 10, chunk, false, nil},
		"it is too large": {10<<10 + 1, 10 << 10, 1 << 20, false, ErrTooLarge},
		"no memory":       {10 << 10, 20 << 10, 8 << 10, false, ErrFull},
		"it breaks off":   {10, 20, 1 << 20, true, broken},
	} {
		b := New(try.budget)
		body := bytes.Repeat([]byte("x"), try.size)
		from := iotest.HalfReader(bytes.NewReader(body))
		if try.broken {
			from = iotest.ErrReader(broken)
		}
		got, taken, err := b.ReadAll(from, try.most)
		if !errors.Is(err, try.want) || err == nil && !bytes.Equal(got, body) {
			t.Errorf("%s: %d bytes, %v, want %v", name, len(got), err, try.want)
		}
		if int64(taken) != b.Used() || taken < len(got) || b.Used() > try.budget {
			t.Errorf("%s: %d of %d bytes are taken", name, taken, b.Used())
		}
		if b.Give(taken); b.Used() != 0 {
			t.Errorf("%s: %d bytes are never given back", name, b.Used())
		}
	}
}
