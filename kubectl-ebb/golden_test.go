package main

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	autoscaling "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	serving "ebb.dev/ebb/api/serving/v1"
	view "ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/internal/testing/certificate"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/golden"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

func service(name string, ready apis.Condition, traffic ...serving.TrafficTarget) *serving.Service {
	s := &serving.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	ready.Type = apis.ConditionReady
	s.Status.Conditions = nil
	if ready.Status != "" {
		s.Status.Conditions = append(s.Status.Conditions, ready)
	}
	s.Status.URL = &apis.URL{Scheme: "http", Host: name + ".shop.example.org"}
	s.Status.Traffic = traffic
	if len(traffic) > 0 {
		s.Status.LatestCreatedRevisionName = traffic[len(traffic)-1].RevisionName
	}
	return s
}

func to(name string, percent int64, tag string) serving.TrafficTarget {
	return serving.TrafficTarget{RevisionName: name, Percent: &percent, Tag: tag}
}

// scaled is a revision with the pods that it has and wants, and why.
func scaled(name string, percent int64, ready, wanted int32, rule, reason string, inputs map[string]string) revision {
	pa := &autoscaling.PodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{names.ServiceLabel: "cart"}}}
	pa.Status.ActualScale, pa.Status.DesiredScale, pa.Status.Mode = &ready, &wanted, autoscaling.ModeServe
	pa.Status.Decision = &autoscaling.Decision{Time: metav1.NewMicroTime(ago(12 * time.Second)), Desired: wanted, Rule: rule, Reason: reason, Inputs: inputs}
	r := &serving.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	return revision{Revision: r, percent: percent, scaler: pa}
}

func event(age time.Duration, reason, message string) corev1.Event {
	return corev1.Event{Reason: reason, Message: message, LastTimestamp: metav1.NewTime(ago(age))}
}

var ready = apis.Condition{Status: corev1.ConditionTrue}

func inputs(stable, panic, queued, target string) map[string]string {
	return map[string]string{"stable": stable, "panic": panic, "queued": queued, "target": target, "metric": "concurrent requests"}
}

