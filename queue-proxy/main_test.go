package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The sidecar stands in every pod, so its weight is multiplied by all of them.
func TestTheBinaryIsSmallAndKnowsNoKubernetes(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range strings.Fields(string(out)) {
		for _, banned := range []string{"k8s.io/", "knative.dev/", "sigs.k8s.io/", "google.golang.org/grpc", "github.com/prometheus/", "github.com/google/"} {
			if strings.HasPrefix(pkg, banned) {
				t.Errorf("queue-proxy depends on %s", pkg)
			}
		}
	}
	binary := filepath.Join(t.TempDir(), "queue-proxy")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	if mib := float64(info.Size()) / (1 << 20); mib > 12 {
		t.Errorf("the binary has %.1f MiB, want at most 12", mib)
	}
}

func TestAWrongEnvironmentIsNamed(t *testing.T) {
	env := map[string]string{"CONTAINER_CONCURRENCY": "many", "SERVING_READINESS_PROBE": `{"httpGet":{"scheme":"FTP"}}`}
	err := serve(context.Background(), func(name string) string { return env[name] }, &bytes.Buffer{})
	if err == nil {
		t.Fatal("it started")
	}
	for _, name := range []string{"SERVING_NAMESPACE", "SERVING_REVISION", "SERVING_POD", "CONTAINER_CONCURRENCY", "SERVING_READINESS_PROBE"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in: %v", name, err)
		}
	}
}
