package watch

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/plans"
	"ebb.dev/ebb/activator/internal/relay"
	"ebb.dev/ebb/api/client/versioned/fake"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/eventually"
)

func number(n int64) *int64 { return &n }

func revision(change func(*servingv1.Revision)) *servingv1.Revision {
	r := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "rev", UID: "u",
		Labels: map[string]string{names.ServiceLabel: "svc", names.ConfigurationLabel: "cfg", "other": "x"}}}
	r.Spec.Containers = []corev1.Container{{Image: "i"}}
	if change != nil {
		change(r)
	}
	return r
}

func TestWhatIsKnownOfARevision(t *testing.T) {
	config := settings.Default().Rules()
	base := backends.Info{UID: "u", Service: "svc", Configuration: "cfg", Timeout: 300 * time.Second, Early: true}
	with := func(change func(*backends.Info)) backends.Info {
		info := base
		change(&info)
		return info
	}
	for _, c := range []struct {
		name   string
		change func(*servingv1.Revision)
		want   backends.Info
	}{
		{"nothing set: defaults", nil, base},
		{"limit and timeouts", func(r *servingv1.Revision) {
			r.Spec.ContainerConcurrency, r.Spec.TimeoutSeconds, r.Spec.ResponseStartTimeoutSeconds, r.Spec.IdleTimeoutSeconds = number(3), number(10), number(5), number(2)
		}, with(func(i *backends.Info) {
			i.ContainerConcurrency, i.Timeout, i.ResponseStartTimeout, i.IdleTimeout = 3, 10*time.Second, 5*time.Second, 2*time.Second
		})},
		{"h2c", func(r *servingv1.Revision) { r.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "h2c"}} },
			with(func(i *backends.Info) { i.H2C = true })},
		{"exec readiness is the kubelet's", func(r *servingv1.Revision) {
			r.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{}}}
		}, with(func(i *backends.Info) { i.Early = false })},
		{"so is an exec startup probe", func(r *servingv1.Revision) {
			r.Spec.Containers[0].StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{}}}
		}, with(func(i *backends.Info) { i.Early = false })},
		{"another startup probe is queue-proxy's", func(r *servingv1.Revision) {
			r.Spec.Containers[0].StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{}}}
		}, base},
		{"image cannot be pulled", func(r *servingv1.Revision) {
			r.Status.Conditions = duckv1.Conditions{{Type: servingv1.RevisionConditionContainerHealthy, Status: corev1.ConditionTrue},
				{Type: servingv1.RevisionConditionResourcesAvailable, Status: corev1.ConditionFalse, Reason: "ImagePullBackOff", Message: "no such image"}}
		}, with(func(i *backends.Info) { i.Failure = "ImagePullBackOff: no such image" })},
		{"a long message is cut, in one line", func(r *servingv1.Revision) {
			r.Status.Conditions = duckv1.Conditions{{Type: servingv1.RevisionConditionResourcesAvailable, Status: corev1.ConditionFalse,
				Reason: "FailedMount", Message: "no\nä" + strings.Repeat("ä", 1000)}}
		}, with(func(i *backends.Info) { i.Failure = "FailedMount: no " + strings.Repeat("ä", 292) + "..." })},
		{"nor are addresses", func(r *servingv1.Revision) {
			r.Status.Conditions = duckv1.Conditions{{Type: servingv1.RevisionConditionResourcesAvailable, Status: corev1.ConditionFalse, Reason: "FailedCreate",
				Message: "dial tcp 10.0.0.7:443: connect: refused, [fd00::1]:443 too, since 12:30"}}
		}, with(func(i *backends.Info) {
			i.Failure = "FailedCreate: dial tcp ...: connect: refused, ... too, since 12:30"
		})},
		{"nor what it said before it was killed", func(r *servingv1.Revision) {
			r.Status.Conditions = duckv1.Conditions{{Type: servingv1.RevisionConditionContainerHealthy, Status: corev1.ConditionFalse, Reason: "ExitCode137",
				Message: `Container failed with: OOMKilled (container "user", exit code 137): it took more memory than its limit. Its last words: password=hunter2`}}
		}, with(func(i *backends.Info) {
			i.Failure = `ExitCode137: Container failed with: OOMKilled (container "user", exit code 137): it took more memory than its limit`
		})},
		{"what a container said before it ended is not for clients", func(r *servingv1.Revision) {
			r.Status.Conditions = duckv1.Conditions{{Type: servingv1.RevisionConditionContainerHealthy, Status: corev1.ConditionFalse, Reason: "ExitCode1",
				Message: "Container failed with: panic: password=hunter2"}}
		}, with(func(i *backends.Info) { i.Failure = "ExitCode1" })},
		{"not yet known", func(r *servingv1.Revision) {
			r.Status.Conditions = duckv1.Conditions{{Type: servingv1.RevisionConditionContainerHealthy, Status: corev1.ConditionUnknown, Reason: "Deploying"}}
		}, base},
		{"inactive is no failure", func(r *servingv1.Revision) {
			r.Status.Conditions = duckv1.Conditions{{Type: servingv1.RevisionConditionActive, Status: corev1.ConditionFalse, Severity: apis.ConditionSeverityInfo, Reason: "NoTraffic"}}
		}, base},
		{"responses are cut", func(r *servingv1.Revision) {
			r.Annotations = map[string]string{names.ResponseTimeoutActionAnnotation: names.ResponseTimeoutCut, "other": "x"}
		}, with(func(i *backends.Info) { i.CutResponses = true })},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := *keepRevision(revision(c.change)).info(config); got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// What the controller found out stands in the status; nothing of another namespace can be named.
