package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"ebb.dev/ebb/dev/ctl/internal/image"
)

// recipe is an image that may have to be made. Its key identifies everything that goes into it and
// is cheap to compute: most runs make no image.
type recipe struct {
	name string
	key  string
	make func() (image.Image, error)
}

// shelf remembers the image of each recipe, and loads the images that containerd lacks.
type shelf struct {
	file      string            // where it remembers
	archive   string            // a temporary file, for containerd
	sockets   []string          // one for each node's containerd
	known     map[string]string // name and key -> tag
	installed map[string]bool   // references that every containerd has
}

func openShelf(ctx context.Context, file, archive string, sockets ...string) (*shelf, error) {
	s := &shelf{file: file, archive: archive, sockets: sockets, known: map[string]string{}, installed: map[string]bool{}}
	if text, err := os.ReadFile(file); err == nil {
		_ = json.Unmarshal(text, &s.known) // if the file is damaged, images are made again
	}
	lists := make([]string, len(sockets))
	for i, socket := range sockets {
		var err error
		if lists[i], err = ctr(ctx, socket, "images", "list", "-q"); err != nil {
			return nil, err
		}
	}
	s.installed = inAll(lists)
	return s, nil
}

// inAll returns the lines that are in each of the texts.
func inAll(texts []string) map[string]bool {
	count := map[string]int{}
	for _, text := range texts {
		for line := range strings.Lines(text) {
			count[strings.TrimSpace(line)]++
		}
	}
	all := map[string]bool{}
	for line, n := range count {
		if n == len(texts) {
			all[line] = true
		}
	}
	return all
}

// load makes sure that containerd has the images. It returns their references by name, and how many
// were new.
func (s *shelf) load(ctx context.Context, recipes []recipe) (refs map[string]string, fresh int, err error) {
	refs = map[string]string{}
	var made []image.Image
	for _, r := range recipes {
		if err := ctx.Err(); err != nil {
			return nil, 0, context.Cause(ctx)
		}
		key := r.name + " " + r.key
		if tag := s.known[key]; tag != "" && s.installed[r.name+":"+tag] {
			refs[r.name] = r.name + ":" + tag
			continue
		}
		img, err := r.make()
		if err != nil {
			return nil, 0, err
		}
		made = append(made, img)
		s.known[key] = img.Tag
		refs[r.name] = img.Ref()
	}
	if len(made) == 0 {
		return refs, 0, nil
	}
	if err := os.MkdirAll(filepath.Dir(s.archive), 0o755); err != nil {
		return nil, 0, err
	}
	defer os.Remove(s.archive)
	if err := image.Write(s.archive, made); err != nil {
		return nil, 0, err
	}
	errs := make([]error, len(s.sockets))
	var all sync.WaitGroup
	for i, socket := range s.sockets {
		all.Go(func() { _, errs[i] = ctr(ctx, socket, "images", "import", s.archive) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, 0, err
	}
	for _, i := range made {
		s.installed[i.Ref()] = true
	}
	text, err := json.MarshalIndent(s.known, "", "  ")
	if err != nil {
		return nil, 0, err
	}
	return refs, len(made), os.WriteFile(s.file, text, 0o644)
}

func ctr(ctx context.Context, socket string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "ctr", append([]string{"--address", socket, "--namespace", "k8s.io"}, args...)...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(complaint.Bytes()))
	}
	return string(out), nil
}

// temp is in every image.
var temp = image.Entry{Path: "/tmp", Dir: true, Mode: 0o777 | os.ModeSticky}

// program is an image of one static binary. The key is the binary's path in
// the cache, which names its content, or its digest.
func program(name, key, binary, inside string, settings image.Settings, more ...image.Entry) recipe {
	settings.Entrypoint = []string{inside}
	return recipe{name: name, key: key, make: func() (image.Image, error) {
		entries := append([]image.Entry{temp, {Path: inside, From: binary, Mode: 0o755}}, more...)
		return image.Make(name, settings, entries)
	}}
}

// linked is an image of a program that is linked with the C library. Without an entrypoint in the
// settings, it runs that program.
func linked(name, libc, binary, inside string, settings image.Settings, more ...image.Entry) recipe {
	key := []string{libc, binary}
	for _, e := range more {
		key = append(key, e.From)
	}
	return recipe{name: name, key: strings.Join(key, " "), make: func() (image.Image, error) {
		base, err := image.Tree(libc, "/", nil)
		if err != nil {
			return image.Image{}, err
		}
		if len(settings.Entrypoint) == 0 {
			settings.Entrypoint = []string{inside}
		}
		return image.Make(name, settings, append(base, temp), []image.Entry{{Path: inside, From: binary, Mode: 0o755}}, more)
	}}
}

func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// mains finds the folders below root/dir, one level deep, that hold a main
// package: each becomes an image.
func mains(root, dir string) ([]string, error) {
	files, err := os.ReadDir(filepath.Join(root, dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []string
	for _, f := range files {
		if !f.IsDir() {
			continue
		}
		rel := filepath.Join(dir, f.Name())
		if isMain(filepath.Join(root, rel)) {
			found = append(found, rel)
		}
	}
	slices.Sort(found)
	return found, nil
}

func isMain(dir string) bool {
	sources, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	for _, s := range sources {
		text, err := os.ReadFile(s)
		if err == nil && !strings.HasSuffix(s, "_test.go") && slices.Contains(strings.Split(string(text), "\n"), "package main") {
			return true
		}
	}
	return false
}
