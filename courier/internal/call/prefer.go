package call

import (
	"strings"

	"ebb.dev/ebb/wire"
)

// WithoutRespondAsync returns the values of the header Prefer without wire.PreferAsync, so that the
// service does not call the courier again.
func WithoutRespondAsync(values []string) (kept []string) {
	for _, value := range values {
		var others []string
		for _, preference := range preferences(value) {
			if !isRespondAsync(preference) {
				others = append(others, preference)
			}
		}
		if len(others) > 0 {
			kept = append(kept, strings.Join(others, ", "))
		}
	}
	return kept
}

// isRespondAsync compares the token of a preference, which may have a value and parameters.
func isRespondAsync(preference string) bool {
	token, _, _ := strings.Cut(preference, ";")
	token, _, _ = strings.Cut(token, "=")
	return strings.EqualFold(strings.TrimSpace(token), wire.PreferAsync)
}

// preferences splits a value at its commas, except for those in quotes.
func preferences(value string) (out []string) {
	quoted, from := false, 0
	add := func(to int) {
		if one := strings.TrimSpace(value[from:to]); one != "" {
			out = append(out, one)
		}
	}
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted:
			add(i)
			from = i + 1
		}
	}
	add(len(value))
	return out
}
