package v1

import (
	"encoding/json"
	"testing"

	"ebb.dev/ebb/api/rules"
)

// FuzzTraffic: whatever stands in a traffic block, defaulting is done with it at once, and what
// passes adds up to 100 percent with no tag twice and each target naming exactly one thing.
func FuzzTraffic(f *testing.F) {
	for _, seed := range []string{
		`[]`, `[{"percent":100,"latestRevision":true}]`, `[{"percent":50,"revisionName":"a-1","tag":"x"},{"percent":50,"configurationName":"a"}]`,
		`[{"percent":-1},{"percent":101}]`, `[{"percent":9223372036854775807,"revisionName":"a"},{"percent":9223372036854775807,"revisionName":"b"}]`,
		`[{"percent":100,"revisionName":"a","latestRevision":true}]`, `[{"tag":"A"},{"tag":"A"}]`, `[{"url":"http://x"}]`,
		`[{"percent":100,"revisionName":"a","configurationName":"b"}]`, `null`, `[{"percent":null,"tag":"queue-proxy.."}]`,
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, raw []byte, service bool) {
		var targets []TrafficTarget
		if json.Unmarshal(raw, &targets) != nil || len(targets) > 1000 {
			return
		}
		place := trafficPlace(service)
		request := rules.Request[Route]{Config: &rules.Config{}, Operation: rules.Create}
		route := &Route{Spec: RouteSpec{Traffic: targets}}
		route.SetDefaults(request)
		before, err := json.Marshal(route)
		if err != nil {
			return // a URL that JSON cannot hold
		}
		route.SetDefaults(request)
		if after, err := json.Marshal(route); err != nil || string(after) != string(before) {
			t.Fatalf("defaults upon defaults change %s to %s (%v)", before, after, err)
		}
		if validateTraffic(route.Spec.Traffic, place) != nil || len(route.Spec.Traffic) == 0 {
			return
		}
		sum, tags := int64(0), map[string]bool{}
		for _, target := range route.Spec.Traffic {
			if *target.Percent < 0 || *target.Percent > 100 || target.URL != nil {
				t.Errorf("passed: %+v", target)
			}
			if *target.LatestRevision != (target.RevisionName == "") || place == inService && target.ConfigurationName != "" ||
				place == inRoute && (target.RevisionName == "") == (target.ConfigurationName == "") {
				t.Errorf("a target that does not name exactly one thing passed: %+v", target)
			}
			if tags[target.Tag] && target.Tag != "" {
				t.Errorf("tag %q passed twice", target.Tag)
			}
			tags[target.Tag] = true
			sum += *target.Percent
		}
		if sum != 100 {
			t.Errorf("a sum of %d passed: %s", sum, before)
		}
	})
}
