package revision

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

var update = flag.Bool("update", false, "write what is seen into testdata")

// TestTranslation turns each testdata/<case>.in.yaml, a Revision and the settings, into the
// Deployment and PodAutoscaler of <case>.out.yaml, twice, because a translator that depends on the
// order of a map restarts pods.
func TestTranslation(t *testing.T) {
	files, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".in.yaml"), func(t *testing.T) {
			first, second := translate(t, file), translate(t, file)
			if first != second {
				t.Fatalf("two translations differ:\n%s", cmp.Diff(first, second))
			}
			golden := strings.TrimSuffix(file, ".in.yaml") + ".out.yaml"
			if *update {
				if err := os.WriteFile(golden, []byte(first), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), first); diff != "" {
				t.Errorf("%s (-in file +seen; -update writes it):\n%s", golden, diff)
			}
		})
	}
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
