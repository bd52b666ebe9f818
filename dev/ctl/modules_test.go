package main

import (
	"encoding/json"
	"os/exec"
	"testing"
)

// TestModulesShareVersions keeps `make up` from compiling a package several times: the project and
// the programs of the cluster must name the same version of each dependency that they share.
func TestModulesShareVersions(t *testing.T) {
	first := map[string]string{} // module -> version and who names it
	version := map[string]string{}
	for _, dir := range []string{"../..", "..", "../tools", "."} {
		command := exec.Command("go", "mod", "edit", "-json")
		command.Dir = dir
		out, err := command.Output()
		if err != nil {
			t.Fatalf("read %s/go.mod: %v", dir, err)
		}
		var file struct {
			Require []struct{ Path, Version string }
		}
		if err := json.Unmarshal(out, &file); err != nil {
			t.Fatal(err)
		}
		if len(file.Require) == 0 {
			t.Errorf("%s/go.mod requires nothing", dir)
		}
		for _, r := range file.Require {
			if v, ok := version[r.Path]; ok && v != r.Version {
				t.Errorf("%s is %s in %s/go.mod and %s in %s/go.mod: run `go get %[1]s@VERSION` with the newer one", r.Path, v, first[r.Path], r.Version, dir)
				continue
			}
			version[r.Path], first[r.Path] = r.Version, dir
		}
	}
}
