package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAReleaseIsRefusedBeforeAnythingIsWritten(t *testing.T) {
	c := checkout(t, t.TempDir())
	foreign := filepath.Join(t.TempDir(), "letters")
	if err := os.MkdirAll(filepath.Join(foreign, "love"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	for want, args := range map[string][]string{
		"make release VERSION=v0.1.0": {"-version", ""},
		`the version "latest"`:        {"-version", "latest"},
		`the registry "a b"`:          {"-version", "v0.1.0", "-registry", "a b"},
		"not one of a release":        {"-version", "v0.1.0", "-out", foreign},
		"read the key that signs":     {"-version", "v0.1.0", "-key", filepath.Join(foreign, "none")},
	} {
		if _, err := c.readIssue(t.Context(), args, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
	if _, err := os.Stat(filepath.Join(foreign, "love")); err != nil {
		t.Errorf("a refused release deleted something: %v", err)
	}
	i, err := c.readIssue(t.Context(), []string{"-version", "v0.1.0", "-out", filepath.Join(t.TempDir(), "dist")}, io.Discard)
	if err != nil || i.at.Unix() != 1700000000 {
		t.Fatalf("%+v, %v", i, err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if _, err := c.readIssue(t.Context(), []string{"-version", "v0.1.0", "-out", filepath.Join(t.TempDir(), "dist")}, io.Discard); err == nil || !strings.Contains(err.Error(), "yesterday") {
		t.Errorf("a time that is none: %v", err)
	}
}
