package settings

import (
	"testing"

	"ebb.dev/ebb/api/rules"
)

func TestRulesCarryEveryFlagAndTheSameDefaults(t *testing.T) {
	config := Default().Rules("cluster.local")
	if config.Features != rules.DefaultFeatures() {
		t.Errorf("default flags differ: %+v", config.Features)
	}
	keys := map[rules.FlagKey]bool{}
	for _, f := range config.Features.Fields() {
		keys[f.Key] = true
	}
	all := Default()
	for _, row := range all.Features.flags() {
		if !keys[rules.FlagKey(row.key)] {
			t.Errorf("api does not know %s", row.key)
		}
		*row.flag = Allowed
	}
	if len(keys) != len(all.Features.flags()) {
		t.Errorf("api knows %d flags, settings %d", len(keys), len(all.Features.flags()))
	}
	allowed := all.Rules("cluster.local").Features
	for _, f := range allowed.Fields() {
		if *f.Value != rules.Allowed {
			t.Errorf("%s did not arrive: %q", f.Key, *f.Value)
		}
	}
}