func TestExplain(t *testing.T) {
	limited := scaled("cart-00002", 100, 5, 5, "max-scale", "max-scale allows 5 of the 7 asked for (stable average 48 concurrent requests / target 7 = 7 pods)", inputs("48", "50", "2", "7"))
	limited.Annotations = map[string]string{names.MaxScaleAnnotation: "5"}
	limited.Spec.ContainerConcurrency = ptr.To[int64](10)
	limited.scaler.Status.Mode = autoscaling.ModeProxy
	for i := range 7 {
		limited.events = append(limited.events, event(time.Duration(60-i)*time.Second, "ScaledUp", "from "+string(rune('1'+i))+" pods"))
	}

	asleep := scaled("cart-00002", 100, 0, 1, "stable-window", "stable average 0 concurrent requests / target 7 = 0 pods; asleep: pod 1, idle for 3m, is kept for 4h", inputs("0", "0", "0", "7"))
	asleep.scaler.Status.Asleep, asleep.scaler.Status.AsleepReplicas = "1 compressed", ptr.To[int32](1)

	spare := scaled("cart-00002", 100, 2, 6, "panic-window", "panic average 14 concurrent requests / target 7 = 2 pods; asleep: scale-buffer asks for 4", inputs("3", "14", "0", "7"))
	spare.scaler.Status.Asleep, spare.scaler.Status.AsleepReplicas = "4 frozen", ptr.To[int32](4)

	away := scaled("cart-00002", 100, 0, 0, "zero", "no traffic, and activators have been in the path for long enough", inputs("0", "0", "0", "7"))
	anew := scaled("cart-00002", 100, 0, 1, "queue", "1 request waiting and no pod ready", inputs("unknown", "unknown", "1", "7"))
	away.bare, anew.bare = true, true

	starting := scaled("cart-00002", 100, 0, 1, "queue", "1 request waiting and no pod ready; target 7 asks for 1 pod", inputs("unknown", "unknown", "1", "7"))

	old := scaled("cart-00001", 90, 2, 2, "stable-window", "stable average 9 concurrent requests / target 7 = 2 pods", inputs("9", "8", "0", "7"))
	canary := scaled("cart-00002", 10, 1, 1, "stable-window", "stable average 1 concurrent request / target 7 = 1 pod", inputs("1", "1", "0", "7"))
	canary.tags = []string{"canary"}

	rollout := service("cart", apis.Condition{Status: corev1.ConditionUnknown, Reason: serving.ReasonRolloutInProgress,
		Message: "A gradual rollout of the latest revision(s) stands still: 3 of 21 requests to the new revision failed, 0 of 1279 to the old one, which may be chance in one of 66 rollouts."},
		to("cart-00001", 98, ""), to("cart-00002", 2, ""))
	rollout.Annotations = map[string]string{names.RolloutGuardAnnotation: "on"}
	both := cartView()
	both.Revisions = []view.RevisionView{
		{Name: "cart-00001", Judged: &view.Judged{Seconds: []view.Second{{Good: 99, FirstBucket: 10, Buckets: []uint64{90, 9}}, {Good: 98, FirstBucket: 10, Buckets: []uint64{98}}}}},
		{Name: "cart-00002", Judged: &view.Judged{Seconds: []view.Second{{Good: 2}, {Good: 1, Failed: 1}}}}}
	former := scaled("cart-00001", 98, 2, 2, "stable-window", "stable average 9 concurrent requests / target 7 = 2 pods", inputs("9", "8", "0", "7"))
	fresh := scaled("cart-00002", 2, 1, 1, "stable-window", "stable average 1 concurrent request / target 7 = 1 pod", inputs("1", "1", "0", "7"))

	failed := scaled("cart-00002", 0, 0, 1, "initial-scale", "initial-scale asks for 1", inputs("unknown", "unknown", "0", "7"))
	failed.Status.Conditions = duckv1.Conditions{
		{Type: serving.RevisionConditionActive, Status: corev1.ConditionFalse, Reason: "NoTraffic"},
		{Type: "ContainerHealthy", Status: corev1.ConditionFalse, Reason: "ExitCode1", Message: "Container failed with: no database\n"},
		{Type: serving.RevisionConditionResourcesAvailable, Status: corev1.ConditionUnknown, Reason: "Deploying"},
	}
	failing := service("cart", apis.Condition{Status: corev1.ConditionFalse, Reason: "RevisionFailed", Message: `Revision "cart-00002" failed with message: no database.`}, to("cart-00001", 100, ""))

	unpulled := scaled("cart-00001", 0, 0, 0, "activation-timeout", "no pod became ready in time", inputs("unknown", "unknown", "0", "7"))
	unpulled.Status.Conditions = duckv1.Conditions{
		{Type: serving.RevisionConditionResourcesAvailable, Status: corev1.ConditionFalse, Reason: "ImagePullBackOff", Message: "manifest unknown"},
		{Type: "ContainerHealthy", Status: corev1.ConditionUnknown, Reason: "Deploying"},
	}
	never := service("cart", apis.Condition{Status: corev1.ConditionFalse, Reason: "RevisionFailed", Message: `Revision "cart-00001" failed with message: manifest unknown.`})
	never.Status.Conditions = append(never.Status.Conditions,
		apis.Condition{Type: "ConfigurationsReady", Status: corev1.ConditionFalse, Reason: "RevisionFailed", Message: `Revision "cart-00001" failed with message: manifest unknown.`},
		apis.Condition{Type: "RoutesReady", Status: corev1.ConditionFalse, Reason: serving.ReasonRevisionMissing, Message: `Configuration "cart" does not have any ready Revision.`})

	remembered := scaled("cart-00002", 100, 5, 5, "max-scale", "max-scale allows 5 of the 7 asked for", inputs("48", "50", "2", "7"))
	remembered.Annotations = map[string]string{names.MaxScaleAnnotation: "5"}
	remembered.events = []corev1.Event{event(time.Minute, "ScaledUp", "history stands in for it")}

	silent := cartView()
	silent.Revisions[0].Nodes = []view.SilentNode{{Name: "b", Pods: 2, State: "lost", Since: ago(7 * time.Second),
		Reason: "node b: nothing there has answered for 10.0 s; asked by this autoscaler and from node c; 2 nodes answer"}}

	for name, about := range map[string]*subject{
		"silent":   {service: service("cart", ready, to("cart-00002", 100, "")), revisions: []revision{remembered}, view: silent},
		"history":  {service: service("cart", ready, to("cart-00002", 100, "")), revisions: []revision{remembered}, view: cartView()},
		"viewless": {service: service("cart", ready, to("cart-00002", 100, "")), revisions: []revision{limited}, viewless: "No autoscaler answers."},
		"limited":  {service: service("cart", ready, to("cart-00002", 100, "")), revisions: []revision{limited}},
		"asleep":   {service: service("cart", ready, to("cart-00002", 100, "")), revisions: []revision{asleep}},
		"spare":    {service: service("cart", ready, to("cart-00002", 100, "")), revisions: []revision{spare}},
		"at-zero": {service: service("cart", ready, to("cart-00002", 100, "")), away: "No autoscaler is available.", revisions: []revision{
			scaled("cart-00002", 100, 0, 0, "zero", "no traffic, and activators have been in the path for long enough (stable average 0 / target 7 = 0 pods)", inputs("0", "0", "0", "7"))}},
		"away":     {service: service("cart", ready, to("cart-00002", 100, "")), revisions: []revision{away}},
		"anew":     {service: service("cart", ready, to("cart-00002", 100, "")), revisions: []revision{anew}},
		"starting": {service: service("cart", ready, to("cart-00002", 100, "")), revisions: []revision{starting}},
		"split":    {service: service("cart", ready, to("cart-00001", 90, ""), to("cart-00002", 10, "canary")), revisions: []revision{old, canary}},
		"judged":   {service: rollout, revisions: []revision{former, fresh}, view: both},
		"failed":   {service: failing, revisions: []revision{old, failed}},
		"never":    {service: never, revisions: []revision{unpulled}},
		"new":      {service: service("cart", apis.Condition{})},
		"undecided": {service: service("cart", ready, to("cart-00002", 100, "")), revisions: []revision{
			{Revision: &serving.Revision{ObjectMeta: metav1.ObjectMeta{Name: "cart-00002"}}, percent: 100}}},
	} {
		t.Run(name, func(t *testing.T) {
			answer := explain(about)
			var text bytes.Buffer
			if err := answer.write(&text, now); err != nil {
				t.Fatal(err)
			}
			golden.File(t, "testdata/explain-"+name+".txt", text.String())
			if name == "limited" {
				text.Reset()
				if err := writeJSON(&text, answer); err != nil {
					t.Fatal(err)
				}
				golden.File(t, "testdata/explain-"+name+".json", text.String())
			}
		})
	}
}

