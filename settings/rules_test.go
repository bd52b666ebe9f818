package settings

import (
	"testing"

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
	if got := len(Default().Rules("cluster.local").Features); got != len(seen) {
		t.Errorf("rules get %d flags, want %d", got, len(seen))
	}
}
