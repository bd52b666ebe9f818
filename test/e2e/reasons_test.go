//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
)

const (
	helloGo     = "dev.local/ebb/hello-go:dev"
	helloPython = "dev.local/ebb/hello-python:dev"
)

// reason is something that keeps a pod from coming up, in the words of the real Kubernetes.
type reason struct {
	name string
	// The container, and the rest of the pod's spec, from their columns on.
	container, pod string
	// cause is applied first, and mend ends it.
	cause, mend string
	// The condition of the Revision names all of these.
	condition, status string
	words             []string
}

var reasons = []reason{
	{name: "secret", container: "volumeMounts: [{name: credentials, mountPath: /credentials}]", pod: "volumes: [{name: credentials, secret: {secretName: absent}}]",
		mend:      "{apiVersion: v1, kind: Secret, metadata: {name: absent}, stringData: {password: x}}",
		condition: "ResourcesAvailable", status: "False", words: []string{`secret "absent" not found`, "Create the Secret"}},
	{name: "key", container: "env: [{name: LEVEL, valueFrom: {configMapKeyRef: {name: partial, key: level}}}]",
		cause:     "{apiVersion: v1, kind: ConfigMap, metadata: {name: partial}, data: {other: x}}",
		mend:      "{apiVersion: v1, kind: ConfigMap, metadata: {name: partial}, data: {other: x, level: debug}}",
		condition: "ResourcesAvailable", status: "False", words: []string{"couldn't find key level in ConfigMap", "Add that key"}},
	{name: "quota", container: "env: [{name: TEXT, value: many}]",
		cause:     "{apiVersion: v1, kind: ResourceQuota, metadata: {name: few}, spec: {hard: {pods: '0'}}}",
		mend:      "{apiVersion: v1, kind: ResourceQuota, metadata: {name: few}, spec: {hard: {pods: '100'}}}",
		condition: "ResourcesAvailable", status: "False", words: []string{"exceeded quota: few", "Raise that quota"}},
	{name: "probe", container: "readinessProbe: {httpGet: {path: /never, port: 8099}}",
		condition: "ContainerHealthy", status: "Unknown", words: []string{"does not pass its readiness probe", "/never"}},
	{name: "memory", container: "image: " + helloPython + "\n        command: [/usr/bin/python3.11, -c, 'b = b\"x\" * (256 << 20)']\n        resources: {limits: {memory: 64Mi}}",
		condition: "ContainerHealthy", status: "False", words: []string{"OOMKilled", "64Mi"}},
}

func (r reason) manifest(container string) string {
	if !strings.Contains(container, "image: ") {
		container = "image: " + helloGo + "\n        " + container
	}
	return fmt.Sprintf("apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  template:\n    spec:\n      containers:\n      - name: user-container\n        %s\n      %s\n",
		r.name, container, r.pod)
}

// says waits until a condition of the newest Revision has a status and all the words.
func (s *story) says(r reason, condition, status string, words ...string) {
	s.Helper()
	s.until(r.name+" says why", func() (bool, string, error) {
		rev, err := s.Get(s.ctx, cluster.Revisions, s.namespace, r.name+"-00001")
		if err != nil {
			return false, err.Error(), nil
		}
		c := cluster.Conditions(rev)[condition]
		for _, w := range words {
			if !strings.Contains(c.Message, w) {
				return false, c.String(), nil
			}
		}
		return c.Status == status, c.String(), nil
	})
}

// "My pod does not come up. Why?" The condition says so in ten seconds, with what to do, while
// Kubernetes tries again and again, and goes with its cause. How soon is only told: the machine may
// be busy.
func TestAPodThatDoesNotComeUpSaysWhy(t *testing.T) {
	s := begin(t, 12*time.Minute)
	for _, r := range reasons {
		t.Run(r.name, func(t *testing.T) {
			if r.cause != "" {
				s.apply(r.cause)
			}
			began := time.Now()
			s.apply(r.manifest(r.container))
			s.says(r, r.condition, r.status, r.words...)
			t.Logf("told after %.1f s", time.Since(began).Seconds())
			if took := time.Since(began); took > 100*time.Second {
				t.Errorf("told after %s, ten seconds are promised", took)
			}
			if r.mend != "" {
				s.apply(r.mend)
			} else { // a new revision without the fault
				s.apply(r.manifest("env: [{name: TEXT, value: mended}]"))
			}
			if _, err := s.AwaitReady(s.ctx, s.namespace, r.name); err != nil {
				t.Fatal(err)
			}
			if r.mend != "" {
				s.says(r, r.condition, "True")
			}
		})
	}
}
