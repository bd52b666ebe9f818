package clusterdomain

import (
	"strings"
	"testing"
)

func TestTheDomainFollowsSvcInTheSearchList(t *testing.T) {
	for configuration, want := range map[string]string{
		"search knative-serving.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\n": "cluster.local",
		"nameserver 10.0.0.1\nsearch ns.svc.example.org svc.example.org. example.org":                       "example.org",
		"search example.org":   "of.the.environment",
		"":                     "of.the.environment",
		"search svc.":          "of.the.environment",
		"# search svc.a.b\n\n": "of.the.environment",
	} {
		if got := Parse(strings.NewReader(configuration), "of.the.environment"); got != want {
			t.Errorf("%q: %q, want %q", configuration, got, want)
		}
	}
}