func TestTheNewestRevisionIsExplainedBeforeItGetsTraffic(t *testing.T) {
	s := service("cart", ready, to("cart-00001", 60, ""), to("cart-00001", 40, "main"))
	s.Status.LatestCreatedRevisionName = "cart-00002"
	got := routed(s)
	if len(got) != 2 || got[0].Name != "cart-00001" || got[0].percent != 100 || got[1].Name != "cart-00002" || got[1].percent != 0 {
		t.Errorf("%+v", got)
	}
}

func TestTop(t *testing.T) {
	cart := service("cart", ready, to("cart-00001", 90, ""), to("cart-00002", 10, ""))
	a := scaled("cart-00001", 90, 2, 3, "stable-window", "", nil).scaler
	b := scaled("cart-00002", 10, 1, 1, "panic-window", "", nil).scaler
	b.Status.Decision.Time = metav1.NewMicroTime(ago(time.Second))
	b.Status.AsleepReplicas = ptr.To[int32](4)
	stray := scaled("other", 0, 9, 9, "stable-window", "", nil).scaler
	stray.Labels = nil
	rows := summarize([]serving.Service{*service("pay", apis.Condition{Status: corev1.ConditionFalse, Reason: "RevisionMissing"}), *cart}, []autoscaling.PodAutoscaler{*a, *b, *stray})
	var text bytes.Buffer
	if err := writeTop(&text, rows, false, now); err != nil { // without the API
		t.Fatal(err)
	}
	measure(rows, []view.ServiceView{*cartView()})
	for _, namespaces := range []bool{false, true} {
		if err := writeTop(&text, rows, namespaces, now); err != nil {
			t.Fatal(err)
		}
	}
	golden.File(t, "testdata/top.txt", text.String())
}

