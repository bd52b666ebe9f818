package policy

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/ptr"
)

var resources = map[string]struct {
	gvr  schema.GroupVersionResource
	kind schema.GroupVersionKind
}{
	"pods":              {corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithKind("Pod")},
	"secrets":           {corev1.SchemeGroupVersion.WithResource("secrets"), corev1.SchemeGroupVersion.WithKind("Secret")},
	"services":          {corev1.SchemeGroupVersion.WithResource("services"), corev1.SchemeGroupVersion.WithKind("Service")},
	"configmaps":        {corev1.SchemeGroupVersion.WithResource("configmaps"), corev1.SchemeGroupVersion.WithKind("ConfigMap")},
	"deployments":       {appsv1.SchemeGroupVersion.WithResource("deployments"), appsv1.SchemeGroupVersion.WithKind("Deployment")},
	"deployments/scale": {appsv1.SchemeGroupVersion.WithResource("deployments"), autoscalingv1.SchemeGroupVersion.WithKind("Scale")},
	"leases":            {coordinationv1.SchemeGroupVersion.WithResource("leases"), coordinationv1.SchemeGroupVersion.WithKind("Lease")},
	"apiservices": {schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
		schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"}},
}

func plain(t *testing.T, resource string, object any) *unstructured.Unstructured {
	t.Helper()
	if object == nil {
		return nil
	}
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &u.Object); err != nil {
		t.Fatal(err)
	}
	u.SetGroupVersionKind(resources[resource].kind)
	return u
}

func pod(labels bool, change func(*corev1.Pod)) *corev1.Pod {
	requests := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "tenant", Annotations: map[string]string{"theirs": "1"},
		Labels: map[string]string{"app": "a"}, OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "r"}}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "user-container", Image: "good", Resources: corev1.ResourceRequirements{Requests: requests,
				Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")}}},
			{Name: "queue-proxy", Resources: corev1.ResourceRequirements{Requests: requests.DeepCopy()}}}}}
	if labels {
		p.Labels["serving.knative.dev/revision"] = "r-00001"
	}
	if change != nil {
		change(p)
	}
	return p
}

func annotate(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

// starts is a pod that starts with more CPU, and has a limit now.
func starts(now string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		annotate("autoscaling.ebb.dev/startup-limit", "user-container=250m:1")(p)
		cpu(0, now)(p)
	}
}

// cpu sets a CPU limit, "" for none.
func cpu(container int, limit string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		r := &p.Spec.Containers[container].Resources
		if limit == "" {
			delete(r.Limits, corev1.ResourceCPU)
			return
		}
		if r.Limits == nil {
			r.Limits = corev1.ResourceList{}
		}
		r.Limits[corev1.ResourceCPU] = resource.MustParse(limit)
	}
}

func requests(container int, memory string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[container].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	}
}

func secret(namespace, name string, kind corev1.SecretType) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: kind}
}

func scale(selector string, replicas int32) *autoscalingv1.Scale {
	return &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "tenant"}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas},
		Status: autoscalingv1.ScaleStatus{Selector: selector}}
}

func meta(name, apiVersion, kind string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, Namespace: "tenant"}
	if kind != "" {
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "o", UID: "1", Controller: ptr.To(true)}}
	}
	return m
}

func deployment(m metav1.ObjectMeta, change func(*corev1.PodSpec)) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: m}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "user-container"}}
	if change != nil {
		change(&d.Spec.Template.Spec)
	}
	return d
}

func apiService(service, bundle string) map[string]any {
	spec := map[string]any{"group": "view.ebb.dev", "service": map[string]any{"name": service}}
	if bundle != "" {
		spec["caBundle"] = bundle
	}
	return map[string]any{"metadata": map[string]any{"name": "v1alpha1.view.ebb.dev"}, "spec": spec}
}

