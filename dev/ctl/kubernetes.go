package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"ebb.dev/ebb/dev/ctl/internal/build"
	"ebb.dev/ebb/dev/ctl/internal/fetch"
	"ebb.dev/ebb/dev/ctl/internal/kube"
)

var kubernetesVersion = regexp.MustCompile(`^v1\.[0-9]+\.[0-9]+$`)

// errNotMade is the answer of kubernetesModule where it may not make the module.
var errNotMade = errors.New("the module is not made yet")

// kubernetesModule is a module with dev/kube alone that requires another version of Kubernetes than
// dev/go.mod does, and of all else what that version itself requires. It is made once.
func (c *control) kubernetesModule(ctx context.Context, version string, make bool) (build.Module, error) {
	m := build.Module{LDFlags: kube.LDFlags(version)}
	sources, err := filepath.Glob(filepath.Join(c.Root, "dev/kube/*.go"))
	if err != nil {
		return m, err
	}
	key := version + "\n"
	for _, file := range sources {
		text, err := os.ReadFile(file)
		if err != nil {
			return m, err
		}
		key += string(text)
	}
	m.Dir, err = fetch.Cached(c.Cache, "kubernetes", key, func(dir string) error {
		if !make {
			return errNotMade
		}
		file, err := c.kubernetesModFile(ctx, version)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "go.mod"), file, 0o644); err != nil {
			return err
		}
		if err := os.CopyFS(filepath.Join(dir, "kube"), os.DirFS(filepath.Join(c.Root, "dev/kube"))); err != nil {
			return err
		}
		tidy := exec.CommandContext(ctx, "go", "mod", "tidy")
		tidy.Dir, tidy.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
		if out, err := tidy.CombinedOutput(); err != nil {
			return fmt.Errorf("find what Kubernetes %s requires: %w: %s", version, err, bytes.TrimSpace(out))
		}
		return nil
	})
	return m, err
}

// kubernetesModFile is a go.mod that requires a version of Kubernetes, and of its own modules those
// that were published with it. Kubernetes itself takes these from its folder staging.
func (c *control) kubernetesModFile(ctx context.Context, version string) ([]byte, error) {
	run := func(into any, args ...string) error {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = filepath.Join(c.Root, "dev")
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		out, err := cmd.Output()
		if err == nil {
			err = json.Unmarshal(out, into)
		}
		if err != nil {
			return fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
		return nil
	}
	var module struct{ GoMod string }
	if err := run(&module, "list", "-m", "-json", "k8s.io/kubernetes@"+version); err != nil {
		return nil, err
	}
	var file struct {
		Go      string
		Replace []struct{ Old, New struct{ Path string } }
	}
	if err := run(&file, "mod", "edit", "-json", module.GoMod); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "module ebb.dev/ebb/dev\n\ngo %s\n\nrequire k8s.io/kubernetes %s\n\n", file.Go, version)
	for _, r := range file.Replace {
		if strings.HasPrefix(r.New.Path, "./staging/") {
			fmt.Fprintf(&text, "replace %s => %s v0.%s\n", r.Old.Path, r.Old.Path, strings.TrimPrefix(version, "v1."))
		}
	}
	return text.Bytes(), nil
}

// otherKubernetes builds the version of Kubernetes that was asked for.
func (c *control) otherKubernetes(ctx context.Context, p *parts, progress build.Progress) (made int, err error) {
	m, err := c.kubernetesModule(ctx, p.kubernetes, true)
	if err != nil {
		return 0, err
	}
	kubernetes, made, err := m.Programs(ctx, c.Cache, c.Log("build-kubernetes"), progress, "kube")
	if err != nil {
		return 0, err
	}
	p.programs["kube"] = kubernetes["kube"]
	return made, nil
}

// otherKubernetesMissing says whether it is still to be built.
func (c *control) otherKubernetesMissing(ctx context.Context, p *parts) (bool, error) {
	m, err := c.kubernetesModule(ctx, p.kubernetes, false)
	if errors.Is(err, errNotMade) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	_, missing, err := m.Cached(ctx, c.Cache, "kube")
	return len(missing) > 0, err
}

// sameKubernetes refuses a version on the data of another one: the older cannot read what the newer
// has written. A new default is no other one, because Kubernetes upgrades its data by itself.
func (c *control) sameKubernetes(p *parts) error {
	if _, err := os.Stat(c.In("etcd")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	text, err := os.ReadFile(c.In("kubernetes"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if is := strings.TrimSpace(string(text)); is != p.kubernetes {
		return fmt.Errorf("this cluster is one of Kubernetes %s, and another version cannot take over its data: run `make down` first, or leave the version as it is",
			cmp.Or(is, kube.Version))
	}
	return nil
}

// rememberKubernetes is for sameKubernetes.
func (c *control) rememberKubernetes(p *parts) error {
	if p.kubernetes == "" {
		return os.RemoveAll(c.In("kubernetes"))
	}
	return os.WriteFile(c.In("kubernetes"), []byte(p.kubernetes+"\n"), 0o644)
}