// cluster is one in which nothing is broken.
func cluster(t *testing.T) *installation {
	cert, _ := certificate.PEM(certificate.Make(x509.Certificate{NotAfter: now.Add(6 * 24 * time.Hour)}, nil))
	given, err := settings.Parse(map[string]map[string]string{"config-domain": {"apps.example.org": ""}, "config-autoscaler": {"standby": "auto"}})
	if err != nil {
		t.Fatal(err)
	}
	x := &installation{version: &version.Info{Major: "1", Minor: "37", GitVersion: "v1.37.2"}, resources: needed, namespace: "shop", settings: given,
		hooks:  []admissionv1.ValidatingWebhookConfiguration{{ObjectMeta: metav1.ObjectMeta{Name: "validation.webhook.serving.knative.dev"}, Webhooks: []admissionv1.ValidatingWebhook{{}}}},
		dryRun: &serving.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{names.CreatorAnnotation: "ann"}}},
		agents: &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{NumberAvailable: 1, DesiredNumberScheduled: 1}},
		nodes:  make([]corev1.Node, 1)}
	x.hooks[0].Webhooks[0].ClientConfig.CABundle = cert
	x.nodes[0].Status.NodeInfo.Swap = &corev1.NodeSwapStatus{Capacity: ptr.To[int64](1 << 30)}
	for _, name := range []string{"activator", "autoscaler", "controller", "webhook"} {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{versionLabel: "v0.1.0"}}}
		d.Spec.Replicas, d.Status.AvailableReplicas = ptr.To[int32](2), 2
		x.parts = append(x.parts, part{name: name, deployment: d})
	}
	g := &gatewayapi.Gateway{}
	g.Status.Conditions = []metav1.Condition{{Type: "Programmed", Status: "True"}}
	g.Status.Addresses = []gatewayapi.GatewayStatusAddress{{Value: "192.0.2.1"}}
	x.gateways = []gateway{{name: "knative-serving/ebb-external", Gateway: g}}
	return x
}

// controlPlane returns static pods as kubeadm makes them.
func controlPlane(commands ...[]string) (pods []corev1.Pod) {
	for _, command := range commands {
		pods = append(pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"tier": "control-plane", "component": command[0]}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Command: command}}}})
	}
	return pods
}

