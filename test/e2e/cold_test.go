//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// ask sends a GET with one header field.
func (s *story) ask(url, name, value string) probe.Reply {
	s.Helper()
	request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, url, nil)
	if err != nil {
		s.Fatal(err)
	}
	request.Header.Set(name, value)
	return probe.Do(s.client(), request)
}

// awaitTold waits until the status of a service's only revision has the annotation.
func (s *story) awaitTold(name, key, want string) {
	s.Helper()
	s.until(key+" is "+want, func() (bool, string, error) {
		list, err := s.Dynamic.Resource(cluster.Revisions).Namespace(s.namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/service=" + name})
		if err != nil || len(list.Items) != 1 {
			return false, "", err
		}
		got, _, _ := unstructured.NestedString(list.Items[0].Object, "status", "annotations", key)
		return got == want, describe(&list.Items[0]), nil
	})
}

const pages = `
apiVersion: v1
kind: ConfigMap
metadata:
  name: pages
  labels: {serving.ebb.dev/waiting-page: "true"}
data:
  wait.html: `

func TestABrowserSeesTheWaitingPageOfTheMoment(t *testing.T) {
	s := begin(t, 4*time.Minute)
	s.apply(pages + "<h1>soon</h1>\n")
	url := s.readyAtZero("paged", service{name: "paged", env: map[string]string{"START_DELAY_MS": "5000"}, annotations: map[string]string{
		"serving.ebb.dev/waiting-page-from": "pages/wait.html", "serving.ebb.dev/waiting-page-after": "0s"}}.manifest())
	s.awaitTold("paged", "serving.ebb.dev/waiting-page", "<h1>soon</h1>")
	s.apply(pages + "<h1>very soon</h1>\n")
	s.awaitTold("paged", "serving.ebb.dev/waiting-page", "<h1>very soon</h1>")
	// An activator hears of a change a moment after the status has it. The pod takes five seconds.
	s.until("at zero a browser gets the page of the moment", func() (bool, string, error) {
		reply := s.ask(url, "Accept", "text/html,*/*;q=0.8")
		if reply.Status != 503 || reply.Header.Get("Refresh") == "" || reply.Header.Get("Content-Type") != "text/html; charset=utf-8" {
			t.Fatalf("at zero a browser got %v, %v", reply, reply.Header)
		}
		return reply.Body == "<h1>very soon</h1>", reply.Body, nil
	})
	if reply := probe.Get(s.ctx, s.client(), url); !reply.OK() {
		t.Errorf("a program that waited got %v", reply)
	}
	// Another activator may hear of the pod a moment later.
	s.until("with a pod a browser gets the program's answer", func() (bool, string, error) {
		reply := s.ask(url, "Accept", "text/html,*/*;q=0.8")
		return reply.OK(), fmt.Sprint(reply), nil
	})
}

func TestAFallbackServiceAnswersUntilThePodIsThere(t *testing.T) {
	s := begin(t, 4*time.Minute)
	s.ready("spare", service{name: "spare", env: map[string]string{"TEXT": "spare"}, annotations: map[string]string{"autoscaling.knative.dev/min-scale": "1"}}.manifest())
	url := s.readyAtZero("first", service{name: "first", env: map[string]string{"TEXT": "first", "START_DELAY_MS": "8000"}, annotations: map[string]string{
		"serving.ebb.dev/fallback-service": "spare", "serving.ebb.dev/fallback-after": "500ms"}}.manifest())
	s.awaitTold("first", "serving.ebb.dev/fallback-revision", "spare-00001")
	if reply := probe.Get(s.ctx, s.client(), url); !reply.OK() || strings.TrimSpace(reply.Body) != "spare" || reply.Header.Get("Ebb-Fallback") != "spare" {
		t.Errorf("at zero got %v, %v", reply, reply.Header)
	}
	s.until("the first service answers itself", func() (bool, string, error) {
		reply := probe.Get(s.ctx, s.client(), url)
		if !reply.OK() {
			t.Errorf("while it starts: %v", reply)
		}
		return strings.TrimSpace(reply.Body) == "first", reply.Body, nil
	})
}

func TestACrawlerWakesNoPod(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url := s.readyAtZero("crawled", service{name: "crawled", annotations: map[string]string{
		"serving.ebb.dev/never-wake-agents": "Googlebot", "serving.ebb.dev/never-wake-paths": "/robots.txt,*.php", "serving.ebb.dev/never-wake-status": "404"}}.manifest())
	most := s.watchPods("crawled")
	for began := time.Now(); time.Since(began) < 5*time.Second; {
		for _, reply := range []probe.Reply{s.ask(url, "User-Agent", "Mozilla/5.0 (compatible; googlebot/2.1)"), probe.Get(s.ctx, s.client(), url+"/wp-login.php?x=1")} {
			if reply.Status != 404 {
				t.Fatalf("at zero got %v", reply)
			}
		}
	}
	if n := most(); n > 0 {
		t.Errorf("there were %d pods", n)
	}
	if reply := probe.Get(s.ctx, s.client(), url); !reply.OK() {
		t.Errorf("another request got %v", reply)
	}
	s.until("with a pod the crawler gets its answer", func() (bool, string, error) {
		reply := s.ask(url, "User-Agent", "Googlebot")
		return reply.OK(), fmt.Sprint(reply), nil
	})
}
