//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/browser"
	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

const viewer = `
apiVersion: v1
kind: ServiceAccount
metadata:
  name: viewer
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: viewer
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: view
subjects:
- kind: ServiceAccount
  name: viewer
  namespace: %s
`

// Somebody who may view one namespace looks at a Service that is at its limit, while load runs.
func TestTheDashboardShowsToEachWhatHeMayRead(t *testing.T) {
	chromium := browser.ForTest(t)
	s := begin(t, 4*time.Minute)
	s.apply(fmt.Sprintf(viewer, s.namespace))
	url := s.readyAtZero("shown", service{name: "shown", annotations: map[string]string{
		"autoscaling.knative.dev/max-scale": "1", "autoscaling.knative.dev/target": "2"}}.manifest())

	client := s.client()
	if reply := probe.Get(s.ctx, client, url); !reply.OK() { // a cold start
		t.Fatal(reply)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	var load sync.WaitGroup
	defer load.Wait()
	defer cancel()
	for range 8 {
		load.Go(func() {
			for ctx.Err() == nil {
				probe.Get(ctx, client, url+"?sleep=200")
			}
		})
	}

	token, err := s.Kube.CoreV1().ServiceAccounts(s.namespace).CreateToken(s.ctx, "viewer", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	svc, err := s.Kube.CoreV1().Services(cluster.System).Get(s.ctx, "dashboard", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tab, err := chromium.Tab(1180, 900, false)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	page := "http://" + svc.Spec.ClusterIP + "/"
	shows := func(path string, texts ...string) {
		t.Helper()
		if err := tab.Do(chromedp.Navigate(page + path)); err != nil {
			t.Fatal(err)
		}
		s.until(path+" shows "+strings.Join(texts, ", "), func() (bool, string, error) {
			body, err := chromedp.Run(tab, chromedp.Evaluate[string]("document.body.innerText"))
			for _, text := range texts {
				if !strings.Contains(body, text) {
					return false, fmt.Sprintf("%q is not in: %s", text, body), nil
				}
			}
			return err == nil, body, err
		})
	}
	shows("", "Sign in")
	if err := tab.Do(chromedp.SendKeys(chromedp.CSS("#token"), token.Status.Token+"\r")); err != nil {
		t.Fatal(err)
	}
	shows("#/ns/"+s.namespace, "1 Service", "shown", "Live")
	shows("#/ns/"+s.namespace+"/shown", "At its limit", "max-scale allows 1 of the ", "shown-00001", "100 %", "Live", "Cold starts", "the newest one", "RoutesReady", "ScaledUp")
	s.until("two charts and a ribbon are drawn", func() (bool, string, error) { // the charts' library comes after the page
		drawn, err := chromedp.Run(tab, chromedp.Evaluate[string]("document.querySelectorAll('.plot canvas').length + ' charts, ' + Math.min(1, document.querySelectorAll('.lane i').length) + ' ribbon'"))
		return drawn == "2 charts, 1 ribbon", drawn, err
	})
	shows("#/", "You may not read Services of all namespaces.")
	shows("#/ns/default", "You may not read Services in the namespace default.")
	for _, complaint := range tab.Complaints() {
		t.Error("the browser complains: " + complaint)
	}
}
