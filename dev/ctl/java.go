package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	"ebb.dev/ebb/dev/ctl/internal/fetch"
)

// javaLibraries are what a Java runtime is linked to.
var javaLibraries = append([]string{"libstdc++6", "zlib1g"}, libcPackages...)

// javaPackages are the compiler, the linker and the modules.
var javaPackages = append([]string{"openjdk-17-jdk-headless", "openjdk-17-jre-headless"}, javaLibraries...)

// javaTree is a tree with the sample's classes, and a runtime of only the modules that they use.
// The tools of this machine's architecture make it from the other's modules.
func (c *control) javaTree(ctx context.Context, log, arch string) (string, error) {
	arch = cmp.Or(arch, runtime.GOARCH)
	source, err := os.ReadFile(filepath.Join(c.Root, "samples/hello-java/Hello.java"))
	if err != nil {
		return "", err
	}
	libraries, err := fetch.DebsFor(ctx, c.Cache, log, arch, javaLibraries)
	if err != nil {
		return "", err
	}
	tools, err := fetch.DebsFor(ctx, c.Cache, log, runtime.GOARCH, javaPackages)
	if err != nil {
		return "", err
	}
	modules, err := fetch.DebsFor(ctx, c.Cache, log, arch, javaPackages)
	if err != nil {
		return "", err
	}
	key := fmt.Sprintln(arch, libraries, modules, string(source))
	return fetch.Cached(c.Cache, "java", key, func(dir string) error {
		work, err := os.MkdirTemp(c.Cache, "java-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(work)
		app := filepath.Join(work, "app")
		for from, to := range map[string]string{tools + "/.": work, filepath.Join(modules, javaHome(arch), "jmods"): filepath.Join(work, "modules")} {
			if out, err := exec.CommandContext(ctx, "cp", "-a", from, to).CombinedOutput(); err != nil {
				return fmt.Errorf("copy %s: %w: %s", from, err, out)
			}
		}
		for _, folder := range []string{app, filepath.Join(work, "tmp"), filepath.Join(work, "opt")} {
			if err := os.MkdirAll(folder, 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(app, "Hello.java"), source, 0o644); err != nil {
			return err
		}
		home := javaHome(runtime.GOARCH)
		for _, arguments := range [][]string{
			{"javac", "-d", "/app", "/app/Hello.java"},
			{"jlink", "--module-path", "/modules", "--add-modules", "jdk.httpserver", "--strip-java-debug-attributes",
				"--no-header-files", "--no-man-pages", "--output", "/opt/java"},
		} {
			tool := exec.CommandContext(ctx, "chroot", slices.Concat([]string{work, home + "/bin/" + arguments[0]}, arguments[1:])...)
			tool.Env = []string{"PATH=/usr/bin:/usr/sbin:/bin", "LD_LIBRARY_PATH=" + home + "/lib", "LANG=C.UTF-8"}
			if out, err := tool.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", arguments[0], err, out)
			}
		}
		for _, from := range []string{libraries + "/.", app, filepath.Join(work, "opt")} {
			if out, err := exec.CommandContext(ctx, "cp", "-a", from, dir).CombinedOutput(); err != nil {
				return fmt.Errorf("copy %s: %w: %s", from, err, out)
			}
		}
		// The runtime is Debian's, too, and scanners shall know.
		status, err := os.ReadFile(filepath.Join(modules, fetch.StatusFolder, "openjdk-17-jre-headless"))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, fetch.StatusFolder, "openjdk-17-jre-headless"), status, 0o644)
		}
		if err == nil {
			err = os.Remove(filepath.Join(dir, "app/Hello.java"))
		}
		return err
	})
}

// javaHome is where Debian keeps Java of an architecture.
func javaHome(arch string) string { return "/usr/lib/jvm/java-17-openjdk-" + arch }
