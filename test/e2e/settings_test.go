//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// It runs alone because what it sets counts for every service of the cluster.
func TestSettingsAreFollowedWithoutARestart(t *testing.T) {
	s := beginAlone(t, 3*time.Minute)
	tags := "  - revisionName: live-a\n    percent: 100\n  - revisionName: live-b\n    percent: 0\n    tag: next\n"
	s.ready("live", service{name: "live", revision: "live-a", env: map[string]string{"TEXT": "a"}}.manifest())
	s.ready("live", service{name: "live", revision: "live-x", env: map[string]string{"TEXT": "x"}}.manifest())
	url := s.ready("live", service{name: "live", revision: "live-b", env: map[string]string{"TEXT": "b"}, traffic: tags}.manifest())
	client := s.client()

	t.Run("a feature that is off is refused, and the refusal names its flag", func(t *testing.T) {
		err := s.Apply(s.ctx, s.namespace, manyContainers)
		if err == nil || !strings.Contains(err.Error(), "kubernetes.podspec-init-containers") {
			t.Errorf("init containers: %v", err)
		}
	})
	s.config("config-features", map[string]string{
		"tag-header-based-routing":                   "Enabled",
		"kubernetes.podspec-init-containers":         "Enabled",
		"kubernetes.podspec-persistent-volume-claim": "Enabled",
		"kubernetes.podspec-persistent-volume-write": "Disabled",
		"kubernetes.podspec-volumes-emptydir":        "Enabled",
		"multi-container":                            "Enabled",
	})
	s.config("config-gc", map[string]string{"retain-since-create-time": "disabled", "retain-since-last-active-time": "disabled",
		"min-non-active-revisions": "0", "max-non-active-revisions": "0"})

	t.Run("init containers, several containers, emptyDir, a claim", func(t *testing.T) {
		s.apply(strings.ReplaceAll(claim, "NAMESPACE", s.namespace)) // first, because the scheduler would back off before it retries
		t.Cleanup(func() { s.deleteVolume(s.namespace) })
		s.until("the webhook follows the settings", func() (bool, string, error) {
			err := s.Apply(s.ctx, s.namespace, manyContainers)
			return err == nil, fmt.Sprint(err), nil
		})
		url, err := s.AwaitReady(s.ctx, s.namespace, "many")
		if err != nil {
			t.Fatal(err)
		}
		if reply := probe.Get(s.ctx, client, url); reply.Body != "from the init container\n" {
			t.Errorf("the program does not read what the init container wrote: %v", reply)
		}
	})
	t.Run("a request header selects a tag", func(t *testing.T) {
		ask := func(tag string) string {
			request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Knative-Serving-Tag", tag)
			reply := probe.Do(client, request)
			return fmt.Sprint(reply.Status, " ", reply.Body)
		}
		s.until("the gateways follow", func() (bool, string, error) {
			said := ask("next")
			return said == "200 b\n", said, nil
		})
		if said := ask("nobody"); said != "200 a\n" {
			t.Errorf("an unknown tag: %q", said)
		}
		if reply := probe.Get(s.ctx, client, url); reply.Body != "a\n" {
			t.Errorf("without the header: %v", reply)
		}
	})
	t.Run("an unused revision is deleted, the others stay", func(t *testing.T) {
		s.until("live-x is gone", func() (bool, string, error) {
			list, err := s.Dynamic.Resource(cluster.Revisions).Namespace(s.namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/service=live"})
			if err != nil {
				return false, err.Error(), nil
			}
			names := map[string]bool{}
			for _, revision := range list.Items {
				names[revision.GetName()] = true
			}
			if !names["live-a"] || !names["live-b"] {
				return false, "", fmt.Errorf("a revision with traffic or a tag was deleted, left are %v", names)
			}
			return !names["live-x"], fmt.Sprint(names), nil
		})
	})
}

// It runs alone because what it sets counts for every service of the cluster. The node has the
// image, and its registry does not exist.
func TestAnImageRunsByItsTagWhereTheRegistryCannotBeAsked(t *testing.T) {
	s := beginAlone(t, time.Minute)
	s.config("config-deployment", map[string]string{"registries-skipping-tag-resolving": "kind.local", "digest-resolution-timeout": "1s"})
	url := s.ready("untold", service{name: "untold", revision: "untold-one"}.manifest())
	revision := s.awaitStatus(cluster.Revisions, "untold-one", cluster.IsReady)
	if c := cluster.Conditions(revision)["DigestsResolved"]; c.Status != "False" || !strings.Contains(c.Message, "dev.local/ebb-test/autoscale:dev") {
		t.Errorf("the condition DigestsResolved is %v", c)
	}
	s.answers(s.client(), url)
}

// The registry is real and listens at the API server's address, which pods can reach. The image
// itself is never pulled. The registry speaks no TLS, so it is asked only once the operator named
// it.
func TestATagBecomesADigest(t *testing.T) {
	s := beginAlone(t, 2*time.Minute)
	server, err := url.Parse(s.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(server.Hostname(), "0"))
	if ip := net.ParseIP(server.Hostname()); err != nil || ip == nil || ip.IsLoopback() {
		t.Skip("the API server is not at an address of this machine that pods could reach, so this test's registry would not be either")
	}
	inner, asked := registry.New(), new(atomic.Int64)
	answers := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.UserAgent(), "knative/") {
			asked.Add(1)
		}
		inner.ServeHTTP(w, r)
	})}}
	answers.Start()
	t.Cleanup(answers.Close)
	image := listener.Addr().String() + "/team/app:v1"
	made, err := random.Image(64, 1)
	if err != nil {
		t.Fatal(err)
	}
	reference, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(reference, made); err != nil {
		t.Fatal(err)
	}
	digest, err := made.Digest()
	if err != nil {
		t.Fatal(err)
	}
	s.apply(service{name: "plain", revision: "plain-one", image: image}.manifest())
	if _, err = s.Await(s.ctx, cluster.Revisions, s.namespace, "plain-one", func(object *unstructured.Unstructured) bool {
		return cluster.Conditions(object)["DigestsResolved"].Status == "False"
	}); err != nil || asked.Load() > 0 {
		t.Errorf("a registry without TLS that nobody named was asked %d times: %v", asked.Load(), err)
	}
	s.config("config-deployment", map[string]string{"trusted-registries": "http://" + listener.Addr().String()})
	s.apply(service{name: "digest", revision: "digest-one", image: image}.manifest())
	want := listener.Addr().String() + "/team/app@" + digest.String()
	_, err = s.Await(s.ctx, cluster.Revisions, s.namespace, "digest-one", func(object *unstructured.Unstructured) bool {
		statuses, _, _ := unstructured.NestedSlice(object.Object, "status", "containerStatuses")
		return len(statuses) == 1 && statuses[0].(map[string]any)["imageDigest"] == want
	})
	if err != nil {
		t.Errorf("the revision does not report %s: %v", want, err)
	}
	s.until("the pods run the digest", func() (bool, string, error) {
		deployment, err := s.deploymentOf("digest")
		if err != nil {
			return false, err.Error(), nil
		}
		var images []string
		for _, container := range deployment.Spec.Template.Spec.Containers {
			images = append(images, container.Image)
		}
		return strings.Contains(strings.Join(images, " "), want), fmt.Sprint(images), nil
	})
}

