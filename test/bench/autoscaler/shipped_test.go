package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The bar is 400 MiB with 10 000 revisions, of what is installed; the program's own text and stacks want some of it.
func TestTheBenchmarkRunsUnderTheMemoryLimitThatIsInstalled(t *testing.T) {
	manifest := filepath.Join("../../..", shipped)
	got, err := memoryLimit(manifest)
	if err != nil {
		t.Fatal(err)
	}
	limit, err := resource.ParseQuantity(strings.TrimSuffix(got, "B"))
	if err != nil || limit.Value() > 380<<20 || limit.Value() < 100<<20 {
		t.Errorf("GOMEMLIMIT %s in %s: %v", got, manifest, err)
	}
	// Another value in the file is another value here.
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "autoscaler.yaml")
	for value, want := range map[string]string{"123MiB": "123MiB", `""`: ""} {
		if err := os.WriteFile(other, []byte(strings.ReplaceAll(string(text), got, value)), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := memoryLimit(other); got != want || (err == nil) != (want != "") {
			t.Errorf("with %s in the file: %q, %v", value, got, err)
		}
	}
}