func TestTheRulesForWhenItIsColdAreKept(t *testing.T) {
	r := revision(func(r *servingv1.Revision) {
		r.Annotations = map[string]string{names.WaitingPageFromAnnotation: "pages/x", names.FallbackServiceAnnotation: "spare", "other": "x",
			names.NeverWakePathsAnnotation: "/robots.txt", names.MaxWaitingAnnotation: "7"}
		r.Status.Annotations = map[string]string{names.WaitingPageAnnotation: "soon", names.FallbackRevisionAnnotation: "spare-00001"}
	})
	got := keepRevision(r).info(settings.Default().Rules()).Cold
	if got == nil || got.Page.Body != "soon" || got.FallbackRevision != "spare-00001" || got.Waiting() != 7 || !got.WakesNone("/robots.txt", "") {
		t.Errorf("got %+v", got)
	}
}

func slice(ready bool) *discoveryv1.EndpointSlice {
	http, other, port, ninety, no := "http", "http-autometric", int32(8012), int32(9090), false
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "rev-private-x", Labels: map[string]string{
			names.RevisionLabel: "rev", names.ServiceTypeLabel: names.ServiceTypePrivate, discoveryv1.LabelServiceName: "rev-private"}},
		Ports: []discoveryv1.EndpointPort{{Name: &other, Port: &ninety}, {Name: &http, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, TargetRef: &corev1.ObjectReference{Name: "p1"},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Terminating: &no}}},
	}
}

func TestEndpointsOf(t *testing.T) {
	key, endpoints := endpointsOf(slice(true))
	if key != (backends.Key{Namespace: "ns", Name: "rev"}) || len(endpoints) != 1 ||
		endpoints[0].Address.String() != "10.0.0.1:8012" || endpoints[0].Pod != "p1" || !endpoints[0].Ready {
		t.Errorf("got %v, %+v", key, endpoints)
	}
	unlabelled := slice(false)
	delete(unlabelled.Labels, names.RevisionLabel)
	if key, endpoints := endpointsOf(unlabelled); key.Name != "rev" || endpoints[0].Ready {
		t.Errorf("by the Service's name: got %v, %+v", key, endpoints)
	}
	activators := slice(true)
	activators.Labels = map[string]string{discoveryv1.LabelServiceName: names.ActivatorService}
	if key, endpoints := endpointsOf(activators); key != (backends.Key{Namespace: "ns"}) || len(endpoints) != 1 {
		t.Errorf("of activators: got %v, %+v", key, endpoints)
	}
	odd := slice(true)
	odd.Ports, odd.Endpoints[0].Addresses = nil, []string{"not an address"}
	if _, endpoints := endpointsOf(odd); len(endpoints) != 0 {
		t.Errorf("without a data port: got %+v", endpoints)
	}
}

