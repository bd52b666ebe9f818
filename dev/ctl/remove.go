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

	"ebb.dev/ebb/dev/ctl/internal/install"
	"ebb.dev/ebb/dev/ctl/internal/step"
)

// servingLeft are the objects that tell whether Ebb or Knative is there.
var servingLeft = []string{"get", "crd/services.serving.knative.dev", "crd/serverlessservices.networking.internal.knative.dev",
	"namespace/knative-serving", "--ignore-not-found", "-o", "name"}

// removeServing removes Ebb and Knative if one is there, or what is left of them. The services and
// kinds go first: what they stand for, the controller removes.
func (c *control) removeServing(ctx context.Context, title string) error {
	k := c.kubectl()
	left, err := k.Run(ctx, nil, servingLeft...)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		if err := c.steps.Do(ctx, title, func(ctx context.Context, _ *step.Report) error { return removeEbb(ctx, k, string(left), c.Root) }); err != nil {
			return err
		}
	}
	for _, done := range []string{c.applied("install Ebb"), c.applied("install Knative"), c.foreign()} {
		if err := os.Remove(done); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func removeEbb(ctx context.Context, k install.Kubectl, left, root string) error {
	if strings.Contains(left, "serverlessservices.networking") {
		if err := unlock(ctx, k); err != nil {
			return err
		}
	}
	if strings.Contains(left, "services.serving.knative.dev") {
		for _, kind := range []string{"domainmappings.serving.knative.dev", "services.serving.knative.dev"} {
			if _, err := k.Run(ctx, nil, "delete", "--all", "--all-namespaces", "--cascade=foreground", "--timeout=3m", kind); err != nil {
				return err
			}
		}
	}
	kinds, err := k.Run(ctx, nil, "get", "crd", "-o", "name")
	if err != nil {
		return err
	}
	remove := []string{"delete", "--ignore-not-found", "--timeout=3m"}
	for kind := range strings.Lines(string(kinds)) {
		if kind = strings.TrimSpace(kind); strings.HasSuffix(kind, ".knative.dev") {
			remove = append(remove, kind)
		}
	}
	if len(remove) > 3 {
		if _, err := k.Run(ctx, nil, remove...); err != nil {
			return err
		}
	}
	// A namespace that is deleted while activators end stays for half of their grace period.
	if _, err := k.Run(ctx, nil, "-n", "knative-serving", "delete", "--all", "--cascade=foreground", "--timeout=3m", "deployments,statefulsets,daemonsets"); err != nil {
		return err
	}
	// In the middle of a move, activators have no Deployment.
	if _, err := k.Run(ctx, nil, "-n", "knative-serving", "delete", "--all", "--grace-period=1", "--timeout=1m", "pods"); err != nil {
		return err
	}
	if _, err := k.Run(ctx, nil, "delete", "--ignore-not-found", "--wait=false", "-k", filepath.Join(root, "config")); err != nil {
		return err
	}
	if _, err := k.Run(ctx, nil, "delete", "--wait=false", "clusterroles,clusterrolebindings,gatewayclasses", "-l", "app.kubernetes.io/name=knative-serving"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 6*time.Minute)
	defer cancel()
	for {
		left, err := k.Run(ctx, nil, servingLeft...)
		if err != nil || len(left) == 0 {
			return err
		}
		if err := removeAPIs(ctx, k); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("this is still there: %s", left)
		case <-time.After(time.Second):
		}
	}
}

// unlock removes what keeps objects of Knative from being deleted while its programs do not run, as
// in the middle of a move to Ebb: webhooks that must be asked, and finalizers.
func unlock(ctx context.Context, k install.Kubectl) error {
	if _, err := k.Run(ctx, nil, "delete", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "-l", "app.kubernetes.io/name=knative-serving"); err != nil {
		return err
	}
	for _, kind := range []string{"ingresses.networking.internal.knative.dev", "routes.serving.knative.dev", "domainmappings.serving.knative.dev"} {
		var list struct {
			Items []struct {
				Metadata struct {
					Namespace, Name string
					Finalizers      []string
				}
			}
		}
		if err := k.Get(ctx, &list, "--all-namespaces", kind); err != nil {
			if strings.Contains(err.Error(), "the server doesn't have a resource type") {
				continue
			}
			return err
		}
		for _, o := range list.Items {
			if len(o.Metadata.Finalizers) == 0 {
				continue
			}
			if _, err := k.Run(ctx, nil, "-n", o.Metadata.Namespace, "patch", kind, o.Metadata.Name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeAPIs removes the APIs that Ebb served, of whichever version. One whose server is gone keeps
// namespaces from being deleted.
func removeAPIs(ctx context.Context, k install.Kubectl) error {
	var apis struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ Service struct{ Namespace string } }
		}
	}
	if err := k.Get(ctx, &apis, "apiservices"); err != nil {
		return err
	}
	for _, api := range apis.Items {
		if api.Spec.Service.Namespace == "knative-serving" {
			if _, err := k.Run(ctx, nil, "delete", "apiservice", api.Metadata.Name, "--ignore-not-found"); err != nil {
				return err
			}
		}
	}
	return nil
}
