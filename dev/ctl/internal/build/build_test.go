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
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Module{Dir: dir}
}

func TestIDFollowsTheContentAndNothingElse(t *testing.T) {
	id := func(m Module) string {
		t.Helper()
		id, err := m.id(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	files := map[string]string{"go.mod": "module m\n", "go.sum": "", "x/main.go": "package main\n\nfunc main() {}\n"}
	base := module(t, files)
	if id(base) != id(module(t, files)) {
		t.Error("the name of the module's folder is part of the identity")
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
		"source":       with("x/main.go", "package main\n\nfunc main() { println() }\n"),
		"requirements": with("go.sum", "a"),
		"flags":        {Dir: base.Dir, LDFlags: "-X a=b"},
	} {
		if id(m) == id(base) {
			t.Errorf("a change of the %s is not noticed", what)
		}
	}
	for what, m := range map[string]Module{
		"a test":          with("x/main_test.go", "package main\n"),
		"a README":        with("x/README.md", "words"),
		"another program": with("y/main.go", "package main\n"),
	} {
		if id(m) != id(base) {
			t.Errorf("%s asks for a new build", what)
		}
	}
	foreign := func(m Module) Module { m.Import = "example.org/"; return m }
	if id(foreign(base)) == id(foreign(with("go.sum", "a"))) || id(foreign(base)) != id(foreign(with("x/main.go", "package main\n"))) {
		t.Error("a program of another module follows anything but go.mod and go.sum")
	}
}

func TestProgramsAreBuiltOnceAndNeverKeptInHalf(t *testing.T) {
	cache, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	const empty = "package main\n\nfunc main() {}\n"
	m := module(t, map[string]string{"go.mod": "module m\n\ngo 1.26\n", "go.sum": "", "x/main.go": empty, "y/main.go": empty})
	first, built, err := m.Programs(t.Context(), cache, log, nil, "x")
	if err != nil || built != 1 {
		t.Fatalf("first: built %d, %v", built, err)
	}
	both, built, err := m.Programs(t.Context(), cache, log, nil, "x", "y")
	if err != nil || built != 1 || both["x"] != first["x"] {
		t.Errorf("with a second program: built %d, %v, %v", built, err, both)
	}
	if _, missing, err := m.Cached(t.Context(), cache, "x", "y"); err != nil || len(missing) != 0 {
		t.Errorf("still missing: %v, %v", missing, err)
	}
	broken := module(t, map[string]string{"go.mod": "module m\n\ngo 1.26\n", "go.sum": "", "x/main.go": "package main\n\nfunc main() { nonsense }\n"})
	if _, _, err := broken.Programs(t.Context(), cache, log, nil, "x"); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("broken source: %v; the compiler's words are missing", err)
	}
	if files, _ := filepath.Glob(filepath.Join(cache, "programs", "*")); len(files) != 2 {
		t.Errorf("the cache holds %v", files)
	}
}

func TestAFullDiskIsRecognised(t *testing.T) {
	if !full([]string{"# x", "write /tmp/a: no space left on device"}) || full([]string{"syntax error"}) {
		t.Error("the compiler's message about a full disk is taken for another")
	}
}
