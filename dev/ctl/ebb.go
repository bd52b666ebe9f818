package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ebb.dev/ebb/dev/ctl/internal/build"
	"ebb.dev/ebb/dev/ctl/internal/image"
	"ebb.dev/ebb/dev/ctl/internal/install"
	"ebb.dev/ebb/dev/ctl/internal/step"
)

// components are Ebb's own programs, and what of the cluster runs them. queue-proxy runs in each
// user's pod, and the shim in those that ask for it.
var components = map[string]string{"activator": "deployment", "autoscaler": "deployment", "controller": "deployment", "webhook": "deployment",
	"node-agent": "daemonset", "courier": "statefulset", "dashboard": "deployment", "queue-proxy": "", "shim": "", edgeProgram: ""}

// edgeProgram is inEdge in one process, as config/edge installs it, in the Deployment ebb.
const edgeProgram = "cmd/ebb"

var inEdge = []string{"activator", "autoscaler", "controller", "webhook"}

// plugin is kubectl's, which runs beside the cluster.
const plugin = "kubectl-ebb"

// ebb installs what this checkout holds and shows that it works.
func (c *control) ebb(ctx context.Context, compiling *task, p *parts) error {
	err := c.steps.Do(ctx, "build Ebb, the samples and the test images", func(_ context.Context, r *step.Report) error {
		return compiling.wait(r)
	})
	if err != nil {
		return err
	}
	var refs map[string]string
	err = c.steps.Do(ctx, "images of Ebb, the samples and the tests", func(ctx context.Context, r *step.Report) (err error) {
		refs, err = c.ebbImages(ctx, r, p)
		return err
	})
	if err != nil {
		return err
	}
	if err := c.installEbb(ctx, refs, p); err != nil {
		return err
	}
	var replies []install.Reply
	if err := c.steps.Do(ctx, "samples", func(ctx context.Context, r *step.Report) (err error) {
		replies, err = install.Samples(ctx, c.kubectl(), filepath.Join(c.Root, "samples"), []string{"hello-go", "hello-python"}, refs)
		r.Note("%d answered", len(replies))
		return err
	}); err != nil {
		return err
	}
	c.done(replies)
	return nil
}

// images names the image of each of this checkout's programs, by the program's folder.
func (c *control) images() (map[string]string, error) {
	names := map[string]string{}
	for component := range components {
		names[component] = "dev.local/ebb/" + component
	}
	for dir, prefix := range map[string]string{"samples": "dev.local/ebb/", "test/images": "dev.local/ebb-test/"} {
		found, err := mains(c.Root, dir)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			names[f] = prefix + filepath.Base(f)
		}
	}
	return names, nil
}

// ebbImages makes images of the compiled programs and of the interpreted samples.
func (c *control) ebbImages(ctx context.Context, r *step.Report, p *parts) (map[string]string, error) {
	names, err := c.images()
	if err != nil {
		return nil, err
	}
	var recipes []recipe
	for dir, name := range names {
		binary := p.ebb[dir]
		digest, err := fileDigest(binary)
		if err != nil {
			return nil, err
		}
		inside := "/ko-app/" + filepath.Base(dir) // where ko puts it
		recipes = append(recipes, program(name, digest, binary, inside, image.Settings{}))
	}
	for _, sample := range interpretedSamples {
		r, err := sample.recipe(c.Root, "dev.local/ebb", p.trees[sample.name], nil)
		if err != nil {
			return nil, err
		}
		recipes = append(recipes, r)
	}
	s, err := c.shelf(ctx)
	if err != nil {
		return nil, err
	}
	refs, fresh, err := s.load(ctx, recipes)
	r.Note("%d images, %d new", len(refs), fresh)
	return refs, err
}

// compile builds the programs in folders of this checkout, and the plugin. Programs with the same
// name would overwrite one another, so each parent folder has a `go build` of its own.
func (c *control) compile(ctx context.Context, progress build.Progress, target build.Target, into string, folders []string) (map[string]string, error) {
	groups := map[string][]string{}
	for _, dir := range folders {
		groups[filepath.Dir(dir)] = append(groups[filepath.Dir(dir)], dir)
	}
	binaries := map[string]string{}
	for _, parent := range slices.Sorted(maps.Keys(groups)) {
		out := filepath.Join(into, parent)
		if err := os.MkdirAll(out, 0o755); err != nil {
			return nil, err
		}
		var packages []string
		for _, d := range groups[parent] {
			packages = append(packages, "./"+d)
			binaries[d] = filepath.Join(out, filepath.Base(d))
		}
		log := c.Log("build-ebb-" + strings.ReplaceAll(strings.Trim(parent, "./"), "/", "-"))
		if err := build.Go(ctx, c.Root, log, progress, target, out+"/", packages...); err != nil {
			return nil, err
		}
	}
	return binaries, nil
}

