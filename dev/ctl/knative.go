package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ebb.dev/ebb/dev/ctl/internal/build"
	"ebb.dev/ebb/dev/ctl/internal/image"
	"ebb.dev/ebb/dev/ctl/internal/install"
	"ebb.dev/ebb/dev/ctl/internal/step"
)

// knativePrograms are the programs of Knative Serving, by their folder in cmd/ of its module.
var knativePrograms = []string{"activator", "autoscaler", "controller", "queue", "webhook"}

// knativeModules hold Knative's manifests. The last one's webhook comes after the settings.
var knativeModules = []string{"knative.dev/networking", "knative.dev/caching", "knative.dev/serving"}

// knativeModule holds Knative Serving, on another line of Kubernetes' libraries.
func (c *control) knativeModule() build.Module {
	return build.Module{Dir: filepath.Join(c.Root, "dev/knative"), Import: "knative.dev/serving/cmd/"}
}

// knative is what `make up` calls the build of Knative.
const knative = "knative"

// standin is the folder of the program that stands in for a plugin of Knative's.
const standin = "standin"

// knative installs Knative Serving in place of Ebb. It leaves Ebb's images and manifests for a
// move.
func (c *control) knative(ctx context.Context, compiling *task, p *parts) error {
	if err := c.steps.Do(ctx, "build Ebb, the samples and the test images", func(_ context.Context, r *step.Report) error {
		return compiling.wait(r)
	}); err != nil {
		return err
	}
	var refs map[string]string
	if err := c.steps.Do(ctx, "images of Ebb, Knative, the samples and the tests", func(ctx context.Context, r *step.Report) (err error) {
		if refs, err = c.ebbImages(ctx, r, p); err != nil {
			return err
		}
		s, err := c.shelf(ctx)
		if err != nil {
			return err
		}
		recipes := []recipe{program("dev.local/dev/standin", p.programs[standin], p.programs[standin], "/standin", image.Settings{})}
		for _, name := range knativePrograms {
			binary := p.foreign[name]
			recipes = append(recipes, program("dev.local/knative/"+name, binary, binary, "/ko-app/"+name, image.Settings{}))
		}
		p.refs, _, err = s.load(ctx, recipes)
		return err
	}); err != nil {
		return err
	}
	ebb, err := c.ebbManifests(ctx, refs, p)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.In("ebb.yaml"), ebb, 0o644); err != nil {
		return err
	}
	manifests, err := c.knativeManifests(ctx, p)
	if err != nil {
		return err
	}
	whole, err := c.knativeIntact(ctx)
	if err != nil {
		return err
	}
	if !whole {
		if err := c.removeServing(ctx, "remove what was installed"); err != nil {
			return err
		}
		if err := os.WriteFile(c.foreign(), nil, 0o644); err != nil {
			return err
		}
	}
	k := c.kubectl()
	if err := c.once(ctx, "install Knative", string(manifests), func(ctx context.Context, r *step.Report) error {
		if _, err := install.ApplyInOrder(ctx, k, manifests); err != nil {
			return err
		}
		_, err := k.Run(ctx, nil, "apply", "--server-side", "--force-conflicts", "--field-manager=ebb-dev", "-k", filepath.Join(c.Root, "config/gateway"))
		return err
	}); err != nil {
		return err
	}
	if err := c.steps.Do(ctx, "Knative is ready", func(ctx context.Context, r *step.Report) error {
		for _, name := range []string{"activator", "autoscaler", "controller", "webhook", standin} {
			if err := k.Rollout(ctx, "knative-serving", "deployment/"+name, 2*gatewaysWait); err != nil {
				return err
			}
		}
		gateways, err := install.Gateways(ctx, k, gatewaysWait)
		r.Note("%v", gateways)
		return err
	}); err != nil {
		return err
	}
	fmt.Fprintf(c.out, "\nThe cluster is up after %.0f s, with Knative Serving. Point kubectl at it:\n  eval \"$(make -s -C %s kubeconfig)\"\n"+
		"\nNext:\n  kubectl ebb migrate --check --manifests %s\n", c.steps.Elapsed().Seconds(), c.Root, c.In("ebb.yaml"))
	return nil
}

// knativeManifests reads Knative's manifests from its modules.
func (c *control) knativeManifests(ctx context.Context, p *parts) ([]byte, error) {
	var folders []string
	for _, module := range knativeModules {
		dir, err := build.ModuleDir(ctx, c.knativeModule().Dir, module)
		if err != nil {
			return nil, err
		}
		folders = append(folders, filepath.Join(dir, "config"))
	}
	folders[2] = filepath.Join(folders[2], "core")
	return install.KnativeManifests(p.refs, p.refs["dev.local/dev/standin"], p.shipped, folders...)
}

// foreign is the file that says that this cluster has, or had, Knative.
func (c *control) foreign() string { return c.In("applied", "knative") }

// knativeIntact reports whether Knative was installed, and nothing was put in its place or has
// begun to be.
func (c *control) knativeIntact(ctx context.Context) (bool, error) {
	if _, err := os.Stat(c.foreign()); err != nil {
		return false, nil
	}
	there, err := c.kubectl().Run(ctx, nil, "-n", "knative-serving", "get", "deployments,daemonsets,configmaps", "-o",
		`jsonpath={range .items[*]}{.kind}/{.metadata.name} {.spec.template.spec.containers[0].image}{"\n"}{end}`)
	return intact(string(there)), err
}

// intact is knativeIntact, of a list of objects with their images.
func intact(list string) bool {
	for _, name := range knativePrograms {
		if name != "queue" && !strings.Contains(list, "Deployment/"+name+" dev.local/knative/"+name+":") {
			return false
		}
	}
	return strings.Contains(list, "Deployment/"+standin+" ") && !strings.Contains(list, "DaemonSet/") && !strings.Contains(list, "ConfigMap/ebb-migration ")
}

// gatewaysWait is how long the gateways may take to be there.
const gatewaysWait = 90 * time.Second

// withoutKnative removes Knative if this checkout has installed it.
func (c *control) withoutKnative(ctx context.Context) error {
	if _, err := os.Stat(c.foreign()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return c.removeServing(ctx, "remove Knative")
}