// route is a Route that leads to a revision, and has more than its plan.
func route(to string) *servingv1.Route {
	r := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hello", UID: "u", Labels: map[string]string{"other": "x"},
		Annotations: map[string]string{"other": "x"}, CreationTimestamp: metav1.Unix(7, 0)}}
	r.Status.Annotations = map[string]string{"other": "x",
		names.PlanAnnotation: `{"uid":"u","hash":"0123456789abcdef","targets":[{"to":[{"rev":"` + to + `"}]}]}`}
	return r
}

// There is a Route for each service of the cluster.
func TestOnlyThePlanOfARouteIsKept(t *testing.T) {
	o, err := transformRoute(route("rev"))
	if err != nil {
		t.Fatal(err)
	}
	kept := o.(*keptRoute)
	if kept.Namespace != "ns" || kept.Name != "hello" || kept.uid != "u" || kept.created.Unix() != 7 || !strings.Contains(kept.plan, `"rev":"rev"`) {
		t.Errorf("kept %+v", kept)
	}
}

// resting is the EndpointSlice to which gateways lead requests for hosts that rest.
func resting(addresses ...string) *discoveryv1.EndpointSlice {
	http, port := "http", int32(8012)
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "knative-serving", Name: plan.Resting,
		Labels: map[string]string{discoveryv1.LabelServiceName: plan.Resting}}, Ports: []discoveryv1.EndpointPort{{Name: &http, Port: &port}}}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

