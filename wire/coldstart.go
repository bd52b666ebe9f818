package wire

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ColdStart says when the steps of one request's cold start happened, by the activator's clock. A
// zero time is a step that is not known.
type ColdStart struct {
	Received  time.Time // the request reached the activator
	Announced time.Time // the activator learned of a pod that can answer it
	Forwarded time.Time // the request was sent to that pod
	Via       string    // how it learned: "announcement" or "endpoints"
}

// String is the value of HeaderColdStart: name=value parts separated by semicolons, times in
// nanoseconds since 1970.
func (c ColdStart) String() string {
	var b strings.Builder
	part := func(name string, at time.Time) {
		if !at.IsZero() {
			fmt.Fprintf(&b, "%s=%d;", name, at.UnixNano())
		}
	}
	part("received", c.Received)
	part("announced", c.Announced)
	part("forwarded", c.Forwarded)
	if c.Via != "" {
		b.WriteString("via=" + c.Via + ";")
	}
	return strings.TrimSuffix(b.String(), ";")
}

// ParseColdStart reads the value of HeaderColdStart. It leaves out what it does not know, so that a
// newer sender may say more.
func ParseColdStart(value string) (ColdStart, error) {
	var c ColdStart
	if value == "" {
		return c, nil
	}
	for part := range strings.SplitSeq(value, ";") {
		name, text, found := strings.Cut(part, "=")
		if !found {
			return ColdStart{}, fmt.Errorf("%s: %q is not name=value", HeaderColdStart, part)
		}
		var at *time.Time
		switch name {
		case "received":
			at = &c.Received
		case "announced":
			at = &c.Announced
		case "forwarded":
			at = &c.Forwarded
		case "via":
			c.Via = text
			continue
		default:
			continue
		}
		nanoseconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return ColdStart{}, fmt.Errorf("%s: %s is no number of nanoseconds: %w", HeaderColdStart, name, err)
		}
		*at = time.Unix(0, nanoseconds)
	}
	return c, nil
}
