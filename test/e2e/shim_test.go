//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

// shimmed is a Service whose program knows nothing of HTTP.
func shimmed(name, mode, more, arguments string) string {
	return fmt.Sprintf(`
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: %s
spec:
  template:
    metadata:
      annotations: {serving.ebb.dev/shim: %s%s}
    spec:
      containerConcurrency: 3
      timeoutSeconds: 20
      containers:
      - image: dev.local/ebb-test/words:dev
        command: [/ko-app/words]
        args: [%s]
`, name, mode, more, arguments)
}

func (s *story) post(client *http.Client, url, body string) (status int, text string) {
	s.Helper()
	response, err := client.Post(url, "text/plain", strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	if err != nil {
		s.Fatal(err)
	}
	return response.StatusCode, string(all)
}

// A program that reads its standard input and ends is a service by an annotation: at zero pods it
// gets a pod, and a process, with the first request.
func TestAnyProgramIsAServiceThatScalesFromZero(t *testing.T) {
	s := begin(t, 4*time.Minute)
	client := s.client()
	s.apply(shimmed("failing", "serializing", "", `-exit, "7"`))
	s.apply(shimmed("server", "http", "", "-http"))
	s.apply(shimmed("told", "streaming", ", serving.ebb.dev/concurrency-variable: WORKERS", "-env, WORKERS"))
	url := s.readyAtZero("words", shimmed("words", "streaming", "", ""))
	if status, text := s.post(client, url, "from zero\n"); status != 200 || text != "FROM ZERO\n" {
		t.Errorf("the first request got %d %q", status, text)
	}
	if failed := probe.Failed(probe.Burst(s.ctx, client, url, 20)); len(failed) > 0 {
		t.Errorf("20 requests at a time, with 3 workers in a pod: %v", failed)
	}
	for name, want := range map[string]struct {
		status int
		text   string
	}{
		"failing": {500, "The program ended with status 7.\n"},
		"server":  {200, "FROM ZERO\n"},
		"told":    {200, "3\n"},
	} {
		url, err := s.AwaitReady(s.ctx, s.namespace, name)
		if err != nil {
			t.Fatal(err)
		}
		if status, text := s.post(client, url, "from zero\n"); status != want.status || text != want.text {
			t.Errorf("%s got %d %q, want %d %q", name, status, text, want.status, want.text)
		}
	}
}

func TestAShimWithoutACommandIsRefused(t *testing.T) {
	s := begin(t, time.Minute)
	err := s.Apply(s.ctx, s.namespace, strings.Replace(shimmed("words", "streaming", "", ""), "command: [/ko-app/words]", "", 1))
	if err == nil || !strings.Contains(err.Error(), "spec.template.spec.containers[0].command") {
		t.Errorf("got %v", err)
	}
}
