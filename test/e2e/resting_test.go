//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/load"
)

// mayRest is how long gateways must not have sent requests to pods before a Service rests, and
// some.
const mayRest = 5*time.Minute + 20*time.Second

// needsResting skips a test where hosts do not rest: the setting counts for every service of the
// cluster, so who runs the tests chooses it for all of them.
func (s *story) needsResting() {
	s.Helper()
	m, err := s.Kube.CoreV1().ConfigMaps(cluster.System).Get(s.ctx, "config-gateway", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	if m.Data["resting-routes"] != "Enabled" {
		s.Skip("resting-routes in config-gateway is not Enabled (docs/decisions/0020)")
	}
}

// httpRoutes tells how many HTTPRoutes of its own a Service has, and how many bridges.
func (s *story) httpRoutes(name string) (own, bridges int, err error) {
	list, err := s.Dynamic.Resource(cluster.HTTPRoutes).Namespace(s.namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/route=" + name})
	if err != nil {
		return 0, 0, err
	}
	route, err := s.Get(s.ctx, cluster.Routes, s.namespace, name)
	if err != nil {
		return 0, 0, err
	}
	between, err := s.Dynamic.Resource(cluster.HTTPRoutes).Namespace(cluster.System).List(s.ctx, metav1.ListOptions{LabelSelector: "networking.ebb.dev/bridge=" + string(route.GetUID())})
	if err != nil {
		return 0, 0, err
	}
	return len(list.Items), len(between.Items), nil
}

func (s *story) awaitHTTPRoutes(name string, want int) {
	s.Helper()
	s.until(fmt.Sprintf("Service %s has %d HTTPRoutes", name, want), func() (bool, string, error) {
		own, bridges, err := s.httpRoutes(name)
		if err != nil {
			return false, err.Error(), nil
		}
		return own == want && bridges == 0, fmt.Sprintf("%d HTTPRoutes, %d bridges", own, bridges), nil
	})
}

// A Service at zero has no HTTPRoute, and answers. Under load it has its own, and loses them later.
func TestAServiceRestsWhileActivatorsServeIt(t *testing.T) {
	s := begin(t, 15*time.Minute)
	s.needsResting()
	// Without spare capacity that the autoscaler waits for, gateways send requests to pods at once.
	url := s.readyAtZero("rests", service{name: "rests", annotations: map[string]string{"autoscaling.knative.dev/target-burst-capacity": "0"}}.manifest())
	s.awaitHTTPRoutes("rests", 0)
	client := s.client()
	s.answers(client, url)

	report := make(chan *load.Report, 1)
	go func() {
		report <- load.Loop{Client: client, URL: url + "?sleep=10", Outstanding: 10, Lasts: time.Minute}.Run(s.ctx)
	}()
	s.awaitHTTPRoutes("rests", 2)
	if r := <-report; r.Failed > 0 {
		t.Errorf("%d of %d requests are lost under load: %v", r.Failed, r.Total, r.Failure)
	}
	s.awaitZero("rests")
	s.awaitHTTPRoutes("rests", 0)
	s.answers(client, url)
}

// No request is lost when a Service gets HTTPRoutes of its own because of an annotation, and when
// it comes to rest again.
func TestNoRequestIsLostBetweenRestAndHTTPRoutesOfItsOwn(t *testing.T) {
	s := begin(t, 15*time.Minute)
	s.needsResting()
	// All requests pass activators, so that only the annotation counts.
	url := s.ready("between", service{name: "between", annotations: map[string]string{"autoscaling.knative.dev/target-burst-capacity": "-1",
		"autoscaling.knative.dev/min-scale": "1"}}.manifest())
	s.awaitHTTPRoutes("between", 0)
	if err := cluster.Pause(s.ctx, mayRest); err != nil {
		t.Fatal(err)
	}
	requests := s.keepInFlight(url + "?sleep=5")
	defer requests.stop()
	requests.add(4) // each fails the test that is not answered with success
	for range 3 {
		s.letRest("between", "disabled")
		s.awaitHTTPRoutes("between", 2)
		s.letRest("between", "enabled")
		s.awaitHTTPRoutes("between", 0)
	}
}

// letRest says whether a Service may rest.
func (s *story) letRest(name, value string) {
	s.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{"networking.ebb.dev/resting": value}}})
	if err != nil {
		s.Fatal(err)
	}
	if _, err := s.Dynamic.Resource(cluster.Services).Namespace(s.namespace).Patch(s.ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
}
