package names

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/rules"
)

// Bounds of the annotations of Cold.
const (
	// MaxPageBytes is the length of a waiting page.
	MaxPageBytes = 16 << 10
	// MaxPatterns is how many paths, or user agents, never wake a revision; MaxPatternBytes is
	// the length of one.
	MaxPatterns     = 32
	MaxPatternBytes = 128
	// MaxColdWait bounds the waits.
	MaxColdWait = time.Hour

	DefaultPageAfter     = 2 * time.Second
	DefaultFallbackAfter = 5 * time.Second
)

// Cold is what a Revision means for requests that find no pod.
type Cold struct {
	// Page is the waiting page. If it stands in a ConfigMap, PageFrom says where, and Page is "".
	Page     string
	PageFrom ConfigMapKey
	// PageAfter is how long a browser waits before it gets the page, PageStatus with which status.
	PageAfter  time.Duration
	PageStatus int
	// Fallback is the Service that gets requests which have waited for FallbackAfter; "" is none.
	Fallback      string
	FallbackAfter time.Duration
	// NeverWake are requests that wake no pod, and NeverWakeStatus is their answer.
	NeverWakePaths  []PathPattern
	NeverWakeAgents []string
	NeverWakeStatus int
	// MaxWaiting is how many requests may wait in one activator, MaxWait how long one may; 0 is no
	// limit of the revision's.
	MaxWaiting int64
	MaxWait    time.Duration
}

// ConfigMapKey is a key of a ConfigMap in the same namespace. The zero value is none.
type ConfigMapKey struct{ Name, Key string }

func (k ConfigMapKey) String() string { return k.Name + "/" + k.Key }

// PathPattern is a path, with at most one "*" that stands for any text, also an empty one. So it
// takes one pass to match, whatever the path.
type PathPattern struct {
	before, after string
	open          bool // there is a "*" between before and after
}

// Match reports whether the pattern is that of the path.
func (p PathPattern) Match(path string) bool {
	if !p.open {
		return path == p.before
	}
	return len(path) >= len(p.before)+len(p.after) && strings.HasPrefix(path, p.before) && strings.HasSuffix(path, p.after)
}

func (p PathPattern) String() string {
	if p.open {
		return p.before + "*" + p.after
	}
	return p.before
}

// coldKeys are the annotations of Cold.
var coldKeys = []string{WaitingPageAnnotation, WaitingPageFromAnnotation, WaitingPageAfterAnnotation, WaitingPageStatusAnnotation,
	FallbackServiceAnnotation, FallbackAfterAnnotation, NeverWakePathsAnnotation, NeverWakeAgentsAnnotation, NeverWakeStatusAnnotation,
	MaxWaitingAnnotation, MaxWaitAnnotation}

// IsCold reports whether an annotation is one of Cold. Activators read them on the Revision; its
// children have them not.
func IsCold(key string) bool { return slices.Contains(coldKeys, key) }

// cold reads what is to happen while a revision has no pod.
func (r *reader) cold(d *rules.Defaults) Cold {
	c := Cold{
		Page:            r.page(),
		PageFrom:        r.configMapKey(WaitingPageFromAnnotation),
		PageAfter:       r.coldWait(WaitingPageAfterAnnotation, DefaultPageAfter),
		PageStatus:      r.status(WaitingPageStatusAnnotation, 503, 200),
		Fallback:        r.service(FallbackServiceAnnotation),
		FallbackAfter:   r.coldWait(FallbackAfterAnnotation, DefaultFallbackAfter),
		NeverWakePaths:  r.paths(NeverWakePathsAnnotation),
		NeverWakeAgents: r.agents(NeverWakeAgentsAnnotation, d.NeverWakeAgents),
		NeverWakeStatus: r.status(NeverWakeStatusAnnotation, 503, 404, 204),
		MaxWaiting:      d.MaxWaiting,
		MaxWait:         r.coldWait(MaxWaitAnnotation, d.MaxWait),
	}
	if n := r.int32(MaxWaitingAnnotation); n != nil {
		c.MaxWaiting = int64(*n)
	}
	if c.Page != "" && c.PageFrom != (ConfigMapKey{}) {
		r.fail(apis.ErrMultipleOneOf(WaitingPageAnnotation, WaitingPageFromAnnotation))
		c.PageFrom = ConfigMapKey{}
	}
	for key, needs := range map[string][]string{
		WaitingPageAfterAnnotation:  {WaitingPageAnnotation, WaitingPageFromAnnotation},
		WaitingPageStatusAnnotation: {WaitingPageAnnotation, WaitingPageFromAnnotation},
		FallbackAfterAnnotation:     {FallbackServiceAnnotation},
	} {
		if _, given := r.annotations[key]; given && !slices.ContainsFunc(needs, func(n string) bool { _, ok := r.annotations[n]; return ok }) {
			r.fail(apis.ErrGeneric("has no effect without "+strings.Join(needs, " or "), key))
		}
	}
	return c
}

