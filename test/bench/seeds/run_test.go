package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
)

// The API server of tests has no Ebb, so that every experiment fails at its first step.
func TestAnExperimentThatFailsSaysSoAndTheNextBegins(t *testing.T) {
	_, config := apiservertest.Start(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "test",
"clusters": [{"name": "test", "cluster": {"server": "`+config.Host+`"}}],
"contexts": [{"name": "test", "context": {"cluster": "test"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", kubeconfig)
	t.Setenv("EBB_GATEWAY", "127.0.0.1:9")
	ctx := context.Background()
	c, err := cluster.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = run(ctx, c, options{experiments: []string{"sieve", "payload"}, scale: 1}, &result.Printer{Bench: "seeds", Out: &out})
	if err == nil || !strings.Contains(err.Error(), "payload, sieve failed") {
		t.Errorf("the run ends with %v", err)
	}
	all, err := parseLines(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sieve", "payload"} {
		if l := all[name]; l.done() != nil || l.failure() == "it did not end" {
			t.Errorf("%s says %v", name, l)
		}
	}
	left, err := c.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: "ebb.dev/test"})
	if err != nil {
		t.Fatal(err)
	}
	if len(left.Items) > 0 {
		t.Errorf("%d namespaces are left", len(left.Items))
	}
}

func TestAnExperimentThatDoesNotExistIsNamed(t *testing.T) {
	if err := known([]string{"sieve", "sive"}); err == nil || !strings.Contains(err.Error(), `"sive"`) {
		t.Errorf("got %v", err)
	}
}