func TestCheck(t *testing.T) {
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, "it")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "it", errors.New("no"))

	bare := cluster(t)
	bare.resources = map[string][]string{}
	bare.version.Minor, bare.version.GitVersion = "28+", "v1.28.1"

	bad := cluster(t)
	bad.resources = map[string][]string{names.ServingGroup + "/v1": needed[names.ServingGroup+"/v1"], gatewayapi.GroupVersion.String(): {"gatewayclasses", "gateways", "httproutes"}}
	bad.parts[0].deployment.Status.AvailableReplicas = 0
	bad.parts[1] = part{name: "autoscaler", err: gone}
	bad.parts[2].deployment.Spec.Replicas = ptr.To[int32](0)
	bad.parts[3].deployment.Status.AvailableReplicas = 1
	bad.parts[3].deployment.Labels[versionLabel] = "v0.2.0"
	bad.gateways = []gateway{{name: "a/missing", err: gone}, {name: "a/unseen", Gateway: &gatewayapi.Gateway{Spec: gatewayapi.GatewaySpec{GatewayClassName: "istio"}}},
		{name: "a/stuck", Gateway: &gatewayapi.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "stuck"}, Status: gatewayapi.GatewayStatus{Conditions: []metav1.Condition{{Type: "Programmed", Status: "False", Message: "no address"}}}}}}
	bad.settings.Domain.Choices = nil
	bad.hooks[0].Webhooks[0].ClientConfig.CABundle = nil
	bad.dryRun, bad.dryRunErr = nil, errors.New("failed calling webhook: connection refused")
	bad.viewErr = errors.New("the server is currently unable to handle the request")
	bad.agents.Status.NumberAvailable = 0
	bad.nodes[0].Status.NodeInfo.Swap = nil
	bad.missing = []string{"create services.serving.knative.dev"}

	blind := cluster(t)
	for i := range blind.parts {
		blind.parts[i] = part{name: blind.parts[i].name, err: forbidden}
	}
	blind.settings, blind.setErr, blind.hooksErr, blind.dryRunErr, blind.agentsErr = nil, forbidden, forbidden, forbidden, forbidden
	blind.viewErr, blind.plannersErr = forbidden, forbidden

	long := cluster(t)
	long.settings.Defaults.MaxTimeoutSeconds = 2 * 60 * 60
	policy := `{"apiVersion": "gateway.envoyproxy.io/v1alpha1", "spec": {"timeout": {"http": {"streamIdleTimeout": "1h5m", "requestReceivedTimeout": "0s"}}}}`
	if err := json.Unmarshal([]byte(policy), &long.streams); err != nil {
		t.Fatal(err)
	}
	short := cluster(t)
	short.streams = long.streams

	slow, quick := cluster(t), cluster(t)
	slow.planners = controlPlane([]string{"kube-controller-manager", "--leader-elect=true"}, []string{"kube-scheduler"})
	quick.planners = controlPlane([]string{"kube-controller-manager", "--kube-api-qps", "500"}, []string{"kube-scheduler", "--config=/etc/its-own"})

	resting, taken := cluster(t), cluster(t)
	resting.settings.Gateway.Resting, taken.settings.Gateway.Resting = true, true
	for name, hosts := range map[string][]gatewayapi.Hostname{"inside": nil, "wide": {"*.shop.apps.example.org"}, "harmless": {"shop.example.com"}} {
		route := gatewayapi.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
		route.Spec.Hostnames = hosts
		on := taken.settings.Gateway.External[0]
		if name == "inside" {
			on = taken.settings.Gateway.Local[0]
		}
		route.Spec.ParentRefs = atGateway(on)
		taken.beside.routes = append(taken.beside.routes, route)
	}
	taken.beside.routes = append(taken.beside.routes, taken.beside.routes[0])
	grpc := &taken.beside.routes[3]
	grpc.Kind, grpc.Name, grpc.Spec.Hostnames, grpc.Spec.ParentRefs = "GRPCRoute", "calls", []gatewayapi.Hostname{"*.apps.example.org"}, atGateway(taken.settings.Gateway.External[0])
	slices.SortFunc(taken.beside.routes, func(a, b gatewayapi.HTTPRoute) int { return strings.Compare(a.Name, b.Name) })

	unseen, unknown := cluster(t), cluster(t)
	unseen.settings.Gateway.Resting, unknown.settings.Gateway.Resting = true, true
	unseen.beside, unknown.beside.blindErr = notSeen(t), forbidden

	late := cluster(t)
	late.viewErr = gone
	for name, c := range map[string]struct {
		facts  *installation
		before bool
		now    time.Time
	}{
		"healthy": {cluster(t), false, now}, "broken": {bad, false, now}, "blind": {blind, false, now},
		"bare": {bare, true, now}, "bare-after": {bare, false, now}, "installed": {late, true, now},
		"long-streams": {long, false, now}, "short-streams": {short, false, now},
		"resting": {resting, false, now}, "resting-taken": {taken, false, now},
		"resting-unseen": {unseen, false, now}, "resting-unknown": {unknown, false, now},
		"slow-planners": {slow, false, now}, "quick-planners": {quick, false, now},
		"expiring": {late, false, now.Add(6*24*time.Hour - time.Hour)}, "expired": {late, false, now.Add(7 * 24 * time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			var text bytes.Buffer
			if err := writeFindings(&text, c.facts.findings(c.before, c.now)); err != nil {
				t.Fatal(err)
			}
			golden.File(t, "testdata/check-"+name+".txt", text.String())
		})
	}
}

