package manifests

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each sample with source has what a user needs to change it and build it with Docker.
func TestASampleWithSourceIsWhole(t *testing.T) {
	samples := filepath.Join(root, "samples")
	index, err := os.ReadFile(filepath.Join(samples, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	folders, err := os.ReadDir(samples)
	if err != nil {
		t.Fatal(err)
	}
	withSource := 0
	for _, folder := range folders {
		name := folder.Name()
		programs := slices.DeleteFunc(glob(t, samples, name, "*"), func(f string) bool {
			return strings.HasSuffix(f, "_test.go") || !slices.Contains([]string{".go", ".py", ".js", ".java"}, filepath.Ext(f))
		})
		if len(programs) == 0 {
			continue
		}
		withSource++
		t.Run(name, func(t *testing.T) {
			for _, file := range []string{"Dockerfile", "service.yaml", "README.md"} {
				if _, err := os.Stat(filepath.Join(samples, name, file)); err != nil {
					t.Error(err)
				}
			}
			if _, err := os.Stat(filepath.Join(samples, name, "main_test.go")); err != nil && filepath.Ext(programs[0]) == ".go" {
				t.Error(err)
			}
			page, _ := os.ReadFile(filepath.Join(samples, name, "README.md"))
			if !strings.Contains(string(page), "](../README.md#build-one)") {
				t.Error("README.md does not lead to how to build it")
			}
			if !strings.Contains(string(index), "["+name+"]("+name+"/README.md)") {
				t.Error("samples/README.md does not lead to its page")
			}
			readDockerfile(t, name).check(t)
		})
	}
	if withSource < 10 {
		t.Errorf("found only %d samples with source", withSource)
	}
}

// dockerfile is what its instructions do to the files.
type dockerfile struct {
	context string              // of the build: the checkout for Go, because of go.mod, and else the sample's folder
	stages  []string            // names of all stages but the last
	copies  [][]string          // from the context: sources and target
	made    map[string][]string // by stage: what its RUN instructions name
	taken   map[string][]string // by stage: what a later stage takes from it
	holds   []string            // file names in the last stage
	user    string
	command []string
}

func readDockerfile(t *testing.T, name string) *dockerfile {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "samples", name, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	d := &dockerfile{context: filepath.Join(root, "samples", name), made: map[string][]string{}, taken: map[string][]string{}}
	if strings.Contains(string(text), "docker build -f samples/"+name+"/Dockerfile .\n") {
		d.context = root
	}
	stage := ""
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		instruction, words := words[0], words[1:]
		switch instruction {
		case "FROM":
			stage, d.holds, d.user, d.command = "", nil, "", nil
			if len(words) == 3 && words[1] == "AS" {
				stage = words[2]
				d.stages = append(d.stages, stage)
			}
		case "COPY":
			sources := words[:len(words)-1]
			if from, ok := strings.CutPrefix(words[0], "--from="); ok {
				sources = sources[1:]
				d.taken[from] = append(d.taken[from], sources...)
			} else {
				d.copies = append(d.copies, words)
			}
			for _, s := range append(sources, words[len(words)-1]) {
				d.holds = append(d.holds, filepath.Base(s))
			}
		case "RUN":
			d.made[stage] = append(d.made[stage], words...)
		case "USER":
			d.user = words[0]
		case "CMD", "ENTRYPOINT":
			if err := json.Unmarshal([]byte(strings.Join(words, " ")), &d.command); err != nil {
				t.Errorf("%s needs a shell: %v", instruction, err)
			}
		case "WORKDIR":
		default:
			t.Errorf("this test does not know the instruction %s", instruction)
		}
	}
	return d
}

func (d *dockerfile) check(t *testing.T) {
	t.Helper()
	for _, copy := range d.copies {
		for _, file := range copy[:len(copy)-1] {
			if _, err := os.Stat(filepath.Join(d.context, file)); err != nil {
				t.Errorf("it copies what is not there: %v", err)
			}
		}
	}
	for from, files := range d.taken {
		if !slices.Contains(d.stages, from) {
			t.Errorf("it copies from the stage %q, and has %v", from, d.stages)
		}
		for _, file := range files {
			class, _ := strings.CutSuffix(filepath.Base(file), ".class")
			if !slices.Contains(d.made[from], file) && !slices.Contains(d.made[from], class+".java") {
				t.Errorf("no RUN of the stage %q makes %s", from, file)
			}
		}
	}
	if !regexp.MustCompile(`^[1-9][0-9]*:[1-9][0-9]*$`).MatchString(d.user) {
		t.Errorf("it runs as user %q; runAsNonRoot needs a number", d.user)
	}
	stem := func(word string) string { word, _, _ = strings.Cut(filepath.Base(word), "."); return word }
	if !slices.ContainsFunc(d.command, func(word string) bool {
		word, _, _ = strings.Cut(word, ":") // app:app is the object app in app.py
		return slices.ContainsFunc(d.holds, func(file string) bool { return stem(file) == stem(word) && stem(file) != "" })
	}) {
		t.Errorf("it runs %q, and holds %v", d.command, d.holds)
	}
	if d.context == root {
		d.compiles(t)
	}
}

// compiles asks Go whether what the program imports and embeds is among the files that are copied.
func (d *dockerfile) compiles(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for _, copy := range d.copies {
		target := filepath.Join(dir, copy[len(copy)-1])
		for _, file := range copy[:len(copy)-1] {
			make, into := exec.Command("mkdir", "-p", target), exec.Command("cp", "-r", file, target)
			if info, err := os.Stat(filepath.Join(root, file)); err == nil && info.IsDir() {
				into = exec.Command("cp", "-rT", file, target)
			}
			into.Dir = root
			for _, command := range []*exec.Cmd{make, into} {
				if out, err := command.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
		}
	}
	build := d.made["build"]
	list := exec.Command("go", "list", "-deps", build[len(build)-1])
	list.Dir = dir
	if out, err := list.CombinedOutput(); err != nil || !strings.Contains(string(out), "/samples/") {
		t.Errorf("go list %s: %v: %s", build[len(build)-1], err, out)
	}
}

func glob(t *testing.T, parts ...string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return found
}
