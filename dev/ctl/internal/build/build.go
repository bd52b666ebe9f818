// Package build compiles Go programs, once for each content.
//
// Owns: the folder of built programs in the cache. Reads: the modules' own
// files. Writes: binaries, whole or not at all. Never: builds what it has.
package build

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
)

// Module is a Go program whose sources, apart from its own few files, are
// pinned by its go.sum: those files are its identity.
type Module struct {
	Name    string // of the binary
	Dir     string // of the module
	Package string // within the module, "." by default
	LDFlags string
}

// Progress is told how many packages of how many are compiled.
type Progress func(done, total int)

// ID is the digest of all that the binary depends on.
func (m Module) ID(ctx context.Context) (string, error) {
	version, err := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOARCH").Output()
	if err != nil {
		return "", fmt.Errorf("ask go for its version: %w", err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s%s\n%s\n", version, m.LDFlags, m.Package)
	files, err := sources(m.Dir)
	if err != nil {
		return "", err
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(m.Dir, f))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", f, len(text))
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

func sources(dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		if strings.HasSuffix(name, ".go") || name == "go.mod" || name == "go.sum" {
			rel, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			files = append(files, rel)
		}
		return nil
	})
	sort.Strings(files)
	return files, err
}

// Cached returns the module's binary, building it when the cache has none.
func (m Module) Cached(ctx context.Context, cache, log string, progress Progress) (path string, built bool, err error) {
	id, err := m.ID(ctx)
	if err != nil {
		return "", false, err
	}
	path = filepath.Join(cache, "programs", m.Name+"-"+id)
	if _, err := os.Stat(path); err == nil {
		return path, false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", false, err
	}
	part := fmt.Sprintf("%s.%d.part", path, os.Getpid())
	defer os.Remove(part)
	pkg := m.Package
	if pkg == "" {
		pkg = "."
	}
	if err := Go(ctx, m.Dir, log, progress, m.LDFlags, part, pkg); err != nil {
		return "", false, err
	}
	return path, true, os.Rename(part, path)
}

// Go runs one `go build` of packages into out: a file, or a folder if it ends
// in a slash. The binaries are static and hold no path of this machine, so
// that equal sources make equal bytes.
func Go(ctx context.Context, dir, log string, progress Progress, ldflags, out string, packages ...string) error {
	env := append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	// How many there are is asked only once there is something to wait for: when nothing has changed, go says nothing.
	var total atomic.Int64
	var counting sync.WaitGroup
	listing, enough := context.WithCancel(ctx)
	defer counting.Wait()
	defer enough()
	count := sync.OnceFunc(func() {
		counting.Go(func() {
			list := exec.CommandContext(listing, "go", append([]string{"list", "-deps"}, packages...)...)
			list.Dir, list.Env = dir, env
			if names, err := list.Output(); err == nil { // without it the bar has no end
				total.Store(int64(bytes.Count(names, []byte("\n"))))
			}
		})
	})
	follower := func(done int) {
		if progress != nil {
			count()
			progress(done, int(total.Load()))
		}
	}
	args := []string{"build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", strings.TrimSpace("-s -w " + ldflags), "-o", out}
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	cmd.Dir, cmd.Env = dir, env
	pipe, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start go build: %w", err)
	}
	said, err := follow(pipe, log, follower)
	if waitErr := cmd.Wait(); waitErr != nil {
		if full(said) {
			return errors.New("the disk is full; free some space, `go clean -cache` frees Go's build cache")
		}
		return fmt.Errorf("go build in %s: %w; see %s:\n%s", dir, waitErr, log, tail(said, 12))
	}
	return err
}

// follow copies what go says to the log, counts the packages it names, and
// returns the rest.
func follow(r io.Reader, log string, progress func(done int)) ([]string, error) {
	file, err := os.Create(log)
	if err != nil {
		_, _ = io.Copy(io.Discard, r) // or go build would wait for its reader
		return nil, err
	}
	defer file.Close()
	var said []string
	done := 0
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		fmt.Fprintln(file, line)
		if strings.ContainsAny(line, " :#") {
			said = append(said, line) // a complaint, not a package's name
		} else {
			done++
		}
		progress(done)
	}
	return said, lines.Err()
}

func full(lines []string) bool {
	for _, l := range lines {
		if strings.Contains(l, "no space left on device") {
			return true
		}
	}
	return false
}

func tail(lines []string, n int) string {
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

func explain(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return err
}

// ModuleDir is where Go keeps the sources of a module that dir's go.mod names.
func ModuleDir(ctx context.Context, dir, module string) (string, error) {
	download := exec.CommandContext(ctx, "go", "mod", "download", module)
	download.Dir = dir
	if _, err := download.Output(); err != nil {
		return "", fmt.Errorf("download module %s: %w", module, explain(err))
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find module %s: %w", module, explain(err))
	}
	return strings.TrimSpace(string(out)), nil
}