// What a component really writes, and what somebody with its token would.
func TestATokenOfOneComponentIsNotTheCluster(t *testing.T) {
	set, err := Read("../../../config/core/policies.yaml", "../../../config/core/controller.yaml")
	if err != nil {
		t.Fatal(err)
	}
	revision := func(name string) metav1.ObjectMeta { return meta(name, "serving.knative.dev/v1", "Revision") }
	privileged := func(p *corev1.PodSpec) {
		p.InitContainers = []corev1.Container{{Name: "i", SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}}}
	}
	hostNetwork := func(p *corev1.PodSpec) { p.HostNetwork = true }
	hostPath := func(p *corev1.PodSpec) {
		p.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
	}
	features := func(data map[string]string) *corev1.ConfigMap { return &corev1.ConfigMap{Data: data} }
	for name, row := range map[string]struct {
		account, resource, sub string
		before, after          any
		dry                    bool
		features               map[string]string
		allowed                bool
	}{
		"the webhook's dry run":                    {account: "webhook", resource: "pods", after: pod(true, nil), dry: true, allowed: true},
		"the edge profile's dry run":               {account: "controller", resource: "pods", after: pod(true, nil), dry: true, allowed: true},
		"a pod by the webhook":                     {account: "webhook", resource: "pods", after: pod(true, nil)},
		"a pod by the edge profile":                {account: "controller", resource: "pods", after: pod(true, nil)},
		"a pod by somebody else":                   {account: "other", resource: "pods", after: pod(true, nil), allowed: true},
		"the cost of a pod's deletion":             {account: "autoscaler", resource: "pods", before: pod(true, nil), after: pod(true, annotate("controller.kubernetes.io/pod-deletion-cost", "-5")), allowed: true},
		"what a pod asks for awake":                {account: "autoscaler", resource: "pods", before: pod(true, nil), after: pod(true, annotate("autoscaling.ebb.dev/awake-requests", "{}")), allowed: true},
		"what a pod asked for awake, taken away":   {account: "autoscaler", resource: "pods", before: pod(true, annotate("autoscaling.ebb.dev/awake-requests", "{}")), after: pod(true, nil), allowed: true},
		"the first annotation":                     {account: "autoscaler", resource: "pods", before: pod(true, func(p *corev1.Pod) { p.Annotations = nil }), after: pod(true, func(p *corev1.Pod) { p.Annotations = map[string]string{"autoscaling.ebb.dev/awake-requests": "{}"} }), allowed: true},
		"the cost of a pod that is no revision's":  {account: "autoscaler", resource: "pods", before: pod(false, nil), after: pod(false, annotate("controller.kubernetes.io/pod-deletion-cost", "-5"))},
		"a label that makes it a revision's":       {account: "autoscaler", resource: "pods", before: pod(false, nil), after: pod(true, nil)},
		"an image":                                 {account: "autoscaler", resource: "pods", before: pod(true, nil), after: pod(true, func(p *corev1.Pod) { p.Spec.Containers[0].Image = "evil" })},
		"an image on the edge profile":             {account: "controller", resource: "pods", before: pod(true, nil), after: pod(true, func(p *corev1.Pod) { p.Spec.Containers[0].Image = "evil" })},
		"another annotation":                       {account: "autoscaler", resource: "pods", before: pod(true, nil), after: pod(true, annotate("sidecar", "none"))},
		"another annotation's value":               {account: "autoscaler", resource: "pods", before: pod(true, nil), after: pod(true, annotate("theirs", "2"))},
		"another annotation away":                  {account: "autoscaler", resource: "pods", before: pod(true, nil), after: pod(true, func(p *corev1.Pod) { p.Annotations = nil })},
		"an owner":                                 {account: "autoscaler", resource: "pods", before: pod(true, nil), after: pod(true, func(p *corev1.Pod) { p.OwnerReferences = nil })},
		"a finalizer":                              {account: "autoscaler", resource: "pods", before: pod(true, nil), after: pod(true, func(p *corev1.Pod) { p.Finalizers = []string{"a/b"} })},
		"a resize":                                 {account: "autoscaler", resource: "pods", sub: "resize", before: pod(true, nil), after: pod(true, requests(0, "1Mi")), allowed: true},
		"a resize on the edge profile":             {account: "controller", resource: "pods", sub: "resize", before: pod(true, nil), after: pod(true, requests(0, "1Mi")), allowed: true},
		"a resize of queue-proxy":                  {account: "autoscaler", resource: "pods", sub: "resize", before: pod(true, nil), after: pod(true, requests(1, "1Mi"))},
		"a resize of a pod that is no revision's":  {account: "autoscaler", resource: "pods", sub: "resize", before: pod(false, nil), after: pod(false, requests(0, "1Mi"))},
		"a resize of limits":                       {account: "autoscaler", resource: "pods", sub: "resize", before: pod(true, nil), after: pod(true, func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits = nil })},
		"an annotation by a resize":                {account: "autoscaler", resource: "pods", sub: "resize", before: pod(true, nil), after: pod(true, annotate("autoscaling.ebb.dev/awake-requests", "{}"))},
		"the scale of a revision":                  {account: "autoscaler", resource: "deployments/scale", sub: "scale", before: scale("serving.knative.dev/revisionUID=1", 0), after: scale("serving.knative.dev/revisionUID=1", 3), allowed: true},
		"the scale of the cluster's DNS":           {account: "autoscaler", resource: "deployments/scale", sub: "scale", before: scale("k8s-app=kube-dns", 2), after: scale("k8s-app=kube-dns", 0)},
		"the scale of the DNS, by the controller":  {account: "controller", resource: "deployments/scale", sub: "scale", before: scale("k8s-app=kube-dns", 2), after: scale("serving.knative.dev/revisionUID=1", 0)},
		"the Secret of the webhook":                {account: "webhook", resource: "secrets", after: secret("knative-serving", "webhook-certs", "Opaque"), allowed: true},
		"the Secret of view.ebb.dev":               {account: "autoscaler", resource: "secrets", after: secret("knative-serving", "autoscaler-view-certs", "Opaque"), allowed: true},
		"a token under the Secret's name":          {account: "autoscaler", resource: "secrets", after: secret("knative-serving", "autoscaler-view-certs", corev1.SecretTypeServiceAccountToken)},
		"the Secret of another component":          {account: "autoscaler", resource: "secrets", after: secret("knative-serving", "webhook-certs", "Opaque")},
		"a Secret of any name":                     {account: "webhook", resource: "secrets", after: secret("knative-serving", "a", "Opaque")},
		"the key of a namespace":                   {account: "controller", resource: "secrets", after: secret("tenant", "ebb-queue-proxy", "Opaque"), allowed: true},
		"the autoscaler's Lease":                   {account: "autoscaler", resource: "leases", after: &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "autoscaler-bucket-00-of-01"}}, allowed: true},
		"which nodes are silent":                   {account: "autoscaler", resource: "leases", after: &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "autoscaler-silent-nodes"}}, allowed: true},
		"the controller's Lease":                   {account: "autoscaler", resource: "leases", after: &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "controller.00-of-01"}}},
		"the authority of view.ebb.dev":            {account: "autoscaler", resource: "apiservices", before: apiService("autoscaler-view", ""), after: apiService("autoscaler-view", "QQ=="), allowed: true},
		"another authority of view.ebb.dev":        {account: "autoscaler", resource: "apiservices", before: apiService("autoscaler-view", "QQ=="), after: apiService("autoscaler-view", "Qg=="), allowed: true},
		"another server of view.ebb.dev":           {account: "autoscaler", resource: "apiservices", before: apiService("autoscaler-view", ""), after: apiService("evil", "")},
		"the Deployment of a Revision":             {account: "controller", resource: "deployments", after: deployment(revision("d"), nil), allowed: true},
		"a change of the Deployment of a Revision": {account: "controller", resource: "deployments", before: deployment(revision("d"), nil), after: deployment(revision("d"), nil), allowed: true},
		"the end of the Deployment of a Revision":  {account: "controller", resource: "deployments", before: deployment(revision("d"), nil), allowed: true},
		"a Deployment of nobody":                   {account: "controller", resource: "deployments", after: deployment(meta("d", "", ""), nil)},
		"a Deployment taken over":                  {account: "controller", resource: "deployments", before: deployment(meta("d", "", ""), nil), after: deployment(revision("d"), nil)},
		"the end of a Deployment of others":        {account: "controller", resource: "deployments", before: deployment(meta("d", "", ""), nil)},
		"a Deployment of a namespace":              {account: "controller", resource: "deployments", after: deployment(meta("d", "v1", "Namespace"), nil)},
		"a privileged Deployment":                  {account: "controller", resource: "deployments", after: deployment(revision("d"), privileged)},
		"the node's network":                       {account: "controller", resource: "deployments", after: deployment(revision("d"), hostNetwork)},
		"the node's network, which users may have": {account: "controller", resource: "deployments", after: deployment(revision("d"), hostNetwork), features: map[string]string{"kubernetes.podspec-hostnetwork": "Allowed"}, allowed: true},
		"the node's network, which users may not":  {account: "controller", resource: "deployments", after: deployment(revision("d"), hostNetwork), features: map[string]string{"kubernetes.podspec-hostnetwork": "disabled", "kubernetes.podspec-hostpid": "enabled"}},
		"the node's files":                         {account: "controller", resource: "deployments", after: deployment(revision("d"), hostPath)},
		"the node's files, which users may have":   {account: "controller", resource: "deployments", after: deployment(revision("d"), hostPath), features: map[string]string{"kubernetes.podspec-volumes-hostpath": "enabled"}, allowed: true},
		"the placeholder of a Route":               {account: "controller", resource: "services", after: &corev1.Service{ObjectMeta: meta("s", "serving.knative.dev/v1", "Route")}, allowed: true},
		"the Service of a revision":                {account: "controller", resource: "services", after: &corev1.Service{ObjectMeta: meta("s", "autoscaling.internal.knative.dev/v1alpha1", "PodAutoscaler")}, allowed: true},
		"a Service of others":                      {account: "controller", resource: "services", before: &corev1.Service{ObjectMeta: meta("s", "", "")}, after: &corev1.Service{ObjectMeta: meta("s", "", "")}},
		"the end of a Service of others":           {account: "controller", resource: "services", before: &corev1.Service{ObjectMeta: meta("s", "apps/v1", "StatefulSet")}},
		"the authority of a namespace":             {account: "controller", resource: "configmaps", after: &corev1.ConfigMap{ObjectMeta: meta("c", "v1", "Namespace")}, allowed: true},
		"a setting of Ebb":                         {account: "controller", resource: "configmaps", before: &corev1.ConfigMap{ObjectMeta: meta("config-features", "", "")}, after: &corev1.ConfigMap{ObjectMeta: meta("config-features", "", "")}},

		"more CPU for a pod that starts":     {account: "autoscaler", resource: "pods", sub: "resize", before: pod(true, starts("250m")), after: pod(true, starts("1")), allowed: true},
		"its own CPU again":                  {account: "autoscaler", resource: "pods", sub: "resize", before: pod(true, starts("1")), after: pod(true, starts("250m")), allowed: true},
		"more CPU than the pod says":         {account: "autoscaler", resource: "pods", sub: "resize", before: pod(true, starts("250m")), after: pod(true, starts("2"))},
		"another CPU than its own again":     {account: "autoscaler", resource: "pods", sub: "resize", before: pod(true, starts("1")), after: pod(true, starts("300m"))},
		"no CPU limit for a pod that starts": {account: "autoscaler", resource: "pods", sub: "resize", before: pod(true, starts("250m")), after: pod(true, starts(""))},
		"more CPU and memory": {account: "autoscaler", resource: "pods", sub: "resize", before: pod(true, starts("250m")), after: pod(true, func(p *corev1.Pod) {
			starts("1")(p)
			delete(p.Spec.Containers[0].Resources.Limits, corev1.ResourceMemory)
		})},
		"more CPU for a pod that says nothing": {account: "autoscaler", resource: "pods", sub: "resize", before: pod(true, cpu(0, "250m")), after: pod(true, cpu(0, "1"))},
		"more CPU for queue-proxy": {account: "autoscaler", resource: "pods", sub: "resize", before: pod(true, func(p *corev1.Pod) {
			annotate("autoscaling.ebb.dev/startup-limit", "queue-proxy=250m:1")(p)
			cpu(1, "250m")(p)
		}), after: pod(true, func(p *corev1.Pod) {
			annotate("autoscaling.ebb.dev/startup-limit", "queue-proxy=250m:1")(p)
			cpu(1, "1")(p)
		})},
	} {
		t.Run(name, func(t *testing.T) {
			set.Params = features(row.features)
			operation := admission.Update
			if row.before == nil {
				operation = admission.Create
			} else if row.after == nil {
				operation = admission.Delete
			}
			err := set.Judge(Write{Account: row.account, Operation: operation, Resource: resources[row.resource].gvr, Sub: row.sub, DryRun: row.dry,
				Before: plain(t, row.resource, row.before), After: plain(t, row.resource, row.after)})
			if (err == nil) != row.allowed {
				t.Errorf("refused: %v", err)
			}
		})
	}
}
