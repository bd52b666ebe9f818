//go:build release

package release

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// replicated are the components of which there are several in ebb-ha.yaml.
var replicated = []string{"activator", "autoscaler", "controller", "webhook"}

func TestManifestsInstallServeAndLeaveNothing(t *testing.T) {
	s := begin(t)
	before := s.everything()
	started := time.Now()
	s.page("install.md", "-f ebb-crds.yaml -f ebb.yaml", s.folder)
	s.ready()
	s.page("install.md", "kubectl ebb check", s.folder)
	t.Logf("installed and ready after %.1f s", time.Since(started).Seconds())
	s.samples()
	t.Logf("all samples answered after %.1f s", time.Since(started).Seconds())
	if out := s.run(s.plugin(), "check", "-n", namespace); !strings.Contains(out, "version "+s.version()) {
		t.Errorf("kubectl ebb check does not tell the version:\n%s", out)
	}
	s.drainable()

	if s.gateway == "" { // ebb-ha.yaml has Istio's class
		s.underLoad("from ebb.yaml to ebb-ha.yaml", func() {
			s.page("how-to/high-availability.md", "ebb-ha.yaml", s.folder)
			s.ready()
		})
		s.replicas("3")
		s.underLoad("a drain", s.drained)
	}
	s.page("how-to/high-availability.md", "kubectl drain NODE", s.folder, "NODE", s.node()+" --dry-run=server")

	s.page("how-to/uninstall.md", "delete -f ebb.yaml", s.folder)
	s.nothingLeft(before)
}

func TestTheChartInstallsUpgradesRollsBackAndLeavesNothing(t *testing.T) {
	s := begin(t)
	before := s.everything()
	started := time.Now()
	s.page("install.md", "--set domain=example.com", s.folder)
	s.ready()
	t.Logf("installed and ready after %.1f s", time.Since(started).Seconds())
	s.samples()
	s.replicas("1")
	s.underLoad("helm upgrade", func() {
		s.page("how-to/upgrade.md", "helm upgrade ebb", s.folder)
		s.ready()
	})
	s.underLoad("helm upgrade to three replicas", func() {
		s.page("how-to/high-availability.md", "helm upgrade ebb", s.folder,
			"highAvailability=true", "highAvailability=true,settings.config-autoscaler.stable-window=30s")
		s.ready()
	})
	window := func() string {
		return s.kubectl("-n", cluster.System, "get", "configmap", "config-autoscaler", "-o", "jsonpath={.data.stable-window}")
	}
	s.replicas("3")
	domain := s.kubectl("-n", cluster.System, "get", "configmap", "config-domain", "-o", "jsonpath={.data}")
	if window() != "30s" || !strings.Contains(domain, `"example.com"`) {
		t.Errorf("after the upgrades the window is %q and the domain %s", window(), domain)
	}
	s.underLoad("helm rollback", func() {
		s.page("how-to/upgrade.md", "helm rollback ebb", s.folder)
		s.ready()
	})
	s.replicas("1")
	if window() != "" {
		t.Errorf("after the rollback the window is %q", window())
	}
	s.page("how-to/uninstall.md", "delete -f ebb.yaml", s.folder, "kubectl delete -f ebb.yaml --ignore-not-found\n", "")
	s.page("how-to/uninstall.md", "helm uninstall", s.folder)
	s.nothingLeft(before)
}

func TestAnUpgradeFromTheReleaseBeforeLosesNoRequest(t *testing.T) {
	s := begin(t)
	if s.previous == "" {
		t.Skip("PREVIOUS names no folder of an older release")
	}
	before := s.everything()
	s.page("install.md", "-f ebb-crds.yaml -f ebb.yaml", s.previous)
	s.ready()
	s.samples()
	pods := func() string {
		return s.kubectl("-n", namespace, "get", "pods", "-l", "serving.knative.dev/service=busy", "-o",
			`jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[*].restartCount}{"\n"}{end}`)
	}
	s.underLoad("upgrade", func() {
		running := pods()
		s.page("how-to/upgrade.md", "-f ebb-crds.yaml -f ebb.yaml", s.folder)
		s.ready()
		if now := pods(); now != running || now == "" {
			t.Errorf("the user's pods were\n%sand are\n%s", running, now)
		}
	})
	if got := s.kubectl("-n", cluster.System, "get", "deployment", "activator", "-o", `jsonpath={.metadata.labels.app\.kubernetes\.io/version}`); got != s.version() {
		t.Errorf("the activator's version is %s", got)
	}
	s.underLoad("back to the version before", func() {
		s.page("how-to/upgrade.md", "# of the version before", s.previous)
		s.ready()
	})
	s.page("how-to/uninstall.md", "delete -f ebb.yaml", s.folder)
	s.nothingLeft(before)
}

