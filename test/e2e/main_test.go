//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
)

// shared is the cluster that all tests use. TestMain connects to it.
var shared *cluster.Cluster

func TestMain(m *testing.M) {
	os.Exit(func() int {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c, err := cluster.Connect(ctx)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		shared = c
		left, err := c.RestoreConfig(ctx)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if len(left) > 0 {
			fmt.Fprintln(os.Stderr, "restored these settings, which an interrupted run had left:", strings.Join(left, " "))
		}
		// The shortest legal timings: the tests show what happens, not how long it takes by
		// default.
		restore, err := c.SetConfig(ctx, "config-autoscaler", map[string]string{
			"stable-window":              "6s",
			"scale-to-zero-grace-period": "6s",
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := restore(ctx); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
		return m.Run()
	}())
}

// story is one test with its namespace in the cluster.
type story struct {
	*testing.T
	*cluster.Cluster
	ctx       context.Context
	namespace string
}

// begin gives the test a namespace and limits its duration. After a failure it dumps the namespace.
func begin(t *testing.T, limit time.Duration) *story {
	t.Helper()
	t.Parallel()
	return beginAlone(t, limit)
}

// beginAlone is begin for a test that disturbs what all services need. No other test runs at the
// same time.
func beginAlone(t *testing.T, limit time.Duration) *story {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, fmt.Errorf("the test may take %s", limit))
	t.Cleanup(cancel)
	return &story{T: t, Cluster: shared, ctx: ctx, namespace: shared.NamespaceOf(ctx, t, "e2e")}
}

// needsAProcessOfEach skips a test of what becomes of the others when one component goes away or
// has several replicas.
func (s *story) needsAProcessOfEach() {
	s.Helper()
	if s.OneProcess() {
		s.Skip("the edge profile has one process for all components (docs/edge.md)")
	}
}

func (s *story) apply(manifest string) {
	s.Helper()
	if err := s.Apply(s.ctx, s.namespace, manifest); err != nil {
		s.Fatal(err)
	}
}

// ready applies the manifest of the Service called name and returns its URL as soon as it is Ready.
func (s *story) ready(name, manifest string) string {
	s.Helper()
	s.apply(manifest)
	url, err := s.AwaitReady(s.ctx, s.namespace, name)
	if err != nil {
		s.Fatal(err)
	}
	return url
}

// readyAtZero is ready, and then waits until the Service has no pod.
func (s *story) readyAtZero(name, manifest string) string {
	s.Helper()
	url := s.ready(name, manifest)
	s.awaitZero(name)
	return url
}

func (s *story) awaitZero(name string) {
	s.Helper()
	if err := s.AwaitNoPods(s.ctx, s.namespace, name); err != nil {
		s.Fatalf("Service %s did not go to zero: %v", name, err)
	}
}

func (s *story) until(what string, look func() (done bool, seen string, err error)) {
	s.Helper()
	if err := cluster.Until(s.ctx, look); err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// client returns a client that waits for a response as long as a browser would.
func (s *story) client() *http.Client {
	client := s.Client(2 * time.Minute)
	s.Cleanup(client.CloseIdleConnections)
	return client
}

// watchPods records the highest number of running pods of a Service until the returned function is
// called.
func (s *story) watchPods(name string) (most func() int) {
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan int)
	go func() {
		largest := 0
		cluster.Until(ctx, func() (bool, string, error) {
			if pods, err := s.Pods(ctx, s.namespace, name, false); err == nil {
				largest = max(largest, len(pods))
			}
			return false, "", nil
		})
		done <- largest
	}()
	return func() int {
		cancel()
		return <-done
	}
}

// service is the manifest of a Service that runs the test image.
type service struct {
	name        string
	revision    string            // template.metadata.name
	concurrency int               // containerConcurrency
	annotations map[string]string // of the template
	env         map[string]string
	image       string // default: the autoscale test image
	cpu         string // what the container requests; default: nothing
	traffic     string // YAML of the traffic list, indented by two
	bare        bool   // a pod without volumes
}

const testImage = "dev.local/ebb-test/autoscale:dev"

func (v service) manifest() string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  template:\n    metadata:\n", v.name)
	if v.revision != "" {
		fmt.Fprintf(&b, "      name: %s\n", v.revision)
	}
	b.WriteString("      annotations:\n        ebb.dev/test: \"true\"\n")
	for key, value := range v.annotations {
		fmt.Fprintf(&b, "        %s: %q\n", key, value)
	}
	b.WriteString("    spec:\n")
	if v.bare {
		b.WriteString("      automountServiceAccountToken: false\n")
	}
	fmt.Fprintf(&b, "      containerConcurrency: %d\n      containers:\n", v.concurrency)
	image := v.image
	if image == "" {
		image = testImage
	}
	fmt.Fprintf(&b, "      - image: %s\n", image)
	if len(v.env) > 0 {
		b.WriteString("        env:\n")
		for key, value := range v.env {
			fmt.Fprintf(&b, "        - name: %s\n          value: %q\n", key, value)
		}
	}
	if v.cpu != "" {
		fmt.Fprintf(&b, "        resources:\n          requests:\n            cpu: %s\n", v.cpu)
	}
	if v.traffic != "" {
		b.WriteString("  traffic:\n" + v.traffic)
	}
	return b.String()
}

func (s *story) deleteClaim(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Dynamic.Resource(cluster.DomainClaims).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		s.Error(err)
	}
}

func (s *story) deleteVolume(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Kube.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		s.Error(err)
	}
}

// config sets keys of a ConfigMap in the system namespace until the test ends.
func (s *story) config(name string, keys map[string]string) {
	s.Helper()
	restore, err := s.SetConfig(s.ctx, name, keys)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := restore(ctx); err != nil {
			s.Error(err)
		}
	})
}
