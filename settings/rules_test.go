package settings

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
)

// The keys of feature flags are spelt in one table. Every row has a key of its own and what
// docs/settings.md says of it.
func TestEveryFeatureFlagIsDocumentedOnce(t *testing.T) {
	seen := map[rules.FlagKey]bool{}
	for _, row := range rules.FeatureTable {
		if seen[row.Key] || row.Effect == "" || row.Default == "" {
			t.Errorf("flag %s is listed twice, or has no default or effect", row.Key)
		}
		seen[row.Key] = true
	}
	if got := len(Default().Rules().Features); got != len(seen) {
		t.Errorf("rules get %d flags, want %d", got, len(seen))
	}
}

// A default of an annotation that names a setting names one that exists.
func TestAnnotationsNameSettingsThatExist(t *testing.T) {
	keys := map[string]bool{}
	for _, one := range sections(&Snapshot{}) {
		for _, k := range one.keys {
			keys[fmt.Sprintf("`%s` in %s", k.name, one.name)] = true
		}
	}
	named := regexp.MustCompile("`[a-z.-]+` (or `[a-z.-]+` )?in config-[a-z-]+")
	found := 0
	for _, a := range names.Annotations {
		for _, text := range named.FindAllString(a.Default+" "+a.Effect, -1) {
			keysOf, config, _ := strings.Cut(text, " in ")
			for _, key := range strings.Split(keysOf, " or ") {
				found++
				if !keys[key+" in "+config] {
					t.Errorf("%s: there is no setting %s in %s", a.Key, key, config)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d settings were found", found)
	}
}
