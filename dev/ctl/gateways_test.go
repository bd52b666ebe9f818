package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ebb.dev/ebb/dev/ctl/internal/build"
	"ebb.dev/ebb/dev/ctl/internal/install"
	"ebb.dev/ebb/dev/ctl/internal/place"
	"ebb.dev/ebb/dev/ctl/internal/release"
)

func TestOneGatewayIsBuiltAtATime(t *testing.T) {
	if with := folders(&parts{gateway: istio}); !slices.Contains(with, "istio") {
		t.Errorf("with istio: %v", with)
	}
	if without := folders(&parts{gateway: envoyGateway}); slices.Contains(without, "istio") || slices.Contains(without, "istio/chart") {
		t.Errorf("with Envoy Gateway: %v", without)
	}
	for name := range implementations {
		if titles[name] == "" {
			t.Errorf("%s has no title", name)
		}
	}
}

func TestKnativeIsInPlaceOfEbb(t *testing.T) {
	t.Chdir("../..")
	for _, other := range []string{"bare", "edge", envoyGateway} {
		if err := run(t.Context(), []string{"up", knative, other}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "knative goes with none of") {
			t.Errorf("with %s: %v", other, err)
		}
	}
	if err := run(t.Context(), []string{"up", "shipped"}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "knative alone") {
		t.Errorf("without knative, shipped: %v", err)
	}
}

func TestKnativeIsInstalledAgainOverWhatIsNotWhole(t *testing.T) {
	whole := "Deployment/activator dev.local/knative/activator:1\nDeployment/autoscaler dev.local/knative/autoscaler:1\nDeployment/controller dev.local/knative/controller:1\n" +
		"Deployment/webhook dev.local/knative/webhook:1\nDeployment/standin dev.local/dev/standin:1\nConfigMap/config-gc \n"
	if !intact(whole) {
		t.Error("a whole one is not seen")
	}
	for why, list := range map[string]string{
		"nothing":      "",
		"Ebb's parts":  strings.Replace(whole, "knative/webhook", "ebb/webhook", 1),
		"Ebb's agent":  whole + "DaemonSet/node-agent dev.local/ebb/node-agent:1\n",
		"no plugin":    strings.Replace(whole, "Deployment/standin", "Deployment/other", 1),
		"begun a move": whole + "ConfigMap/ebb-migration \n",
	} {
		if intact(list) {
			t.Errorf("%s: it is taken for whole", why)
		}
	}
}

func TestTheEdgeProfileGoesWithIstioOnly(t *testing.T) {
	t.Chdir("../..")
	if err := run(t.Context(), []string{"up", "edge", envoyGateway}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "leave out GATEWAY=envoy-gateway") {
		t.Errorf("got %v", err)
	}
}

// The chart is Envoy Gateway's own. Where it puts things is what `make up` waits for and removes.
func TestEnvoyGatewayIsWhereItIsLookedFor(t *testing.T) {
	module, err := build.ModuleDir(t.Context(), "../envoygateway", "github.com/envoyproxy/gateway")
	if err != nil {
		t.Fatal(err)
	}
	helm, _, err := build.Module{Dir: "../helm"}.Programs(t.Context(), place.Of("", os.Getenv).Cache, filepath.Join(t.TempDir(), "log"), nil, "helm")
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := install.EnvoyGatewayManifests(t.Context(), helm["helm"], module, "dev.local/gateway:1", "dev.local/proxy:2")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(manifests, []byte("image: dev.local/proxy:2")) || !bytes.Contains(manifests, []byte("image: dev.local/gateway:1")) {
		t.Error("an image is not ours")
	}
	objects, err := release.Parse(manifests)
	if err != nil {
		t.Fatal(err)
	}
	want := implementations[envoyGateway]
	for _, one := range [][2]string{{"Namespace", want.Namespace}, {"Deployment", want.Deployment}, {"CustomResourceDefinition", "envoyproxies.gateway.envoyproxy.io"}} {
		if !slices.ContainsFunc(objects, func(o release.Object) bool { return o.Kind() == one[0] && o.Name() == one[1] }) {
			t.Errorf("there is no %s %s", one[0], one[1])
		}
	}
	for _, o := range objects {
		if strings.HasSuffix(o.Name(), ".gateway.networking.k8s.io") {
			t.Errorf("%s %s is of the Gateway API, which is there", o.Kind(), o.Name())
		}
	}
}
