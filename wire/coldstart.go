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

// The names of the steps in HeaderServerTiming, and what the first of them says besides: when it
// began, in milliseconds since 1970. The header's standard leaves such parameters to the sender.
const (
	stepPod   = "ebb-pod"   // until the activator learned of a pod
	stepQueue = "ebb-queue" // until the request was sent to it
	paramFrom = "from"
)

// String is the value of HeaderServerTiming (W3C Server Timing). Durations are in milliseconds.
func (c ColdStart) String() string {
	if c.Received.IsZero() || c.Forwarded.IsZero() {
		return ""
	}
	var steps []string
	from := c.Received
	if !c.Announced.IsZero() {
		steps = append(steps, fmt.Sprintf("%s;dur=%s;desc=%s", stepPod, milliseconds(c.Announced.Sub(from)), c.Via))
		from = c.Announced
	}
	steps = append(steps, fmt.Sprintf("%s;dur=%s", stepQueue, milliseconds(c.Forwarded.Sub(from))))
	steps[0] += fmt.Sprintf(";%s=%d.%06d", paramFrom, c.Received.UnixMilli(), c.Received.Nanosecond()%1e6)
	return strings.Join(steps, ", ")
}

func milliseconds(d time.Duration) string {
	return strconv.FormatFloat(float64(max(d, 0))/float64(time.Millisecond), 'f', -1, 64)
}

// ParseColdStart reads the values of HeaderServerTiming. It leaves out what it does not know: the
// container and a newer sender may say more. Without a step of a cold start it returns the zero
// ColdStart.
func ParseColdStart(values []string) (ColdStart, error) {
	var c ColdStart
	var pod, queue time.Duration
	told := false
	for metric := range strings.SplitSeq(strings.Join(values, ","), ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(metric), ";")
		if name != stepPod && name != stepQueue {
			continue
		}
		step := map[string]string{}
		for param := range strings.SplitSeq(params, ";") {
			key, value, _ := strings.Cut(param, "=")
			step[strings.TrimSpace(key)] = strings.Trim(strings.TrimSpace(value), `"`)
		}
		duration, err := parseMilliseconds(step["dur"])
		if err != nil {
			return ColdStart{}, fmt.Errorf("%s: duration of %s: %w", HeaderServerTiming, name, err)
		}
		if from, ok := step[paramFrom]; ok {
			since, err := parseMilliseconds(from)
			if err != nil {
				return ColdStart{}, fmt.Errorf("%s: begin of %s: %w", HeaderServerTiming, name, err)
			}
			c.Received, told = time.Unix(0, int64(since)), true
		}
		if name == stepPod {
			pod, c.Via = duration, step["desc"]
		} else {
			queue = duration
		}
	}
	if !told {
		return ColdStart{}, nil
	}
	if c.Via != "" {
		c.Announced = c.Received.Add(pod)
	}
	c.Forwarded = c.Received.Add(pod + queue)
	return c, nil
}

// parseMilliseconds takes whole and fraction apart: a float64 has not enough digits for a time of
// day in nanoseconds.
func parseMilliseconds(text string) (time.Duration, error) {
	whole, fraction, _ := strings.Cut(text, ".")
	fraction = (fraction + "000000")[:6]
	n, err := strconv.ParseInt(whole+fraction, 10, 64)
	if err != nil || n < 0 || whole == "" {
		return 0, fmt.Errorf("%q is no number of milliseconds", text)
	}
	return time.Duration(n), nil
}
