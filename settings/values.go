package settings

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
)

// value parses the text of a key into a field of the Snapshot. An error leaves the field as it was.
type value struct {
	legal  string // the legal values, for people
	blank  bool   // an empty text means the default
	legacy []string
	set    func(text string) error
	each   func(wildcard, text string) error // of a key whose name is a pattern
}

// says replaces the description of the legal values, note adds to it.
func (v value) says(legal string) value     { v.legal = legal; return v }
func (v value) note(more string) value      { return v.says(v.legal + "; " + more) }
func (v value) older(names ...string) value { v.legacy = names; return v }
func (v value) orBlank() value              { v.blank = true; return v }

func text(to *string, legal string, ok func(string) bool) value {
	return value{legal: legal, set: func(s string) error {
		if ok != nil && !ok(s) {
			return fmt.Errorf("%q is invalid, expected %s", s, legal)
		}
		*to = s
		return nil
	}}
}

func nonEmpty(to *string) value { return text(to, "not empty", func(s string) bool { return s != "" }) }

func boolean(to *bool) value {
	return value{legal: "true or false", blank: true, set: func(s string) error {
		b, err := strconv.ParseBool(strings.ToLower(s))
		if err != nil {
			return fmt.Errorf("%q is not a boolean, use \"true\" or \"false\"", s)
		}
		*to = b
		return nil
	}}
}

// optional is a boolean that any other word leaves unset.
func optional(to **bool) value {
	return value{legal: "true or false; any other value leaves the field unset", set: func(s string) error {
		*to = nil
		if s = strings.ToLower(s); s == "true" || s == "false" {
			*to = new(s == "true")
		}
		return nil
	}}
}

func whole[T int32 | int64 | uint32](to *T, low, high int64) value {
	legal := fmt.Sprintf("%d to %d", low, high)
	if high == math.MaxInt32 {
		legal = fmt.Sprintf("%d or more", low)
	}
	return value{legal: legal, set: func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		switch {
		case err != nil:
			return fmt.Errorf("%q is not a whole number", s)
		case n < low || n > high:
			return fmt.Errorf("%d is out of bounds, expected %s", n, legal)
		}
		*to = T(n)
		return nil
	}}
}

// seconds is a duration that is written as a whole number.
func seconds(to *time.Duration) value {
	var n int64
	v := whole(&n, 0, math.MaxInt32)
	return value{legal: "whole seconds, 0 or more", set: func(s string) error {
		err := v.set(s)
		*to = time.Duration(n) * time.Second
		return err
	}}
}

// interval says which numbers are legal.
type interval struct {
	legal string
	holds func(float64) bool
}

func above(low float64) interval {
	return interval{fmt.Sprintf("more than %v", low), func(f float64) bool { return f > low }}
}

func least(low float64) interval {
	return interval{fmt.Sprintf("at least %v", low), func(f float64) bool { return f >= low }}
}

func between(low, high float64) interval {
	return interval{fmt.Sprintf("%v to %v", low, high), func(f float64) bool { return f >= low && f <= high }}
}

func number(to *float64, in interval) value {
	return value{legal: in.legal, set: func(s string) error {
		f, err := strconv.ParseFloat(s, 64)
		switch {
		case err != nil || math.IsNaN(f) || math.IsInf(f, 0):
			return fmt.Errorf("%q is not a number", s)
		case !in.holds(f):
			return fmt.Errorf("%v is out of bounds, expected %s", f, in.legal)
		}
		*to = f
		return nil
	}}
}

const forever = time.Duration(math.MaxInt64)

// duration takes multiples of unit, of low to high.
func duration(to *time.Duration, low, high, unit time.Duration) value {
	short := func(d time.Duration) string {
		return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.String())
	}
	legal := "0 or more"
	switch {
	case high != forever:
		legal = short(low) + " to " + short(high)
	case low == 1:
		legal = "more than 0"
	case low > 1:
		legal = short(low) + " or more"
	}
	if unit == time.Second {
		legal += ", whole seconds"
	}
	return value{legal: legal, set: func(s string) error {
		d, err := time.ParseDuration(s)
		switch {
		case err != nil:
			return fmt.Errorf("%q is not a duration such as \"30s\" or \"2m\"", s)
		case d < low || d > high || d%unit != 0:
			return fmt.Errorf("%v is out of bounds, expected %s", d, legal)
		}
		*to = d
		return nil
	}}
}

// orDisabled also takes the word disabled, which is nil.
func orDisabled[T any](to **T, of func(*T) value) value {
	var held T
	v := of(&held)
	return value{legal: v.legal + ", or disabled", set: func(s string) error {
		if strings.EqualFold(s, "disabled") {
			*to = nil
			return nil
		}
		if err := v.set(s); err != nil {
			return err
		}
		*to = new(held)
		return nil
	}}
}

// word takes one of a few words, upper or lower case.
func word[T ~string](to *T, words ...T) value {
	all := make([]string, len(words))
	for i, w := range words {
		all[i] = string(w)
	}
	last := len(all) - 1
	return value{legal: strings.Join(all[:last], ", ") + " or " + all[last], blank: true, set: func(s string) error {
		for _, w := range words {
			if strings.EqualFold(s, string(w)) {
				*to = w
				return nil
			}
		}
		return fmt.Errorf("%q is not one of %s", s, strings.Join(all, ", "))
	}}
}

