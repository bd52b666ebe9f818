package settings

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// reader takes typed values out of one ConfigMap and collects what is wrong with them. Each method
// returns the default when the key is absent or at fault, so one pass finds every fault.
type reader struct {
	name    string
	data    map[string]string
	lenient bool // the map does not exist: a required key is no fault
	faults  []error
	seen    func(key string) // told every key that is looked up; for the test that compares with keys.go
}

func (r *reader) fault(key, value, format string, args ...any) {
	r.faults = append(r.faults, &KeyError{ConfigMap: r.name, Key: key, Value: value, Reason: fmt.Sprintf(format, args...)})
}

// lookup finds key under its current name or, failing that, a legacy one. The current name wins
// when both are set.
func (r *reader) lookup(key string) (value, found string, ok bool) {
	if r.seen != nil {
		r.seen(key)
	}
	for _, name := range append([]string{key}, legacyNames(r.name, key)...) {
		if v, ok := r.data[name]; ok {
			return strings.TrimSpace(v), name, true
		}
	}
	return "", key, false
}

func (r *reader) text(key, def string) string {
	if v, _, ok := r.lookup(key); ok {
		return v
	}
	return def
}

// nonEmpty is text for keys where an empty value cannot be meant.
func (r *reader) nonEmpty(key, def string) string {
	v, name, ok := r.lookup(key)
	if !ok {
		return def
	}
	if v == "" {
		r.fault(name, v, "must not be empty")
		return def
	}
	return v
}

func (r *reader) boolean(key string, def bool) bool {
	v, name, ok := r.lookup(key)
	if !ok || v == "" {
		return def
	}
	b, err := strconv.ParseBool(strings.ToLower(v))
	if err != nil {
		r.fault(name, v, "%q is not a boolean, use \"true\" or \"false\"", v)
		return def
	}
	return b
}

func (r *reader) integer(key string, def, low, high int64) int64 {
	v, name, ok := r.lookup(key)
	if !ok {
		return def
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		r.fault(name, v, "%q is not a whole number", v)
		return def
	}
	if n < low || n > high {
		r.fault(name, v, "%d is out of bounds, expected %d to %d", n, low, high)
		return def
	}
	return n
}

func (r *reader) number(key string, def float64, legal func(float64) bool, expected string) float64 {
	v, name, ok := r.lookup(key)
	if !ok {
		return def
	}
	f, err := strconv.ParseFloat(v, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		r.fault(name, v, "%q is not a number", v)
		return def
	}
	if !legal(f) {
		r.fault(name, v, "%v is out of bounds, expected %s", f, expected)
		return def
	}
	return f
}

const forever = time.Duration(math.MaxInt64)

func (r *reader) duration(key string, def, low, high time.Duration, wholeSeconds bool) time.Duration {
	v, name, ok := r.lookup(key)
	if !ok {
		return def
	}
	d, err := time.ParseDuration(v)
	switch {
	case err != nil:
		r.fault(name, v, "%q is not a duration such as \"30s\" or \"2m\"", v)
	case d < low || d > high:
		if high == forever {
			r.fault(name, v, "%v is out of bounds, expected at least %v", d, low)
		} else {
			r.fault(name, v, "%v is out of bounds, expected %v to %v", d, low, high)
		}
	case wholeSeconds && d%time.Second != 0:
		r.fault(name, v, "%v is finer than a second, expected whole seconds", d)
	default:
		return d
	}
	return def
}

// oneOf takes one of a few words, upper or lower case.
func (r *reader) oneOf(key, def string, words ...string) string {
	v, name, ok := r.lookup(key)
	if !ok || v == "" {
		return def
	}
	for _, w := range words {
		if strings.EqualFold(v, w) {
			return w
		}
	}
	r.fault(name, v, "%q is not one of %s", v, strings.Join(words, ", "))
	return def
}

func (r *reader) quantity(key, def string) *resource.Quantity {
	v, name, ok := r.lookup(key)
	if !ok || v == "" {
		v = def
	}
	if v == "" {
		return nil
	}
	q, err := resource.ParseQuantity(v)
	if err != nil || q.Sign() < 0 {
		r.fault(name, v, "%q is not a resource quantity such as \"100m\" or \"200Mi\"", v)
		return nil
	}
	return &q
}

// list splits at commas; blanks around entries do not count, empty entries vanish.
func (r *reader) list(key string, def ...string) []string {
	v, _, ok := r.lookup(key)
	if !ok {
		return def
	}
	var out []string
	for _, s := range strings.Split(v, ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

var (
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	dnsDomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
)
