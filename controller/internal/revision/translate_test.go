package revision

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/golden"
)

// TestTranslation turns each testdata/<case>.in.yaml, a Revision and the settings, into the
// Deployment and PodAutoscaler of <case>.out.yaml, twice, because a translator that depends on the
// order of a map restarts pods.
func TestTranslation(t *testing.T) {
	golden.Each(t, "testdata/*.in.yaml", func(t *testing.T, file, _ string) {
		golden.Twice(t, strings.TrimSuffix(file, ".in.yaml")+".out.yaml", func() string { return translate(t, file) })
	})
}

func translate(t *testing.T, file string) string {
	t.Helper()
	rev, in := readCase(t, file)
	d, err := MakeDeployment(rev, 1, in)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for i, object := range []any{d, MakePodAutoscaler(rev, reachability(rev, false))} {
		if i > 0 {
			out.WriteString("---\n")
		}
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(text)
	}
	return out.String()
}

func readCase(t *testing.T, file string) (*servingv1.Revision, Inputs) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	manifest, config, _ := strings.Cut(string(text), "\n---\n")
	rev := &servingv1.Revision{}
	if err := yaml.UnmarshalStrict([]byte(manifest), rev); err != nil {
		t.Fatal(err)
	}
	maps := map[string]map[string]string{}
	if err := yaml.UnmarshalStrict([]byte(config), &maps); err != nil {
		t.Fatal(err)
	}
	if maps["config-deployment"] == nil {
		maps["config-deployment"] = map[string]string{}
	}
	maps["config-deployment"]["queue-sidecar-image"] = "dev.local/queue-proxy:1"
	s, err := settings.Parse(maps)
	if err != nil {
		t.Fatal(err)
	}
	return rev, Inputs{Settings: s, SystemNamespace: "knative-serving", ClusterDomain: "cluster.local",
		TLS: s.Network.SystemInternalTLS, KeyName: "0a1b2c3d"}
}
