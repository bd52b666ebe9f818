package wire

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/standby"
)

// variable is one of the environment.
type variable struct {
	name              string
	get               func() string // "" is as if it were absent
	set               func(text string) error
	isNeeded, isSpare bool
}

func (v variable) needed() variable { v.isNeeded = true; return v }
func (v variable) spare() variable  { v.isSpare = true; return v }

// of is a variable whose value is in p.
func of[T any](name string, p *T, read func(string) (T, error), show func(T) string) variable {
	return variable{name: name, get: func() string { return show(*p) }, set: func(text string) (err error) {
		*p, err = read(text)
		return err
	}}
}

func same(s string) string { return s }

func text(name string, p *string) variable {
	return of(name, p, func(s string) (string, error) { return s, nil }, same)
}

func port(name string, p *int) variable {
	return of(name, p, func(text string) (int, error) {
		n, err := readNumber(text, 65535)
		return int(n), err
	}, strconv.Itoa)
}

func word(name string, p *bool, off, on string) variable {
	return of(name, p, func(text string) (bool, error) {
		if text != off && text != on {
			return false, fmt.Errorf("%q is neither %s nor %s", text, off, on)
		}
		return text == on, nil
	}, func(b bool) string {
		if b {
			return on
		}
		return off
	})
}

func readNumber(text string, most int64) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("%q is not a number from 0 to %d", text, most)
	}
	return n, nil
}

func bounded[T any](bound func(int64) T) func(string) (T, error) {
	return func(text string) (T, error) {
		n, err := readNumber(text, math.MaxInt64)
		return bound(n), err
	}
}

func wholeSeconds(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }

func readDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration such as 5s", text)
	}
	return d, nil
}

func showAddress(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func readAddresses(text string) (all []netip.Addr, err error) {
	for one := range strings.SplitSeq(text, ",") {
		a, err := netip.ParseAddr(one)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

func showAddresses(all []netip.Addr) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ",")
}

// show returns JSON, "" for an empty list or map.
func show[T any](v T) string {
	text, err := json.Marshal(v)
	if err != nil || slices.Contains([]string{"null", "[]", "{}"}, string(text)) {
		return ""
	}
	return string(text)
}

func (s *Sidecar) readProbes(text string) ([]Probe, error) { return ReadProbes(text, s.UserPort) }

// showProbes returns one probe as an object, as in Knative, and several as an array.
func showProbes(all []Probe) string {
	if len(all) == 1 {
		return show(all[0])
	}
	return show(all)
}

func (s *Sidecar) readProbesByContainer(text string) (map[string]Probe, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return nil, err
	}
	all := map[string]Probe{}
	for container, one := range raw {
		probes, err := ReadProbes(string(one), s.UserPort)
		if err != nil || len(probes) != 1 {
			return nil, fmt.Errorf("container %s: want one probe: %v", container, err)
		}
		all[container] = probes[0]
	}
	return all, nil
}

func readRecords(text string) (string, error) {
	switch text {
	case RecordsNone, RecordsAsynchronous, RecordsAll:
		return text, nil
	}
	return "", fmt.Errorf("%q is neither %s, %s nor %s", text, RecordsNone, RecordsAsynchronous, RecordsAll)
}

func readLevel(text string) (*standby.Level, error) {
	level, err := standby.ParseLevel(text)
	return &level, err
}

func showLevel(level *standby.Level) string {
	if level == nil {
		return ""
	}
	return level.String()
}

func readHook(text string) (*standby.Hook, error) {
	h, err := standby.ParseHook(text)
	return &h, err
}

func showHook(h *standby.Hook) string {
	if h == nil {
		return ""
	}
	return h.String()
}

func readObservability(text string) (o Observability, err error) {
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return o, err
	}
	if i := o.RequestMetrics.Interval; i != "" {
		_, err = time.ParseDuration(i)
	}
	return o, err
}