// samples applies samples of the release and sends each a request.
func (s *story) samples() {
	s.Helper()
	s.connect()
	client := s.cluster.Client(time.Minute)
	defer client.CloseIdleConnections()
	for _, sample := range []struct{ file, service, reply string }{
		{"hello-go/service.yaml", "hello-go", "Hello Go!\n"},
		{"hello-python/service.yaml", "hello-python", "Hello Python!\n"},
		{"hello-node/service.yaml", "hello-node", "Hello Node!\n"},
		{"hello-java/service.yaml", "hello-java", "Hello Java!\n"},
		{"traffic-split/1-blue.yaml", "colours", "Hello Blue!\n"},
		{"autoscaling/service.yaml", "autoscaling", "Hello World!\n"},
	} {
		s.kubectl("-n", namespace, "apply", "-f", s.dist("samples/"+sample.file))
		url, err := s.cluster.AwaitReady(s.ctx, namespace, sample.service)
		if err != nil {
			s.Fatal(err)
		}
		if !strings.Contains(url, ".example.com") {
			s.Errorf("%s has the URL %s: the domain has no effect", sample.service, url)
		}
		if reply := probe.Get(s.ctx, client, url); reply.Body != sample.reply {
			s.Errorf("%s: %v", sample.service, reply)
		}
	}
}

// underLoad sends requests to a service that runs and to one that is at zero, without a failure.
func (s *story) underLoad(what string, do func()) {
	s.Helper()
	s.connect()
	url, err := s.cluster.AwaitReady(s.ctx, namespace, s.busy())
	if err != nil {
		s.Fatal(err)
	}
	client := s.cluster.Client(time.Minute)
	defer client.CloseIdleConnections()
	warm := probe.Start(client, url, 20*time.Millisecond)
	begun := time.Now()
	do()
	cold, err := s.cluster.AwaitReady(s.ctx, namespace, "hello-go")
	if err != nil {
		s.Error(err)
	} else if reply := probe.Get(s.ctx, client, cold); !reply.OK() {
		s.Errorf("%s: a service that may be at zero: %v", what, reply)
	}
	report := warm.StopAfter(s.ctx, 200)
	s.Logf("%s: %.1f s, %d requests, %d failed, 99 %% within %s", what, time.Since(begun).Seconds(), report.Sent, report.Failed, report.Quantile(0.99))
	if err := report.Err(200); err != nil {
		s.Errorf("%s: %v", what, err)
	}
}

// busy is a service with a pod.
func (s *story) busy() string {
	s.Helper()
	image := s.kubectl("-n", namespace, "get", "ksvc", "hello-go", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	s.input(fmt.Sprintf(`{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "busy"}, "spec": {"template": {
		"metadata": {"annotations": {"autoscaling.knative.dev/min-scale": "1"}}, "spec": {"containers": [{"image": %q}]}}}}`, image),
		"kubectl", "-n", namespace, "apply", "-f", "-")
	return "busy"
}

// replicas counts the replicas of the autoscaler and the controller, which nothing else sets, and
// for three also the others, which have at least as many.
func (s *story) replicas(want string) {
	s.Helper()
	components := []string{"autoscaler", "controller"}
	if want == "3" {
		components = replicated
	}
	for _, component := range components {
		if n := s.kubectl("-n", cluster.System, "get", "deployment", component, "-o", "jsonpath={.status.readyReplicas}"); n != want {
			s.Errorf("%s has %s ready replicas, want %s", component, n, want)
		}
	}
}

func (s *story) connect() {
	s.Helper()
	err := cluster.Until(s.ctx, func() (bool, string, error) {
		c, err := cluster.Connect(s.ctx)
		if err != nil {
			return false, err.Error(), nil
		}
		client := c.Client(5 * time.Second)
		defer client.CloseIdleConnections()
		reply := probe.Get(s.ctx, client, "http://nobody.example.com")
		s.cluster = c
		return reply.Status == http.StatusNotFound, reply.String(), nil
	})
	if err != nil {
		s.Fatal(err)
	}
}

// nothingLeft waits until the cluster has the objects that it had before.
func (s *story) nothingLeft(before []string) {
	s.Helper()
	s.kubectl("delete", "namespace", namespace, "--timeout=6m")
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Minute)
	defer cancel()
	err := cluster.Until(ctx, func() (bool, string, error) {
		var left []string
		for _, object := range s.everything() {
			if !slices.Contains(before, object) {
				left = append(left, object)
			}
		}
		return len(left) == 0, "left: " + strings.Join(left, ", "), nil
	})
	if err != nil {
		s.Error(err)
	}
}
