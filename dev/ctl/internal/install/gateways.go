package install

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// Implementation is an implementation of the Gateway API.
type Implementation struct {
	Namespace  string
	Deployment string   // in that namespace
	Classes    []string // GatewayClasses
}

// IstioManifests renders Istio's own chart with the program of dev/istio/chart, and adds its kinds,
// which are in its module's folder.
func IstioManifests(ctx context.Context, chart, module, pilot, proxy string) ([]byte, error) {
	values, err := render("istio.yaml", map[string]any{"Pilot": pilot, "Proxy": proxy})
	if err != nil {
		return nil, err
	}
	manifests, err := rendered(exec.CommandContext(ctx, chart), values, "istio-system")
	if err != nil {
		return nil, err
	}
	kinds, err := os.ReadFile(filepath.Join(module, "manifests/charts/base/files/crd-all.gen.yaml"))
	return slices.Concat(manifests, []byte("\n---\n"), kinds), err
}

// EnvoyGatewayManifests renders Envoy Gateway's own chart, which is in its module's folder, with
// Helm, and adds its kinds.
func EnvoyGatewayManifests(ctx context.Context, helm, module, gateway, proxy string) ([]byte, error) {
	values, err := render("envoygateway.yaml", map[string]any{"Gateway": gateway, "Proxy": proxy})
	if err != nil {
		return nil, err
	}
	chart := filepath.Join(module, "charts/gateway-helm")
	kinds, err := filepath.Glob(filepath.Join(chart, "charts/crds/crds/generated/*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(kinds) == 0 {
		return nil, fmt.Errorf("there are no kinds of Envoy Gateway below %s", chart)
	}
	// The chart's defaults are a template of its maintainers. What it leaves open, ours set.
	manifests, err := rendered(exec.CommandContext(ctx, helm, "template", "envoy-gateway", chart, "--namespace", "envoy-gateway-system",
		"--values", filepath.Join(chart, "values.tmpl.yaml"), "--values", "-"), values, "envoy-gateway-system")
	if err != nil {
		return nil, err
	}
	for _, file := range kinds {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		manifests = append(append(manifests, "\n---\n"...), text...)
	}
	return manifests, nil
}

// rendered returns the namespace and what a program makes of the values.
func rendered(program *exec.Cmd, values []byte, namespace string) ([]byte, error) {
	program.Stdin = bytes.NewReader(values)
	var complaint bytes.Buffer
	program.Stderr = &complaint
	out, err := program.Output()
	if err != nil {
		return nil, fmt.Errorf("render the chart for %s: %w: %s", namespace, err, bytes.TrimSpace(complaint.Bytes()))
	}
	return append([]byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+namespace+"}\n---\n"), out...), nil
}

// Install applies manifests and waits until the implementation serves.
func (i Implementation) Install(ctx context.Context, k Kubectl, manifests []byte) error {
	// A Job cannot be changed. One that has made its Secrets leaves them alone.
	if _, err := k.Run(ctx, nil, "-n", i.Namespace, "delete", "jobs", "--all"); err != nil {
		return err
	}
	if _, err := ApplyInOrder(ctx, k, manifests); err != nil {
		return err
	}
	return k.Rollout(ctx, i.Namespace, "deployment/"+i.Deployment, 3*time.Minute)
}

// Remove removes the implementation, whose manifests are in a file, with the Gateways of Ebb.
func (i Implementation) Remove(ctx context.Context, k Kubectl, file string) error {
	// The implementation removes what it has made for Gateways, and lets go of its classes.
	for _, args := range [][]string{
		{"-n", "knative-serving", "delete", "gateways.gateway.networking.k8s.io", "--all", "--cascade=foreground", "--timeout=2m"},
		append([]string{"delete", "gatewayclasses", "--ignore-not-found", "--timeout=1m"}, i.Classes...),
		// Envoys would drain for a minute, and a namespace that is deleted while pods end
		// stays for half of their grace period.
		{"-n", i.Namespace, "delete", "deployments", "--all", "--timeout=1m"},
		{"-n", i.Namespace, "delete", "pods", "--all", "--grace-period=1", "--timeout=1m"},
		{"delete", "--ignore-not-found", "--timeout=3m", "-f", file},
		// istiod makes classes again, and writes its certificate into all namespaces.
		append([]string{"delete", "gatewayclasses", "--ignore-not-found", "--timeout=1m"}, i.Classes...),
		{"delete", "configmaps", "--all-namespaces", "--selector=istio.io/config=true"},
	} {
		if _, err := k.Run(ctx, nil, args...); err != nil {
			return err
		}
	}
	return nil
}
