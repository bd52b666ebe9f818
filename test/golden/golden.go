// Package golden compares what a test has seen with a file. With -update it writes the file.
package golden

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what is seen into the golden files")

// Update reports whether the files are to be written.
func Update() bool { return *update }

// File compares got with a file.
func File(t testing.TB, file, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(read(t, file), got); diff != "" {
		t.Errorf("%s (-in file +seen; -update writes it):\n%s", file, diff)
	}
}

// Twice compares what is made with a file, and fails if it differs when it is made a second time,
// as what depends on the order of a map does.
func Twice(t testing.TB, file string, made func() string) {
	t.Helper()
	first := made()
	if diff := cmp.Diff(first, made()); diff != "" {
		t.Errorf("%s: made twice, it differs:\n%s", file, diff)
	}
	File(t, file, first)
}

// Between compares got with what stands between two marks of a document.
func Between(t testing.TB, file, begin, end, got string) {
	t.Helper()
	before, rest, ok := strings.Cut(read(t, file), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no %q and %q", file, begin, end)
	}
	File(t, file, before+begin+got+end+after)
}

// Each calls a subtest for each file that matches a pattern; there must be one.
func Each(t *testing.T, pattern string, test func(t *testing.T, file, text string)) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}
	_, suffix, _ := strings.Cut(filepath.Base(pattern), "*")
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), suffix), func(t *testing.T) { test(t, file, read(t, file)) })
	}
}

// Lines plays a story of which each line is an event, with what follows from it: `event ->
// outcome`. Event tells the outcome; if it is "", the line stays as it is, as empty lines and
// comments do.
func Lines(t testing.TB, text string, event func(words []string) (outcome string, err error)) string {
	t.Helper()
	var out strings.Builder
	for number, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		told, _, _ := strings.Cut(line, " -> ")
		if words := strings.Fields(told); len(words) > 0 && !strings.HasPrefix(words[0], "#") {
			outcome, err := event(words)
			if err != nil {
				t.Fatalf("line %d, %q: %v", number+1, line, err)
			}
			if outcome != "" {
				line = strings.TrimSpace(told) + " -> " + outcome
			}
		}
		fmt.Fprintln(&out, line)
	}
	return out.String()
}

// Blocks plays a story of blocks, with an empty line between them: commands, and after a line ----
// what follows from them, if anything does.
func Blocks(text string, play func(commands string) string) string {
	var out strings.Builder
	for i, block := range strings.Split(strings.TrimRight(text, "\n"), "\n\n") {
		commands, _, _ := strings.Cut(block+"\n", "----\n")
		if i > 0 {
			fmt.Fprintln(&out)
		}
		out.WriteString(commands)
		if outcome := play(strings.TrimSuffix(commands, "\n")); outcome != "" {
			out.WriteString("----\n" + outcome)
		}
	}
	return out.String()
}

func read(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
