//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/registry"
)

// The node pulls an image that it does not have from a real registry, which takes its time.
func TestAColdStartThatWaitedForAnImageSaysSo(t *testing.T) {
	s := beginAlone(t, 4*time.Minute)
	if nodes, err := s.Kube.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{}); err != nil || len(nodes.Items) != 1 {
		t.Skipf("the registry listens where one node alone reaches it (%v)", err)
	}
	s.config("config-autoscaler", map[string]string{"allow-zero-initial-scale": "true"})
	run := s.plugin()
	atZero := map[string]string{"autoscaling.knative.dev/initial-scale": "0"}
	slow := registry.Start(3 * time.Second)
	s.Cleanup(slow.Close)
	image, err := slow.Push(s.ctx, "samples/hello-go", 1000)
	if err != nil {
		t.Fatal(err)
	}
	missing := s.ready("missing", service{name: "missing", image: image, annotations: atZero}.manifest())
	there := s.ready("there", service{name: "there", annotations: atZero}.manifest())
	s.answers(s.client(), missing)
	s.answers(s.client(), there)
	for name, want := range map[string]bool{"missing": true, "there": false} {
		s.until("the cold start of "+name+" is told", func() (bool, string, error) {
			out, ok := run("coldstarts", name)
			if !ok || !strings.Contains(out, "  pull ") {
				return false, out, nil
			}
			if got := strings.Contains(out, "The node did not have an image of the pod and pulled it."); got != want {
				t.Errorf("%s: %s", name, out)
			}
			return true, out, nil
		})
	}
}