// ebbManifests is config/ with the names of the images just built, through an overlay that a person
// can read and apply by hand.
func (c *control) ebbManifests(ctx context.Context, refs map[string]string, p *parts) ([]byte, error) {
	overlay := c.In("overlay")
	if err := os.MkdirAll(overlay, 0o755); err != nil {
		return nil, err
	}
	var profile []string
	if p.edge {
		profile = []string{"../../config/edge"}
	}
	if p.gateway == envoyGateway {
		profile = append(profile, "../../config/envoy-gateway")
	}
	resources := []string{"../../config", "../../config/courier-emptydir", "../../config/dashboard"}
	if p.gateway == istio {
		resources = append(resources, "../../config/istio")
	}
	text, err := install.Overlay(refs, p.monitoring, c.plan.Nodes > 1, profile, resources...)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), text, 0o644); err != nil {
		return nil, err
	}
	return c.kubectl().Run(ctx, nil, "kustomize", overlay)
}

// installEbb applies Ebb's manifests and waits until it is ready.
func (c *control) installEbb(ctx context.Context, refs map[string]string, p *parts) error {
	k := c.kubectl()
	runs := maps.Clone(components)
	gone := []string{"deployment/ebb", "networkpolicy/ebb", "service/coap"} // of the other profile
	if p.edge {
		gone = nil
		for _, component := range inEdge {
			delete(runs, component)
			for _, kind := range []string{"deployment", "horizontalpodautoscaler", "poddisruptionbudget", "networkpolicy"} {
				gone = append(gone, kind+"/"+component)
			}
		}
		runs["ebb"] = "deployment"
	}
	manifests, err := c.ebbManifests(ctx, refs, p)
	if err != nil {
		return err
	}
	if err := c.once(ctx, "install Ebb", string(manifests), func(ctx context.Context, r *step.Report) error {
		changed, err := install.ApplyInOrder(ctx, k, manifests)
		r.Note("%d objects applied; by hand: kubectl apply --server-side -k %s", changed, c.In("overlay"))
		if err != nil {
			return err
		}
		_, err = k.Run(ctx, nil, append([]string{"-n", "knative-serving", "delete", "--ignore-not-found", "--wait=false"}, gone...)...)
		return err
	}); err != nil {
		return err
	}
	return c.steps.Do(ctx, "Ebb is ready", func(ctx context.Context, r *step.Report) error {
		var all []string
		for _, component := range slices.Sorted(maps.Keys(runs)) {
			if kind := runs[component]; kind != "" {
				all = append(all, kind+"/"+component)
			}
		}
		if gateways, settled := install.Settled(ctx, k, all); settled {
			r.Note("%s", strings.Join(gateways, ", "))
			return nil
		}
		for _, component := range all {
			if err := k.Rollout(ctx, "knative-serving", component, 2*time.Minute); err != nil {
				return err
			}
		}
		gateways, err := install.Gateways(ctx, k, 90*time.Second)
		r.Note("%s", strings.Join(gateways, ", "))
		return err
	})
}

// done prints what a person wants to know next.
func (c *control) done(replies []install.Reply) {
	fmt.Fprintf(c.out, "\nThe cluster is up after %.0f s. Point kubectl at it:\n  eval \"$(make -s -C %s kubeconfig)\"\n", c.steps.Elapsed().Seconds(), c.Root)
	for _, r := range replies {
		fmt.Fprintf(c.out, "\n%s answered its first request in %.2f s:\n  %s\n  %s\n", r.Name, r.Took.Seconds(), r.Curl, strings.TrimSpace(r.Body))
	}
	fmt.Fprint(c.out, `
Next:
  kubectl get ksvc                      the samples, their addresses and whether they are ready
  kubectl get pods -w                   watch them go to zero, and come back when you call
  kubectl apply -f samples/autoscaling  a service that grows under load
  make test                             every promise, tested on this cluster
  make down                             leaves nothing behind
`)
}

// withoutEbb removes Ebb if it is there, whoever installed it, or Knative.
func (c *control) withoutEbb(ctx context.Context) error {
	if err := c.removeServing(ctx, "remove Ebb"); err != nil {
		return err
	}
	fmt.Fprintf(c.out, "\nThe cluster is up after %.0f s, without Ebb. Point kubectl and helm at it:\n  eval \"$(make -s -C %s kubeconfig)\"\n", c.steps.Elapsed().Seconds(), c.Root)
	return nil
}
