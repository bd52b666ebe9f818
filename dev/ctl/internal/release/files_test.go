package release

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func TestArchivesHoldTheirFilesAndEqualFilesGiveEqualBytes(t *testing.T) {
	files := map[string]File{"kubectl-ebb": {[]byte("program"), 0o755}, "LICENSE": {[]byte("text"), 0o644}}
	for name, pack := range map[string]func(map[string]File, time.Time) ([]byte, error){"tar.gz": TarGz, "zip": Zip} {
		first, err := pack(files, noon)
		if err != nil {
			t.Fatal(err)
		}
		second, err := pack(map[string]File{"LICENSE": files["LICENSE"], "kubectl-ebb": files["kubectl-ebb"]}, noon)
		if err != nil || !bytes.Equal(first, second) {
			t.Errorf("%s: two runs differ, %v", name, err)
		}
		var got map[string]File
		if name == "zip" {
			got = unzip(t, first)
		} else {
			got = untar(t, first)
		}
		if len(got) != 2 || string(got["kubectl-ebb"].Content) != "program" || got["kubectl-ebb"].Mode != 0o755 || got["LICENSE"].Mode != 0o644 {
			t.Errorf("%s: unpacked %v", name, got)
		}
	}
}

func untar(t *testing.T, archive []byte) map[string]File {
	t.Helper()
	zipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	r, files := tar.NewReader(zipped), map[string]File{}
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = File{content, h.FileInfo().Mode()}
	}
}

func unzip(t *testing.T, archive []byte) map[string]File {
	t.Helper()
	r, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]File{}
	for _, f := range r.File {
		part, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(part)
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name] = File{content, f.Mode()}
	}
	return files
}

func TestManifestsAndChartAreTheSameInEachRun(t *testing.T) {
	var runs [2][]byte
	for i := range runs {
		m, err := render(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		text, err := YAML("Ebb", append(m.Default, m.HA...))
		if err != nil {
			t.Fatal(err)
		}
		chart, err := MakeChart(m, "v0.1.0", registry)
		if err != nil {
			t.Fatal(err)
		}
		archive, err := chart.Archive(noon)
		if err != nil {
			t.Fatal(err)
		}
		if len(untar(t, archive)) != len(chart) {
			t.Errorf("the archive has not all files of the chart")
		}
		runs[i] = append(text, archive...)
	}
	if !bytes.Equal(runs[0], runs[1]) {
		t.Error("two runs differ")
	}
}

func TestHighAvailabilityLetsADrainPassAndSurvivesIt(t *testing.T) {
	replicas, budgets := map[string]any{}, map[string]bool{}
	m := rendered(t)
	for _, o := range m.HA {
		spec, _ := o["spec"].(map[string]any)
		switch o.Kind() {
		case "Deployment":
			if replicas[o.Name()] == nil {
				replicas[o.Name()] = spec["replicas"]
			}
			text, err := YAML("", []Object{o})
			if err != nil || strings.Count(string(text), "topologyKey: kubernetes.io/hostname") < 1 || !strings.Contains(string(text), "whenUnsatisfiable: DoNotSchedule") {
				t.Errorf("the pods of %s are not spread, %v", o.Name(), err)
			}
		case "HorizontalPodAutoscaler":
			replicas[Object(spec).text("scaleTargetRef", "name")] = spec["minReplicas"]
		}
	}
	for _, objects := range [][]Object{m.Default, m.HA} {
		for _, o := range objects {
			if o.Kind() != "PodDisruptionBudget" {
				continue
			}
			spec := o["spec"].(map[string]any)
			if spec["minAvailable"] != nil || spec["maxUnavailable"] == nil {
				t.Errorf("the budget of %s may block a drain: %v", o.Name(), spec)
			}
			budgets[o.Name()] = true
		}
	}
	for _, name := range []string{"activator", "autoscaler", "controller", "webhook"} {
		if n := replicas[name]; n != float64(3) && n != int64(3) {
			t.Errorf("%s has %v replicas", name, n)
		}
		if !budgets[name] {
			t.Errorf("%s has no budget", name)
		}
	}
}

func TestAVersionIsOneThatHelmAndLabelsTake(t *testing.T) {
	for version, ok := range map[string]bool{"v0.1.0": true, "v1.2.3-rc.1": true, "": false, "0.1.0": false, "v1": false, "v01.0.0": false, "v1.0.0+a": false, "v1.0.0 ": false} {
		if err := CheckVersion(version); (err == nil) != ok {
			t.Errorf("%q: %v", version, err)
		}
	}
}

func TestNotesAreTheSectionOfTheVersion(t *testing.T) {
	const changelog = "# Changelog\n\nText.\n\n## Unreleased\n\n### Added\n\n- new, see [docs/x.md](docs/x.md) and [a page](https://example.com)\n\n## v0.1.0 - 2026-01-02\n\n- old\n"
	for version, want := range map[string]string{"v0.1.0": "# Ebb v0.1.0\n\n- old\n", "v0.2.0": "# Ebb v0.2.0\n\n### Added\n\n- new, see docs/x.md and [a page](https://example.com)\n"} {
		if got, err := Notes(changelog, version); err != nil || got != want {
			t.Errorf("%s: %q, %v", version, got, err)
		}
	}
	if _, err := Notes("# Changelog\n", "v0.1.0"); err == nil {
		t.Error("a changelog without sections makes notes")
	}
}

func TestSumsAreThoseThatSha256sumChecks(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Sums(dir); err != nil {
		t.Fatal(err)
	}
	check := exec.Command("sha256sum", "--strict", "-c", "SHA256SUMS")
	check.Dir = dir
	if out, err := check.CombinedOutput(); err != nil || !strings.Contains(string(out), "a/file: OK") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestTheBillNamesTheModulesOfAProgram(t *testing.T) {
	status := t.TempDir()
	if err := os.WriteFile(filepath.Join(status, "libc6"), []byte("Package: libc6\nVersion: 2.36-9+deb12u1\nArchitecture: amd64\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bill := NewBill("v0.1.0")
	if err := errors.Join(bill.Program("helm", helmProgram(t)), bill.Debian("base", status), bill.Python("sample", "../../../../samples/hello-python/requirements.txt")); err != nil {
		t.Fatal(err)
	}
	text, err := bill.JSON()
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		BOMFormat    string
		Components   []struct{ Purl string }
		Dependencies []struct {
			Ref       string
			DependsOn []string
		}
	}
	if err := json.Unmarshal(text, &read); err != nil || read.BOMFormat != "CycloneDX" || len(read.Dependencies) != 3 {
		t.Fatalf("%v: %s", err, text)
	}
	for _, want := range []string{"pkg:golang/helm.sh/helm/v4@v4.", "pkg:golang/std@1.", "pkg:deb/debian/libc6@2.36-9%2Bdeb12u1?arch=amd64", "pkg:pypi/gunicorn@"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("the bill lacks %s", want)
		}
	}
	if err := bill.Debian("empty", t.TempDir()); err == nil {
		t.Error("an image without packages is in the bill")
	}
	if err := bill.Program("text", filepath.Join(status, "libc6")); err == nil {
		t.Error("a file that is no program is in the bill")
	}
}
