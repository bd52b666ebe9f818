package main

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"ebb.dev/ebb/dev/ctl/internal/kube"
)

func TestAnotherKubernetesTakesItsOwnModules(t *testing.T) {
	c := checkout(t, t.TempDir())
	c.Root = "../.."
	file, err := c.kubernetesModFile(t.Context(), "v1.35.4")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"go 1.25.0\n", "require k8s.io/kubernetes v1.35.4\n", "replace k8s.io/client-go => k8s.io/client-go v0.35.4\n",
		"replace k8s.io/kubelet => k8s.io/kubelet v0.35.4\n"} {
		if !strings.Contains(string(file), line) {
			t.Errorf("%q is not in\n%s", line, file)
		}
	}
	if flags := kube.LDFlags("v1.35.4"); !strings.Contains(flags, "gitVersion=v1.35.4") || !strings.Contains(flags, "gitMinor=35") {
		t.Errorf("the programs say that they are %s", flags)
	}
	if _, err := c.kubernetesModFile(t.Context(), "v1.35.999"); err == nil || !strings.Contains(err.Error(), "v1.35.999") {
		t.Errorf("a version that does not exist: %v", err)
	}
	if other := folders(&parts{gateway: istio, kubernetes: "v1.35.4"}); slices.Contains(other, "kube") {
		t.Errorf("two versions of Kubernetes are built: %v", other)
	}
	if missing, err := c.otherKubernetesMissing(t.Context(), &parts{kubernetes: "v1.35.4"}); err != nil || !missing {
		t.Errorf("what nobody has built is there: %v, %v", missing, err)
	}
}

func TestAnotherKubernetesDoesNotGetTheData(t *testing.T) {
	c := checkout(t, t.TempDir())
	older := &parts{gateway: istio, kubernetes: "v1.35.4"}
	newest := &parts{gateway: istio}
	if err := errors.Join(c.sameKubernetes(older), c.sameKubernetes(newest)); err != nil {
		t.Errorf("without a cluster: %v", err)
	}
	if err := os.MkdirAll(c.In("etcd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.sameKubernetes(older); err == nil || !strings.Contains(err.Error(), kube.Version+", and") || !strings.Contains(err.Error(), "make down") {
		t.Errorf("on the data of the default: %v", err)
	}
	if err := errors.Join(c.rememberKubernetes(older), c.sameKubernetes(older)); err != nil {
		t.Errorf("the same once more: %v", err)
	}
	if err := c.sameKubernetes(newest); err == nil || !strings.Contains(err.Error(), "v1.35.4, and") {
		t.Errorf("on the data of another: %v", err)
	}
	if err := errors.Join(c.rememberKubernetes(newest), c.sameKubernetes(newest)); err != nil {
		t.Error(err)
	}
}
