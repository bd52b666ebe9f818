// Package build compiles Go programs and caches them by content.
//
// Owns: the folder of built programs in the cache. Reads: the modules' own
// files. Writes: binaries, whole or not at all. Never: builds a program that is in the cache.
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
	"strings"
	"sync"
	"sync/atomic"
)

// Module is a Go module with programs in it. What they import is pinned by its go.sum, so a program
// is identified by that file, go.mod and the program's own folder.
type Module struct {
	Dir     string
	LDFlags string // for all its programs
	// Import is the path before the folders of programs of another module, "" for the module's own.
	Import string
}

// Progress receives how many packages are compiled, and how many there are.
type Progress func(done, total int)

// id is the digest of all that the program in a folder of the module depends on.
func (m Module) id(ctx context.Context, folder string) (string, error) {
	version, err := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOARCH").Output()
	if err != nil {
		return "", fmt.Errorf("ask go for its version: %w", err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s%s\n%s\n", version, m.LDFlags, folder)
	files := []string{"go.mod", "go.sum"}
	if m.Import == "" {
		own, err := sources(m.Dir, folder)
		if err != nil {
			return "", err
		}
		files = append(files, own...)
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

// sources lists the Go files of one folder, tests left out.
func sources(dir, folder string) (files []string, err error) {
	err = filepath.WalkDir(filepath.Join(dir, folder), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		files = append(files, rel)
		return nil
	})
	return files, err
}

// Cached returns where in the cache the program of each folder is, or will be, and which folders
// are still to be built.
func (m Module) Cached(ctx context.Context, cache string, folders ...string) (paths map[string]string, missing []string, err error) {
	paths = map[string]string{}
	for _, folder := range folders {
		id, err := m.id(ctx, folder)
		if err != nil {
			return nil, nil, err
		}
		paths[folder] = filepath.Join(cache, "programs", filepath.Base(folder)+"-"+id)
		if _, err := os.Stat(paths[folder]); err != nil {
			missing = append(missing, folder)
		}
	}
	return paths, missing, nil
}

// Programs returns the program of each folder. What the cache lacks is built by one `go build`,
// which compiles shared packages once and links programs side by side.
func (m Module) Programs(ctx context.Context, cache, log string, progress Progress, folders ...string) (paths map[string]string, built int, err error) {
	paths, missing, err := m.Cached(ctx, cache, folders...)
	if err != nil || len(missing) == 0 {
		return paths, 0, err
	}
	part := filepath.Join(cache, "programs", fmt.Sprintf("%d.part", os.Getpid()))
	if err := os.MkdirAll(part, 0o755); err != nil {
		return nil, 0, err
	}
	defer os.RemoveAll(part)
	var packages []string
	for _, folder := range missing {
		if m.Import == "" {
			folder = "./" + folder
		}
		packages = append(packages, m.Import+folder)
	}
	if err := Go(ctx, m.Dir, log, progress, Target{LDFlags: m.LDFlags}, part+"/", packages...); err != nil {
		return nil, 0, err
	}
	for _, folder := range missing {
		if err := os.Rename(filepath.Join(part, filepath.Base(folder)), paths[folder]); err != nil {
			return nil, 0, err
		}
	}
	return paths, len(missing), nil
}

// Target is what a program is linked with and for. Empty strings stand for this machine's.
type Target struct{ LDFlags, OS, Arch string }

func (t Target) env() []string {
	env := append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	if t.OS != "" {
		env = append(env, "GOOS="+t.OS)
	}
	if t.Arch != "" {
		env = append(env, "GOARCH="+t.Arch)
	}
	return env
}

// Go runs one `go build` of packages into out: a file, or a folder if it ends in a slash. The
// binaries are static and contain no path of this machine, so that equal sources give equal bytes.
func Go(ctx context.Context, dir, log string, progress Progress, target Target, out string, packages ...string) error {
	env := target.env()
	// The packages are counted only after the first one was compiled: when nothing has changed, go
	// prints nothing.
	var total atomic.Int64
	var counting sync.WaitGroup
	listing, enough := context.WithCancel(ctx)
	defer counting.Wait()
	defer enough()
	var already int // compiled when the count began
	count := sync.OnceFunc(func() {
		counting.Go(func() {
			// Those in Go's build cache are not stale, if the flags are those of the build.
			list := exec.CommandContext(listing, "go", append([]string{"list", "-deps", "-trimpath", "-f", "{{if .Stale}}stale{{end}}"}, packages...)...)
			list.Dir, list.Env = dir, env
			if names, err := list.Output(); err == nil { // on failure the bar has no total
				total.Store(int64(already + bytes.Count(names, []byte("stale"))))
			}
		})
	})
	follower := func(done int) {
		if progress != nil {
			if already == 0 {
				already = done
				count()
			}
			progress(done, int(total.Load()))
		}
	}
	args := []string{"build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", strings.TrimSpace("-s -w " + target.LDFlags), "-o", out}
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

// follow copies the output of go to the log, counts the packages that it names, and returns the
// other lines.
func follow(r io.Reader, log string, progress func(done int)) ([]string, error) {
	file, err := os.Create(log)
	if err != nil {
		_, _ = io.Copy(io.Discard, r) // otherwise go build would block
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
			said = append(said, line) // a message, not a package's name
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

// ModuleDir is the folder of the sources of a module that dir's go.mod requires.
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