// Where no host rests, nobody needs the Routes of the cluster.
func TestRoutesAreWatchedOnceAHostMayRest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ebb, kube := fake.NewSimpleClientset(route("rev")), kubefake.NewClientset()
	slices := apiservertest.Watches(t, kube)
	w := &Watch{Kube: kube, Ebb: ebb, Table: backends.NewTable(nil), Plans: plans.NewTable("cluster.local"), System: "knative-serving",
		Relay: &relay.Table{}, Settings: settings.NewStore(nil), Log: slog.New(slog.DiscardHandler), Known: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	<-w.Known
	slices(3)
	for _, action := range ebb.Actions() {
		if action.GetResource().Resource == "routes" {
			t.Errorf("before, there is a %s of routes", action.GetVerb())
		}
	}
	if w.Plans.Followed() || w.Plans.Len() > 0 {
		t.Error("plans are followed before")
	}
	if _, err := kube.DiscoveryV1().EndpointSlices("knative-serving").Create(ctx, resting(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "plans are followed", w.Plans.Followed)
	if w.Plans.Find("hello.ns", plan.ClusterLocal) == nil {
		t.Error("the plan is not known")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTheTableFollowsTheCluster(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	activators := slice(true)
	activators.ObjectMeta = metav1.ObjectMeta{Namespace: "knative-serving", Name: "activators", Labels: map[string]string{discoveryv1.LabelServiceName: names.ActivatorService}}
	activators.Endpoints[0].Addresses = []string{"10.0.0.9"}
	ebb, kube := fake.NewSimpleClientset(revision(nil), route("rev")), kubefake.NewClientset(slice(true), resting("10.0.0.7", "10.0.0.8", "10.0.0.9"), activators)
	others := &relay.Table{Self: netip.MustParseAddr("10.0.0.9"),
		Open: func(a netip.AddrPort) *forward.Upstream {
			return forward.NewUpstream(a.String(), forward.UpstreamOptions{})
		}}
	revisions, slices := apiservertest.Watches(t, ebb), apiservertest.Watches(t, kube)
	budget := hold.NewBudget(hold.Bounds{})
	table := backends.NewTable(func(_ backends.Key, info *backends.Info) *hold.Queue {
		return hold.New(info.ContainerConcurrency, budget.Share("ns"), hold.Options{})
	})
	w := &Watch{Kube: kube, Ebb: ebb, Table: table, Plans: plans.NewTable("cluster.local"), System: "knative-serving",
		Relay: others, Settings: settings.NewStore(nil), Log: slog.New(slog.DiscardHandler), Known: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	key := backends.Key{Namespace: "ns", Name: "rev"}
	eventually := func(what string, is func() bool) {
		t.Helper()
		tick, deadline := time.NewTicker(time.Millisecond), time.NewTimer(30*time.Second)
		defer tick.Stop()
		defer deadline.Stop()
		for !is() {
			select {
			case <-tick.C:
			case <-deadline.C:
				t.Fatalf("never: %s", what)
			}
		}
	}
	<-w.Known
	revisions(2) // and Routes
	slices(3)
	eventually("an activator is known", func() bool { return table.Knows(netip.MustParseAddr("10.0.0.9")) })
	r := table.Get(key)
	if r == nil || len(r.Snapshot().Pods) != 1 {
		t.Fatalf("after the first reading: %+v", r)
	}
	leads := func(to string) func() bool {
		return func() bool {
			found := w.Plans.Find("hello.ns", plan.ClusterLocal)
			return found == nil && to == "" || found != nil && found.Plan().Targets[0].Rules[0].Backends[0].Service == to
		}
	}
	if !leads("rev")() || !w.Plans.Followed() {
		t.Fatal("the plan is not known after the first reading")
	}
	if !others.Relays() {
		t.Fatal("three activators are not known after the first reading")
	}
	if _, err := kube.DiscoveryV1().EndpointSlices("knative-serving").Update(ctx, resting("10.0.0.7", "10.0.0.9"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("one activator is gone", func() bool { return !others.Relays() })
	if _, err := kube.DiscoveryV1().EndpointSlices("knative-serving").Update(ctx, resting("10.0.0.6", "10.0.0.7", "10.0.0.9"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("another one is known", others.Relays)
	if err := kube.DiscoveryV1().EndpointSlices("knative-serving").Delete(ctx, plan.Resting, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("all are gone", func() bool { return !others.Relays() })
	if _, err := ebb.ServingV1().Routes("ns").UpdateStatus(ctx, route("rev-2"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("the next plan is known", leads("rev-2"))
	broken := route("rev-3")
	broken.Status.Annotations[names.PlanAnnotation] += "x"
	if _, err := ebb.ServingV1().Routes("ns").UpdateStatus(ctx, broken, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := ebb.ServingV1().Routes("ns").Delete(ctx, "hello", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("the plan is gone", leads(""))
	failed := revision(func(r *servingv1.Revision) {
		r.Status.Conditions = duckv1.Conditions{{Type: servingv1.RevisionConditionContainerHealthy, Status: corev1.ConditionFalse, Reason: "ExitCode1"}}
	})
	if _, err := ebb.ServingV1().Revisions("ns").UpdateStatus(ctx, failed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("the failure is known", func() bool { return r.Info().Failure == "ExitCode1" })
	if err := kube.DiscoveryV1().EndpointSlices("ns").Delete(ctx, "rev-private-x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("the pod is gone", func() bool { return len(r.Snapshot().Pods) == 0 })
	changed := *settings.Default()
	changed.Defaults.TimeoutSeconds = 7
	w.Settings.Set(&changed)
	eventually("a changed default reaches it", func() bool { return r.Info().Timeout == 7*time.Second })
	if err := ebb.ServingV1().Revisions("ns").Delete(ctx, "rev", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually("the revision is gone", func() bool { return table.Get(key) == nil })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
