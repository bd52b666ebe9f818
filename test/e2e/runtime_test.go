//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

const demanding = `
apiVersion: v1
kind: ConfigMap
metadata:
  name: words
data:
  WORD: from a ConfigMap
---
apiVersion: v1
kind: Secret
metadata:
  name: secrets
stringData:
  SECRET: from a Secret
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: demanding
spec:
  template:
    metadata:
      annotations:
        autoscaling.knative.dev/min-scale: "1"
    spec:
      containers:
      - image: dev.local/ebb-test/autoscale:dev
        args: [one, two words]
        workingDir: /dev
        ports:
        - containerPort: 8801
        env:
        - {name: START_DELAY_MS, value: "2000"}
        - {name: WORD_BY_KEY, valueFrom: {configMapKeyRef: {name: words, key: WORD}}}
        - {name: SECRET_BY_KEY, valueFrom: {secretKeyRef: {name: secrets, key: SECRET}}}
        envFrom:
        - configMapRef: {name: words}
        - secretRef: {name: secrets}
        resources:
          limits: {cpu: "1", memory: 128Mi}
          requests: {cpu: 10m, memory: 16Mi}
        securityContext: {runAsUser: 2020}
        startupProbe: {httpGet: {path: /healthz}, periodSeconds: 1, failureThreshold: 60}
        readinessProbe: {httpGet: {path: /healthz}, periodSeconds: 1}
        livenessProbe: {httpGet: {path: /alive}, periodSeconds: 1, failureThreshold: 1}
`

// The program finds everything that its manifest asks for when the first request arrives. A program
// that fails its liveness probe is restarted and gets requests again.
func TestAProgramRunsInTheEnvironmentItAsksFor(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.ready("demanding", demanding)
	client := s.client()
	var env map[string]string
	s.getJSON(client, url+"/env", &env)
	for name, want := range map[string]string{"PORT": "8801", "WORD": "from a ConfigMap", "WORD_BY_KEY": "from a ConfigMap",
		"SECRET": "from a Secret", "SECRET_BY_KEY": "from a Secret"} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	var around struct {
		Args          []string
		Folder, Stdin string
		User          int
		Memory, CPU   string
		Files         map[string]string
	}
	s.getJSON(client, url+"/runtime", &around)
	if !slices.Equal(around.Args, []string{"one", "two words"}) || around.Folder != "/dev" || around.User != 2020 || around.Stdin != "EOF" {
		t.Errorf("the program runs with %+v", around)
	}
	if around.Memory != fmt.Sprint(128<<20) || !strings.HasPrefix(around.CPU, "100000") {
		t.Errorf("its limits are %q bytes and %q, want 128 MiB and one CPU", around.Memory, around.CPU)
	}
	for name, kind := range map[string]string{"/dev/null": "Dc", "/dev/zero": "Dc", "/dev/full": "Dc", "/dev/random": "Dc", "/dev/urandom": "Dc",
		"/dev/tty": "Dc", "/dev/fd": "d", "/proc/self/fd": "d", "/etc/resolv.conf": "-"} {
		if got := around.Files[name]; !strings.HasPrefix(got, kind) {
			t.Errorf("%s is %q, want %q", name, got, kind)
		}
	}

	before := processOf(s, client, url)
	if reply := probe.Get(s.ctx, client, url+"/break"); !reply.OK() {
		t.Fatal(reply)
	}
	s.until("another process answers", func() (bool, string, error) {
		after := processOf(s, client, url)
		return after != "" && after != before, after, nil
	})
	if failed := probe.Failed(probe.Burst(s.ctx, client, url, 20)); len(failed) > 0 {
		t.Errorf("after the restart: %v", failed)
	}
}

// processOf returns an identifier of the process that answered, "" if none did.
func processOf(s *story, client *http.Client, url string) string {
	response, err := client.Get(url)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return ""
	}
	return response.Header.Get("X-Process-Start")
}
