package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestEqualContentMakesAnEqualTag(t *testing.T) {
	one := []Entry{{Path: "/a", Content: []byte("x"), Mode: 0o755}, {Path: "/b/c", Content: []byte("y"), Mode: 0o644}}
	two := []Entry{one[1], one[0]}
	tagOf := func(s Settings, entries []Entry) string {
		t.Helper()
		i, err := Make("dev.local/x", s, entries)
		if err != nil {
			t.Fatal(err)
		}
		return i.Tag
	}
	base := tagOf(Settings{Entrypoint: []string{"/a"}}, one)
	if base != tagOf(Settings{Entrypoint: []string{"/a"}}, two) {
		t.Error("the order of the entries changes the tag")
	}
	file := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if base != tagOf(Settings{Entrypoint: []string{"/a"}}, []Entry{{Path: "/a", From: file, Mode: 0o755}, one[1]}) {
		t.Error("where and when a file was written changes the tag")
	}
	for what, tag := range map[string]string{
		"content": tagOf(Settings{Entrypoint: []string{"/a"}}, []Entry{{Path: "/a", Content: []byte("z"), Mode: 0o755}, one[1]}),
		"mode":    tagOf(Settings{Entrypoint: []string{"/a"}}, []Entry{{Path: "/a", Content: []byte("x"), Mode: 0o700}, one[1]}),
		"command": tagOf(Settings{Entrypoint: []string{"/b"}}, one),
		"user":    tagOf(Settings{Entrypoint: []string{"/a"}, User: "1337"}, one),
	} {
		if tag == base {
			t.Errorf("another %s keeps the tag", what)
		}
	}
}

func TestPackMakesTheParentsAndKeepsLinks(t *testing.T) {
	text, err := pack([]Entry{{Path: "/usr/lib/x", Link: "../y"}, {Path: "tmp", Dir: true, Mode: 0o777 | os.ModeSticky}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	r := tar.NewReader(bytes.NewReader(text))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.Name)
		if h.Name == "usr/lib/x" && (h.Typeflag != tar.TypeSymlink || h.Linkname != "../y") {
			t.Errorf("the link became %+v", h)
		}
		if h.Name == "tmp/" && h.Mode != 0o1777 {
			t.Errorf("/tmp has mode %o", h.Mode)
		}
	}
	if want := []string{"tmp/", "usr/", "usr/lib/", "usr/lib/x"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWrittenArchiveHoldsBothNames(t *testing.T) {
	img, err := Make("dev.local/ebb/x", Settings{Entrypoint: []string{"/x"}}, []Entry{{Path: "/x", Content: []byte("x"), Mode: 0o755}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "images.tar")
	if err := Write(file, []Image{img}); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{img.Ref(), img.Stable()} {
		tag, err := name.NewTag(ref)
		if err != nil {
			t.Fatal(err)
		}
		read, err := tarball.ImageFromPath(file, &tag)
		if err != nil {
			t.Fatalf("%s: %v", ref, err)
		}
		config, err := read.ConfigFile()
		if err != nil || config.Config.User != "65532:65532" {
			t.Errorf("%s: user %q, %v; a restricted pod must be able to run it", ref, config.Config.User, err)
		}
	}
}

func TestTreeTakesWhatAnImageCanHold(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []string{"keep/a", "drop/b"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(f)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, f), []byte(f), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a", filepath.Join(dir, "keep/link")); err != nil {
		t.Fatal(err)
	}
	entries, err := Tree(dir, "/opt", func(rel string) bool { return rel == "drop" })
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Path)
	}
	if want := []string{"/opt/keep", "/opt/keep/a", "/opt/keep/link"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