// ValidateFallback refuses a Service that falls back to itself.
func ValidateFallback(annotations map[string]string, service string) *apis.FieldError {
	if name := annotations[FallbackServiceAnnotation]; name != "" && name == service {
		return apis.ErrInvalidValue(name, FallbackServiceAnnotation, "must be another Service")
	}
	return nil
}

func (r *reader) page() string {
	text, given := r.annotations[WaitingPageAnnotation]
	if !given {
		return ""
	}
	if text == "" || len(text) > MaxPageBytes {
		r.fail(&apis.FieldError{Message: fmt.Sprintf("the page has %d bytes, expected 1 to %d", len(text), MaxPageBytes),
			Paths: []string{WaitingPageAnnotation}})
		return ""
	}
	return text
}

func (r *reader) configMapKey(key string) ConfigMapKey {
	text, given := r.annotations[key]
	if !given {
		return ConfigMapKey{}
	}
	name, item, ok := strings.Cut(text, "/")
	if !ok || len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsConfigMapKey(item)) > 0 {
		r.fail(apis.ErrInvalidValue(shortened(text), key, "must be CONFIGMAP/KEY, of a ConfigMap in the same namespace"))
		return ConfigMapKey{}
	}
	return ConfigMapKey{name, item}
}

func (r *reader) service(key string) string {
	text, given := r.annotations[key]
	if !given {
		return ""
	}
	if len(validation.IsDNS1035Label(text)) > 0 {
		r.fail(apis.ErrInvalidValue(shortened(text), key, "must be the name of a Service in the same namespace"))
		return ""
	}
	return text
}

// coldWait reads a duration that has a default.
func (r *reader) coldWait(key string, otherwise time.Duration) time.Duration {
	if d := r.duration(key); d != nil {
		return *d
	}
	return otherwise
}

// status reads one of some statuses; the first one is the default.
func (r *reader) status(key string, allowed ...int) int {
	text, given := r.annotations[key]
	if !given {
		return allowed[0]
	}
	for _, status := range allowed {
		if text == fmt.Sprint(status) {
			return status
		}
	}
	r.fail(apis.ErrInvalidValue(shortened(text), key, "must be one of "+strings.Trim(fmt.Sprint(allowed), "[]")))
	return allowed[0]
}

func (r *reader) paths(key string) (patterns []PathPattern) {
	for _, text := range r.patterns(key) {
		before, after, open := strings.Cut(text, "*")
		switch {
		case strings.Contains(after, "*"):
			r.fail(apis.ErrInvalidValue(text, key, `must have at most one "*"`))
		case text[0] != '/' && text[0] != '*':
			r.fail(apis.ErrInvalidValue(text, key, `must begin with "/" or "*"`))
		case strings.ContainsAny(text, "?#"):
			r.fail(apis.ErrInvalidValue(text, key, "must be a path, without a query"))
		default:
			patterns = append(patterns, PathPattern{before, after, open})
		}
	}
	return patterns
}

func (r *reader) agents(key string, otherwise []string) []string {
	if _, given := r.annotations[key]; !given {
		return otherwise
	}
	return append([]string{}, r.patterns(key)...)
}

func (r *reader) patterns(key string) []string {
	patterns, err := ParsePatterns(r.annotations[key])
	if err != nil {
		r.fail(apis.ErrGeneric(err.Error(), key))
	}
	return patterns
}

// ParsePatterns reads a list that is separated by commas or lines, of at most MaxPatterns entries
// of at most MaxPatternBytes visible ASCII characters and spaces each.
func ParsePatterns(text string) (patterns []string, err error) {
	for one := range strings.FieldsFuncSeq(text, func(c rune) bool { return c == ',' || c == '\n' }) {
		one = strings.TrimSpace(one)
		switch {
		case one == "":
			continue
		case len(patterns) == MaxPatterns:
			return nil, fmt.Errorf("has more than %d entries", MaxPatterns)
		case len(one) > MaxPatternBytes:
			return nil, fmt.Errorf("%q has more than %d characters", shortened(one), MaxPatternBytes)
		case strings.ContainsFunc(one, func(c rune) bool { return c < ' ' || c > '~' }):
			return nil, fmt.Errorf("%q has other characters than visible ASCII", shortened(one))
		}
		patterns = append(patterns, one)
	}
	return patterns, nil
}

// shortened keeps a message from repeating what may be long.
func shortened(text string) string {
	if len(text) > MaxPatternBytes {
		return text[:MaxPatternBytes] + "..."
	}
	return text
}
