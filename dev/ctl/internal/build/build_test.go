package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func module(t *testing.T, files map[string]string) Module {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Module{Name: "x", Dir: dir}
}

func TestIDFollowsTheContentAndNothingElse(t *testing.T) {
	id := func(m Module) string {
		t.Helper()
		id, err := m.ID(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	files := map[string]string{"go.mod": "module x\n", "go.sum": "", "main.go": "package main\n\nfunc main() {}\n"}
	base := module(t, files)
	if id(base) != id(module(t, files)) {
		t.Error("the folder's name is part of the identity")
	}
	with := func(name, text string) Module {
		changed := map[string]string{}
		for n, t := range files {
			changed[n] = t
		}
		changed[name] = text
		return module(t, changed)
	}
	for what, m := range map[string]Module{
		"source":       with("main.go", "package main\n\nfunc main() { println() }\n"),
		"requirements": with("go.sum", "a"),
		"flags":        {Dir: base.Dir, LDFlags: "-X a=b"},
		"package":      {Dir: base.Dir, Package: "./other"},
	} {
		if id(m) == id(base) {
			t.Errorf("another %s is not noticed", what)
		}
	}
	for what, m := range map[string]Module{
		"a test":   with("main_test.go", "package main\n"),
		"a README": with("README.md", "words"),
	} {
		if id(m) != id(base) {
			t.Errorf("%s asks for a new build", what)
		}
	}
}

func TestCachedBuildsOnceAndNeverKeepsHalf(t *testing.T) {
	cache, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	m := module(t, map[string]string{"go.mod": "module x\n\ngo 1.26\n", "main.go": "package main\n\nfunc main() {}\n"})
	path, built, err := m.Cached(t.Context(), cache, log, nil)
	if err != nil || !built {
		t.Fatalf("first: built %v, %v", built, err)
	}
	again, built, err := m.Cached(t.Context(), cache, log, nil)
	if err != nil || built || again != path {
		t.Errorf("second: built %v, %v, %s", built, err, again)
	}
	broken := module(t, map[string]string{"go.mod": "module x\n\ngo 1.26\n", "main.go": "package main\n\nfunc main() { nonsense }\n"})
	if _, _, err := broken.Cached(t.Context(), cache, log, nil); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("broken source: %v; the compiler's words are missing", err)
	}
	if files, _ := filepath.Glob(filepath.Join(cache, "programs", "*")); len(files) != 1 {
		t.Errorf("the cache holds %v", files)
	}
}

func TestAFullDiskIsRecognised(t *testing.T) {
	if !full([]string{"# x", "write /tmp/a: no space left on device"}) || full([]string{"syntax error"}) {
		t.Error("the compiler's message about a full disk is taken for another")
	}
}
