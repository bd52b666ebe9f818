package env

import (
	"math"
	"strings"
	"testing"
)

func of(variables map[string]string) *Reader {
	return New(func(name string) string { return variables[name] })
}

func TestWhatIsNotSetHasItsDefault(t *testing.T) {
	r := of(nil)
	if text, n, port, ip := r.Text("T", "usual", ""), r.Number("N", 7, 1, 9, ""), r.Port("P", 9090, ""), r.IP("I", ""); text != "usual" || n != 7 || port != 9090 || ip.IsValid() {
		t.Errorf("got %q %d %d %s", text, n, port, ip)
	}
	if r.Err() != nil {
		t.Error(r.Err())
	}
}

func TestWhatIsSetCounts(t *testing.T) {
	r := of(map[string]string{"T": "other", "N": "9", "P": "65535", "I": "fd00::1", "E": "needed", "J": "10.0.0.1"})
	text, n, port, ip := r.Text("T", "usual", ""), r.Number("N", 7, 1, 9, ""), r.Port("P", 9090, ""), r.IP("I", "")
	if text != "other" || n != 9 || port != 65535 || ip.String() != "fd00::1" || r.Needed("E", "") != "needed" || r.NeededIP("J", "").String() != "10.0.0.1" {
		t.Errorf("got %q %d %d %s", text, n, port, ip)
	}
	if r.Err() != nil {
		t.Error(r.Err())
	}
}

// Who starts a process learns of everything at once.
func TestTheErrorNamesEachVariableThatIsWrong(t *testing.T) {
	r := of(map[string]string{"SMALL": "0", "LARGE": "10", "WORD": "many", "HUGE": "9223372036854775808", "PORT": "65536", "NAME": "localhost"})
	for _, name := range []string{"SMALL", "LARGE", "WORD"} {
		r.Number(name, 7, 1, 9, "")
	}
	r.Number("HUGE", 7, 1, math.MaxInt64, "")
	r.Port("PORT", 9090, "")
	r.IP("NAME", "")
	r.Needed("GONE", "What for.")
	r.NeededIP("NOWHERE", "")
	if r.Err() == nil {
		t.Fatal("nothing is wrong")
	}
	said := strings.Split(r.Err().Error(), "\n")
	for i, name := range []string{"SMALL", "LARGE", "WORD", "HUGE", "PORT", "NAME", "GONE", "NOWHERE"} {
		if i >= len(said) || !strings.HasPrefix(said[i], "environment "+name) {
			t.Errorf("%s is not named in line %d of %q", name, i, said)
		}
	}
	if len(said) != 8 || !strings.Contains(said[6], "What for.") {
		t.Errorf("got %q", said)
	}
}
