package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ebb.dev/ebb/dev/ctl/internal/place"
)

func TestInterpretedSamplesHoldWhatTheirDockerfilesCopy(t *testing.T) {
	for _, sample := range slices.Concat(interpretedSamples, largeSamples) {
		text, err := os.ReadFile(filepath.Join(sample.folder("../.."), "Dockerfile"))
		if err != nil {
			t.Fatal(err)
		}
		var copied []string
		for line := range strings.Lines(string(text)) {
			if words := strings.Fields(line); len(words) > 2 && words[0] == "COPY" && !strings.HasPrefix(words[1], "--from=") {
				copied = append(copied, words[1:len(words)-1]...)
			}
		}
		copied = slices.DeleteFunc(copied, func(f string) bool { return f == sample.requirements || f == sample.weights || f == sample.source })
		if !slices.Equal(copied, sample.files) {
			t.Errorf("%s: the Dockerfile copies %v, and the image has %v", sample.name, copied, sample.files)
		}
		r, err := sample.recipe("../..", "registry", t.TempDir(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if made, err := r.make(); err != nil || made.Name != "registry/"+sample.name {
			t.Errorf("%s: the image is %q, %v", sample.name, made.Name, err)
		}
	}
}

// A sample that is in no release has no manifest there either.
func TestAReleaseLeavesOutLargeSamples(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	c := &control{Places: place.Of(root, os.Getenv)}
	i := &issue{out: t.TempDir(), refs: map[string]string{}}
	for _, s := range interpretedSamples {
		i.refs[s.name] = "registry.example.com/ebb/" + s.name + "@sha256:0"
	}
	programs, err := mains(root, "samples")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		i.refs[filepath.Base(p)] = "registry.example.com/ebb/" + filepath.Base(p) + "@sha256:0"
	}
	if err := c.releaseSamples(i); err != nil {
		t.Fatal(err)
	}
	for name, there := range map[string]bool{"hello-python": true, "grpc": true, "llm": false} {
		if _, err := os.Stat(filepath.Join(i.out, "samples", name, "service.yaml")); (err == nil) != there {
			t.Errorf("%s: %v, want it there: %v", name, err, there)
		}
	}
}

func TestTheModelIsAssembledAsInItsDockerfile(t *testing.T) {
	text, err := os.ReadFile("../../samples/llm/Dockerfile")
	if err != nil || !strings.Contains(string(text), `RUN python -c "`+assemble+`" /models/model.gguf`) {
		t.Errorf("%v: it does not run %q", err, assemble)
	}
}