const manyContainers = `
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: many
spec:
  template:
    spec:
      initContainers:
      - name: greet
        image: dev.local/ebb-test/autoscale:dev
        env:
        - name: WRITE_FILE
          value: /shared/greeting
        - name: TEXT
          value: from the init container
        volumeMounts:
        - name: shared
          mountPath: /shared
      containers:
      - name: main
        image: dev.local/ebb-test/autoscale:dev
        ports:
        - containerPort: 8081
        env:
        - name: TEXT_FILE
          value: /shared/greeting
        volumeMounts:
        - name: shared
          mountPath: /shared
        - name: kept
          mountPath: /kept
          readOnly: true
      - name: beside
        image: dev.local/ebb-test/autoscale:dev
      volumes:
      - name: shared
        emptyDir: {}
      - name: kept
        persistentVolumeClaim:
          claimName: kept
          readOnly: true
`

// claim is bound to a directory that every node has, so no provisioner is needed.
const claim = `
apiVersion: v1
kind: PersistentVolume
metadata:
  name: NAMESPACE
spec:
  capacity:
    storage: 1Mi
  accessModes: [ReadOnlyMany]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  claimRef:
    namespace: NAMESPACE
    name: kept
  hostPath:
    path: /usr
    type: Directory
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: kept
spec:
  accessModes: [ReadOnlyMany]
  storageClassName: ""
  volumeName: NAMESPACE
  resources:
    requests:
      storage: 1Mi
`
