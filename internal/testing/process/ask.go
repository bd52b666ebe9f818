package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"testing"
)

// Ask builds the program in a folder, which may be of another module, and asks it about objects.
// The program reads their JSON and answers with a JSON array, an answer for each.
func Ask[Answer, Object any](t testing.TB, folder string, objects []Object) (answers []Answer) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "program")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = folder
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", folder, err, out)
	}
	text, err := json.Marshal(objects)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(binary)
	command.Stdin = bytes.NewReader(text)
	out, err := command.Output()
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		t.Fatalf("%s: %v\n%s", folder, err, failed.Stderr)
	} else if err != nil {
		t.Fatalf("%s: %v", folder, err)
	}
	if err := json.Unmarshal(out, &answers); err != nil || len(answers) != len(objects) {
		t.Fatalf("%s: %d answers about %d objects: %v", folder, len(answers), len(objects), err)
	}
	return answers
}
