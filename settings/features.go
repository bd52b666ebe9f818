package settings

import (
	"strings"

	"ebb.dev/ebb/api/rules"
)

// readFeatures ignores words that it does not know, as the contract says: such a flag keeps its
// default.
func readFeatures(r *reader) rules.Features {
	f := rules.DefaultFeatures()
	for key := range f {
		words := []rules.Flag{rules.Enabled, rules.Allowed, rules.Disabled}
		if key == rules.KeySecurePodDefaults {
			words = append(words, rules.AllowRootBounded)
		}
		for _, word := range words {
			if strings.EqualFold(r.text(string(key), ""), string(word)) {
				f[key] = word
			}
		}
	}
	return f
}
