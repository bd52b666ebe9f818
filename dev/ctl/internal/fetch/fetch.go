// Package fetch downloads what is not built here from the package registries:
// Debian packages to install, Debian packages and Python wheels to unpack.
//
// Owns: the downloads in the cache. Reads: the registries, through apt and pip
// as this machine has configured them. Writes: folders, whole or not at all.
// Never: fetches what it has.
package fetch

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Cached returns the folder of the cache for this key, and fills it if it is not there. A folder
// that exists is complete.
func Cached(cache, kind, key string, fill func(dir string) error) (string, error) {
	sum := sha256.Sum256([]byte(key))
	dir := filepath.Join(cache, kind+"-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	part := fmt.Sprintf("%s.%d.part", dir, os.Getpid())
	defer os.RemoveAll(part)
	if err := os.MkdirAll(part, 0o755); err != nil {
		return "", err
	}
	if err := fill(part); err != nil {
		return "", err
	}
	return dir, os.Rename(part, dir)
}

// Install installs Debian packages without recommended ones.
func Install(ctx context.Context, log string, packages []string) error {
	env := []string{"DEBIAN_FRONTEND=noninteractive"}
	if err := run(ctx, log, "", env, "apt-get", "-q", "update"); err != nil {
		return err
	}
	return run(ctx, log, "", env, "apt-get", append([]string{"-q", "install", "-y", "--no-install-recommends"}, packages...)...)
}

// Debs downloads Debian packages of this machine's architecture and unpacks them into one tree.
func Debs(ctx context.Context, cache, log string, packages []string) (string, error) {
	return Cached(cache, "debian", strings.Join(packages, " "), func(dir string) error {
		return unpackDebs(ctx, log, dir, nil, packages)
	})
}

// StatusFolder is where a tree of DebsFor keeps what dpkg says about each package, as in other
// images without dpkg: scanners look there.
const StatusFolder = "var/lib/dpkg/status.d"

// DebsFor is Debs for an architecture, with StatusFolder. It leaves apt's settings as they are.
func DebsFor(ctx context.Context, cache, log, arch string, packages []string) (string, error) {
	return Cached(cache, "debian", arch+" "+strings.Join(packages, " "), func(dir string) error {
		state, err := os.MkdirTemp("", "ebb-apt-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(state)
		for _, folder := range []string{"lists/partial", "cache/archives/partial"} {
			if err := os.MkdirAll(filepath.Join(state, folder), 0o755); err != nil {
				return err
			}
		}
		options := []string{"-o", "APT::Architecture=" + arch, "-o", "APT::Architectures=" + arch, "-o", "APT::Sandbox::User=",
			"-o", "Dir::State::Lists=" + state + "/lists", "-o", "Dir::Cache=" + state + "/cache", "-o", "Dir::State::status=/dev/null"}
		return unpackDebs(ctx, log, dir, options, packages)
	})
}

// unpackDebs downloads packages with options of apt-get, and unpacks them. With options it also
// writes StatusFolder.
func unpackDebs(ctx context.Context, log, dir string, options, packages []string) error {
	debs, err := os.MkdirTemp("", "ebb-debs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(debs)
	download := slices.Concat([]string{"-q"}, options, []string{"download"}, packages)
	if err := run(ctx, log, debs, nil, "apt-get", download...); err != nil {
		// apt has no package lists before its first update.
		if err := run(ctx, log, debs, nil, "apt-get", slices.Concat([]string{"-q"}, options, []string{"update"})...); err != nil {
			return err
		}
		if err := run(ctx, log, debs, nil, "apt-get", download...); err != nil {
			return err
		}
	}
	files, _ := filepath.Glob(filepath.Join(debs, "*.deb"))
	for _, f := range files {
		if err := run(ctx, log, "", nil, "dpkg-deb", "-x", f, dir); err != nil {
			return err
		}
		if options == nil {
			continue
		}
		about, err := exec.CommandContext(ctx, "dpkg-deb", "-f", f).Output()
		if err != nil {
			return fmt.Errorf("read %s: %w", filepath.Base(f), err)
		}
		name, _, _ := strings.Cut(filepath.Base(f), "_")
		if err := os.MkdirAll(filepath.Join(dir, StatusFolder), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, StatusFolder, name), about, 0o644); err != nil {
			return err
		}
	}
	for _, unneeded := range []string{"usr/share/doc", "usr/share/man", "usr/share/lintian", "usr/share/locale"} {
		if err := os.RemoveAll(filepath.Join(dir, unneeded)); err != nil {
			return err
		}
	}
	return nil
}

// Wheels downloads Python wheels and unpacks them into one folder. pip's own
// arguments say which: names, or -r and a file.
func Wheels(ctx context.Context, cache, log, key string, args ...string) (string, error) {
	return Cached(cache, "wheels", key, func(dir string) error {
		return unpackWheels(ctx, log, dir, args)
	})
}

func unpackWheels(ctx context.Context, log, dir string, args []string) error {
	wheels, err := os.MkdirTemp("", "ebb-wheels-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(wheels)
	if err := run(ctx, log, "", nil, "python3", append([]string{"-m", "pip", "download", "-q", "--only-binary=:all:", "-d", wheels}, args...)...); err != nil {
		return err
	}
	files, _ := filepath.Glob(filepath.Join(wheels, "*.whl"))
	if len(files) == 0 {
		return fmt.Errorf("pip downloaded no wheel for %s", strings.Join(args, " "))
	}
	for _, f := range files {
		if err := unzip(f, dir); err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(f), err)
		}
	}
	return nil
}

// Unpack downloads wheels and unpacks them into the caller's folder.
func Unpack(ctx context.Context, log, dir string, args ...string) error {
	return unpackWheels(ctx, log, dir, args)
}

func unzip(file, dir string) error {
	r, err := zip.OpenReader(file)
	if err != nil {
		return err
	}
	defer r.Close()
	for _, f := range r.File {
		if !filepath.IsLocal(f.Name) {
			return fmt.Errorf("%q leads out of the folder", f.Name)
		}
		target := filepath.Join(dir, f.Name)
		if f.FileInfo().IsDir() {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := extract(f, target); err != nil {
			return err
		}
	}
	return nil
}

func extract(f *zip.File, target string) error {
	in, err := f.Open()
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(target, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, f.Mode().Perm()|0o644)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

func run(ctx context.Context, log, dir string, env []string, name string, args ...string) error {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = file, file
	fmt.Fprintf(file, "$ %s %s\n", name, strings.Join(args, " "))
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w; its output is in %s", name, args[0], err, log)
	}
	return nil
}
