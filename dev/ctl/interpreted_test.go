package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestInterpretedSamplesHoldWhatTheirDockerfilesCopy(t *testing.T) {
	for _, sample := range interpretedSamples {
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
		copied = slices.DeleteFunc(copied, func(f string) bool { return f == sample.requirements || f == sample.source })
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
