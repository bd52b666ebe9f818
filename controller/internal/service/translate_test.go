package service

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/configuration"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/golden"
)

// Each testdata/*.in.yaml is a Service; beside it stand the Configuration and Route made of it, and
// the Revision of its template.
func TestTranslation(t *testing.T) {
	golden.Each(t, "testdata/*.in.yaml", func(t *testing.T, file, _ string) {
		golden.Twice(t, strings.TrimSuffix(file, ".in.yaml")+".out.yaml", func() string { return translate(t, file) })
	})
}

func translate(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	svc := &servingv1.Service{}
	if err := yaml.UnmarshalStrict(text, svc); err != nil {
		t.Fatal(err)
	}
	before := svc.DeepCopy()
	config := MakeConfiguration(svc)
	// What the API server adds.
	config.UID, config.Generation = "44444444-4444-4444-4444-444444444444", 3
	rev := configuration.MakeRevision(config, settings.Default().Rules(), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	var out []string
	for _, object := range []any{config, MakeRoute(svc), rev} {
		part, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(part))
	}
	if diff := cmp.Diff(before, svc); diff != "" {
		t.Errorf("the Service was changed: %s", diff)
	}
	return strings.Join(out, "---\n")
}