// choice takes the words off and on, and further words that mean the same in turn.
func choice(to *bool, off, on string, more ...string) value {
	var held string
	words := append([]string{off, on}, more...)
	v := word(&held, words...)
	return value{legal: off + " or " + on, blank: true, set: func(s string) error {
		if err := v.set(s); err != nil {
			return err
		}
		*to = slices.Index(words, held)%2 == 1
		return nil
	}}
}

func enabled(to *bool) value { return choice(to, "disabled", "enabled").says("enabled or disabled") }

// onOff also takes true and false, as the oldest names of its keys did.
func onOff(to *bool) value {
	return choice(to, "disabled", "enabled", "false", "true").says("Enabled or Disabled")
}

func quantity(list *corev1.ResourceList, name corev1.ResourceName) value {
	return value{legal: "resource quantity", blank: true, set: func(s string) error {
		q, err := resource.ParseQuantity(s)
		if err != nil || q.Sign() < 0 {
			return fmt.Errorf("%q is not a resource quantity such as \"100m\" or \"200Mi\"", s)
		}
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[name] = q
		return nil
	}}
}

// maxCPU bounds a number of CPUs, so that it can be counted in thousandths.
var maxCPU = resource.MustParse("1M")

// milliCPU is a quantity of CPU, in thousandths.
func milliCPU(to *int64) value {
	return value{legal: "quantity of CPU such as 1 or 500m", set: func(s string) error {
		q, err := resource.ParseQuantity(s)
		if err != nil || q.Sign() < 0 || q.Cmp(maxCPU) > 0 {
			return fmt.Errorf("%q is not a quantity of CPU such as \"1\" or \"500m\"", s)
		}
		*to = q.MilliValue()
		return nil
	}}
}

// split splits at commas; blanks around entries do not count, empty entries vanish.
func split(text string) []string {
	var all []string
	for _, s := range strings.Split(text, ",") {
		if s = strings.TrimSpace(s); s != "" {
			all = append(all, s)
		}
	}
	return all
}

// words takes a set of words, which it sorts.
func words(to *[]string, legal string) value {
	return value{legal: legal, set: func(s string) error {
		*to = sorted(split(s))
		return nil
	}}
}

// patterns takes a list that names.ParsePatterns reads.
func patterns(to *[]string) value {
	return value{legal: fmt.Sprintf("at most %d comma-separated texts of at most %d characters", names.MaxPatterns, names.MaxPatternBytes),
		set: func(s string) (err error) {
			*to, err = names.ParsePatterns(s)
			return err
		}}
}

// joined takes words in an order that counts.
func joined(to *string) value {
	return value{legal: "comma-separated names", set: func(s string) error {
		*to = strings.Join(split(s), ",")
		return nil
	}}
}

func sorted(s []string) []string {
	s = slices.Clone(s)
	slices.Sort(s)
	return slices.Compact(s)
}

// structured takes a text of several values. An empty one means the default.
func structured(legal string, set func(string) error) value {
	return value{legal: legal, blank: true, set: set}
}

// each takes the keys that match a pattern.
func each(legal string, set func(wildcard, text string) error) value {
	return value{legal: legal, each: set}
}

// unmarshal reads strict YAML. form says how it should look.
func unmarshal(text string, into any, form string) error {
	if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
		return fmt.Errorf("is not %s: %w", form, err)
	}
	return nil
}

var (
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	dnsDomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	// gaps are the places in a host name where a value was missing.
	gaps = regexp.MustCompile(`([-.])[-.]+`)
)

// hostTemplate takes a Go template that must give a legal name for a sample.
func hostTemplate(to *Template, sample any, ok func(string) bool, legal string) value {
	return value{legal: legal, set: func(s string) error {
		t, err := rules.NewTemplate(s)
		if err != nil {
			return fmt.Errorf("is not a Go template: %w", err)
		}
		result, err := t.Expand(sample)
		switch {
		case err != nil:
			return fmt.Errorf("cannot be applied: %w", err)
		case !ok(result):
			return fmt.Errorf("gives %q, expected %s", result, legal)
		}
		*to = t
		return nil
	}}
}

// name takes the template of a container's name.
func name(to *Template) value {
	return hostTemplate(to, metav1.ObjectMeta{Name: "name", Namespace: "namespace"},
		func(s string) bool { return len(s) <= 63 && dnsLabel.MatchString(s) },
		"Go template over the object's metadata that gives a DNS label")
}

// domainSample has no annotations and labels, so a template may need them to make a whole name.
// isDomain rejects only what no value can mend.
var domainSample = DomainValues{Name: "name", Namespace: "namespace", Domain: "example.com",
	Annotations: map[string]string{}, Labels: map[string]string{}}

func isDomain(s string) bool {
	return dnsDomain.MatchString(gaps.ReplaceAllString(strings.Trim(s, ".-"), "$1"))
}

// setRequestLog takes the template of a request log line.
func (o *Observability) setRequestLog(text string) error {
	if _, err := template.New("request log").Parse(text); err != nil {
		return fmt.Errorf("is not a Go template: %w", err)
	}
	o.RequestLogTemplate = text
	return nil
}
