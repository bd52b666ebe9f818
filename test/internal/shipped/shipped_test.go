package shipped

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The autoscaler's goal is 400 MiB with 10 000 revisions, as installed; the program's text and
// stacks need some of it. The activator's limit is that of its container.
func TestBenchmarksRunUnderTheMemoryLimitThatIsInstalled(t *testing.T) {
	for name, least := range map[string]int64{Autoscaler: 100 << 20, Activator: 400 << 20, Courier: 400 << 20} {
		most := map[string]int64{Autoscaler: 380 << 20, Activator: 780 << 20, Courier: 780 << 20}[name]
		manifest := filepath.Join("../../..", name)
		got, err := MemoryLimit(manifest)
		if err != nil {
			t.Fatal(err)
		}
		limit, err := resource.ParseQuantity(strings.TrimSuffix(got, "B"))
		if err != nil || limit.Value() > most || limit.Value() < least {
			t.Errorf("GOMEMLIMIT %s in %s: %v", got, manifest, err)
		}
		// A changed value in the file changes the result.
		text, err := os.ReadFile(manifest)
		if err != nil {
			t.Fatal(err)
		}
		other := filepath.Join(t.TempDir(), "other.yaml")
		for value, want := range map[string]string{"123MiB": "123MiB", `""`: ""} {
			if err := os.WriteFile(other, []byte(strings.ReplaceAll(string(text), got, value)), 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := MemoryLimit(other); got != want || (err == nil) != (want != "") {
				t.Errorf("%s with %s in the file: %q, %v", name, value, got, err)
			}
		}
	}
}

func TestAContainersMemoryIsAboveItsGOMEMLIMIT(t *testing.T) {
	for _, name := range []string{Autoscaler, Activator, Courier} {
		manifest := filepath.Join("../../..", name)
		soft, err := MemoryLimit(manifest)
		if err != nil {
			t.Fatal(err)
		}
		limit, err := resource.ParseQuantity(strings.TrimSuffix(soft, "B"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ContainerMemory(manifest); err != nil || got <= limit.Value() {
			t.Errorf("%s: a container of %d bytes for GOMEMLIMIT %s: %v", name, got, soft, err)
		}
	}
}