func atGateway(on settings.GatewayRef) []gatewayapi.ParentReference {
	return []gatewayapi.ParentReference{{Namespace: ptr.To(gatewayapi.Namespace(on.Namespace())), Name: gatewayapi.ObjectName(on.Name())}}
}

// notSeen are Ingresses and VirtualServices beside Services of which one may rest.
func notSeen(t *testing.T) (n neighbours) {
	read := func(text string, into any) {
		t.Helper()
		if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	read(`
- metadata: {namespace: shop, name: front}
  spec:
    ingressClassName: nginx
    defaultBackend: {service: {name: cart-00001}}
    rules:
    - host: cart.shop.apps.example.org
      http: {paths: [{backend: {service: {name: cart-00001}}}, {backend: {service: {name: kept-00001}}}, {backend: {service: {name: own-00001}}}, {backend: {service: {name: cart}}}]}
- metadata: {namespace: other, name: same-name}
  spec: {defaultBackend: {service: {name: cart-00001}}}
- metadata: {namespace: shop, name: taker, annotations: {kubernetes.io/ingress.class: istio}}
  spec: {rules: [{host: cart.shop.apps.example.org}, {host: shop.example.com}, {host: own.shop.apps.example.org}]}
`, &n.ingresses)
	read(`
- metadata: {namespace: shop, name: in-a-mesh}
  spec:
    hosts: [cart.shop.apps.example.org]
    gateways: [mesh]
    http: [{route: [{destination: {host: cart-00001}}], mirrors: [{destination: {host: cart-00002.shop.svc.cluster.local}}]}]
- metadata: {namespace: edge, name: wide}
  spec:
    hosts: ["*.shop.apps.example.org"]
    gateways: [edge/front]
    tcp: [{route: [{destination: {host: cart-00001.shop.svc.cluster.local}}, {destination: {host: cart-00001}}]}]
`, &n.virtual)
	read(`
- metadata: {namespace: shop, name: cart-00001, labels: {serving.knative.dev/service: cart}}
- metadata: {namespace: shop, name: cart-00002, labels: {serving.knative.dev/service: cart}}
- metadata: {namespace: shop, name: kept-00001, labels: {serving.knative.dev/service: cart}, annotations: {serving.knative.dev/no-gc: "true"}}
- metadata: {namespace: shop, name: own-00001, labels: {serving.knative.dev/service: own}}
`, &n.revisions)
	read(`
- metadata: {namespace: shop, name: cart}
  status: {url: "http://cart.shop.apps.example.org", traffic: [{tag: x, url: "http://x-cart.shop.apps.example.org"}]}
- metadata: {namespace: shop, name: own, annotations: {networking.ebb.dev/resting: disabled}}
  status: {url: "http://own.shop.apps.example.org"}
`, &n.own)
	return n
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"explain"}, {"top"}, {"coldstarts"}, {"calls"}, {"trace"}, {"rollout"}, {"check"}, {"dashboard"}, {"migrate"}} {
		var text bytes.Buffer
		c := newCommand(&text, time.Now)
		c.SetArgs(append(args, "--help"))
		if err := c.Execute(); err != nil {
			t.Fatal(err)
		}
		name := "help.txt"
		if len(args) > 0 {
			name = "help-" + args[0] + ".txt"
		}
		golden.File(t, "testdata/"+name, text.String())
	}
}
