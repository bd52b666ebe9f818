package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"ebb.dev/ebb/dev/ctl/internal/fetch"
	"ebb.dev/ebb/dev/ctl/internal/image"
)

// interpreted is a sample that an interpreter of Debian runs.
type interpreted struct {
	name         string   // of its folder in samples/, and of its image
	requirements string   // the file with its Python packages
	weights      string   // the file with the Python packages that hold its model
	source       string   // the file that is compiled into the tree
	files        []string // what its Dockerfile copies besides
	command      []string // that of its Dockerfile
	env          []string
	// tree is what is below the files. Without an architecture it is for this machine.
	tree func(c *control, ctx context.Context, log, arch string) (string, error)
}

var interpretedSamples = []interpreted{
	{name: "hello-python", requirements: "requirements.txt", files: []string{"app.py", "gunicorn.conf.py"},
		command: []string{"/usr/bin/python3.11", "-m", "gunicorn", "app:app"},
		env:     []string{"PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "LANG=C.UTF-8"}, tree: (*control).pythonTree},
	{name: "hello-node", files: []string{"app.js"}, command: []string{"/usr/bin/node", "app.js"}, tree: (*control).nodeTree},
	{name: "hello-java", source: "Hello.java",
		command: []string{"/opt/java/bin/java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "Hello"}, tree: (*control).javaTree},
}

// largeSamples are not for every cluster and release. `make sample` makes their images.
var largeSamples = []interpreted{
	{name: "llm", requirements: "requirements.txt", weights: "weights.txt", files: []string{"server.py", "hooks.py"},
		command: []string{"/usr/bin/python3.11", "server.py"}, env: []string{"PYTHONDONTWRITEBYTECODE=1", "LANG=C.UTF-8"}, tree: (*control).modelTree},
}

func (s interpreted) folder(root string) string { return filepath.Join(root, "samples", s.name) }

// recipe is the sample's image: the interpreter, and the sample's own files on top.
func (s interpreted) recipe(root, registry, tree string, published *image.Published) (recipe, error) {
	h := sha256.New()
	var app []image.Entry
	for _, f := range s.files {
		path := filepath.Join(s.folder(root), f)
		digest, err := fileDigest(path)
		if err != nil {
			return recipe{}, err
		}
		fmt.Fprintln(h, f, digest)
		app = append(app, image.Entry{Path: "/app/" + f, From: path, Mode: 0o644})
	}
	name := registry + "/" + s.name
	key := fmt.Sprintf("%s %s %s %x", tree, strings.Join(s.command, " "), strings.Join(s.env, " "), h.Sum(nil))
	return recipe{name: name, key: key, make: func() (image.Image, error) {
		lower, err := image.Tree(tree, "/", nil)
		if err != nil {
			return image.Image{}, err
		}
		settings := image.Settings{Entrypoint: s.command, WorkingDir: "/app", Env: s.env, Published: published}
		return image.Make(name, settings, append(lower, temp), app)
	}}, nil
}

// pythonPackages are the interpreter and the modules that a web service uses.
var pythonPackages = append([]string{
	"python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib",
	"zlib1g", "libexpat1", "libssl3", "libffi8", "libbz2-1.0", "liblzma5", "libuuid1", "libcrypt1",
}, libcPackages...)

// pythonTree is a tree with Python and the packages of hello-python's requirements.
func (c *control) pythonTree(ctx context.Context, log, arch string) (string, error) {
	return c.withPython(ctx, log, arch, filepath.Join(c.Root, "samples/hello-python/requirements.txt"), pythonPackages)
}

// withPython is a tree with packages of Debian, and Python's packages of a file of requirements,
// both compiled. A container cannot keep what it compiles: it would compile again at each start,
// which takes about a second.
func (c *control) withPython(ctx context.Context, log, arch, requirements string, debian []string) (string, error) {
	text, err := os.ReadFile(requirements)
	if err != nil {
		return "", err
	}
	key := strings.TrimPrefix(arch+" ", " ") + strings.Join(debian, " ") + "\n" + string(text)
	return fetch.Cached(c.Cache, "python", key, func(dir string) (err error) {
		var debs string
		if arch == "" {
			debs, err = fetch.Debs(ctx, c.Cache, log, debian)
		} else {
			debs, err = fetch.DebsFor(ctx, c.Cache, log, arch, debian)
		}
		if err != nil {
			return err
		}
		if out, err := exec.CommandContext(ctx, "cp", "-a", debs+"/.", dir).CombinedOutput(); err != nil {
			return fmt.Errorf("copy %s: %w: %s", debs, err, out)
		}
		packages := "/usr/local/lib/python3.11/dist-packages"
		if err := os.MkdirAll(filepath.Join(dir, packages), 0o755); err != nil {
			return err
		}
		if err := fetch.Unpack(ctx, log, filepath.Join(dir, packages), "--python-version", "3.11", "-r", requirements); err != nil {
			return err
		}
		for _, unneeded := range []string{"usr/lib/python3.11/test", "usr/lib/python3.11/idlelib", "usr/lib/python3.11/lib2to3"} {
			if err := os.RemoveAll(filepath.Join(dir, unneeded)); err != nil {
				return err
			}
		}
		// Files in an image have no time stamp to compare.
		arguments := []string{"-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"}
		compile := exec.CommandContext(ctx, "chroot", slices.Concat([]string{dir, "/usr/bin/python3.11"}, arguments, []string{"/usr/lib/python3.11", packages})...)
		if arch != "" { // this machine may not run it, but what its own Python compiles is the same
			compile = exec.CommandContext(ctx, "python3.11", slices.Concat(arguments, []string{"-s", dir, "-p", "/", dir + "/usr/lib/python3.11", dir + packages})...)
		}
		compile.Env = []string{"PATH=/usr/bin", "LANG=C.UTF-8", "PYTHONHASHSEED=0"}
		if out, err := compile.CombinedOutput(); err != nil {
			return fmt.Errorf("compile Python's libraries: %w: %s", err, out)
		}
		return nil
	})
}

// nodePackages are Node, its libraries, and the modules that Debian keeps outside of the binary.
var nodePackages = append([]string{
	"nodejs", "libnode108", "libstdc++6", "libbrotli1", "libc-ares2", "libicu72", "libnghttp2-14", "libssl3", "libuv1", "zlib1g",
	"node-acorn", "node-busboy", "node-cjs-module-lexer", "node-undici", "node-xtend",
}, libcPackages...)

// nodeTree is a tree with Node. The sample uses no package of npm. A Node of this machine that is
// not Debian's would keep fetch.Debs from finding Debian's.
func (c *control) nodeTree(ctx context.Context, log, arch string) (string, error) {
	return fetch.DebsFor(ctx, c.Cache, log, cmp.Or(arch, runtime.GOARCH), nodePackages)
}
