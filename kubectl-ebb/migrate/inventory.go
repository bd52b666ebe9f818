package migrate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// version returns the version of Knative that runs, "" if there is none.
func (m *Move) version(ctx context.Context) (string, error) {
	d, err := m.Kube.AppsV1().Deployments(names.SystemNamespace).Get(ctx, "controller", metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("there is no controller of Knative Serving in the namespace %s: %w", names.SystemNamespace, err)
	}
	if v := d.Labels["app.kubernetes.io/version"]; v != "" {
		return v, nil
	}
	return "of an unknown version", nil
}

// Inventory is what a check looks at. Nothing of it is written.
type Inventory struct {
	Kubernetes string
	minor      int
	state      *state
	// kinds says which kinds of Knative, Ebb and the Gateway API exist.
	kinds map[schema.GroupResource]bool
	// deployments are those of the system namespace, by name; known are only their facts.
	deployments map[string]Object
	settings    map[string]map[string]string
	counts      map[string]int
	// classes counts Ingresses, revisions and Certificates by the class that they ask for.
	ingressClasses, scalerClasses, certificateClasses map[string]int
	missing                                           []string // rights
	nodes                                             []room
	manifests                                         Manifests
	pods                                              int // of revisions
	kserve                                            *KServe
	livenessElsewhere                                 []string // revisions
}

// room is what a node has left.
type room struct {
	name        string
	cpu, memory resource.Quantity
	images      []string
}

// rights are what a move does, as an administrator of the cluster may.
var rights = []authorizationv1.ResourceAttributes{
	{Verb: "create", Resource: "configmaps", Namespace: names.SystemNamespace},
	{Verb: "delete", Group: "apps", Resource: "deployments", Namespace: names.SystemNamespace},
	{Verb: "delete", Group: "apps", Resource: "replicasets", Namespace: names.SystemNamespace},
	{Verb: "patch", Resource: "pods", Namespace: names.SystemNamespace},
	{Verb: "patch", Resource: "services"},
	{Verb: "list", Resource: "secrets"},
	{Verb: "delete", Resource: "endpoints"},
	{Verb: "update", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
	{Verb: "delete", Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"},
	{Verb: "update", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
	{Verb: "escalate", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
	{Verb: "bind", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
	{Verb: "patch", Group: names.NetworkingInternalGroup, Resource: "ingresses"},
	{Verb: "delete", Group: names.NetworkingInternalGroup, Resource: "serverlessservices"},
	{Verb: "list", Group: names.ServingGroup, Resource: "revisions"},
	{Verb: "list", Group: "gateway.networking.k8s.io", Resource: "httproutes"},
	{Verb: "patch", Group: "gateway.networking.k8s.io", Resource: "httproutes"},
	{Verb: "list", Resource: "nodes"},
}

// Look reads the inventory.
func (m *Move) Look(ctx context.Context) (*Inventory, error) {
	v, err := m.Kube.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("the API server does not answer: %w", err)
	}
	x := &Inventory{Kubernetes: v.GitVersion, kinds: map[schema.GroupResource]bool{}, deployments: map[string]Object{}, settings: map[string]map[string]string{},
		counts: map[string]int{}, ingressClasses: map[string]int{}, scalerClasses: map[string]int{}, certificateClasses: map[string]int{}, manifests: m.Manifests}
	if n, err := strconv.Atoi(strings.TrimRight(v.Minor, "+")); err == nil && v.Major == "1" {
		x.minor = n
	}
	if x.missing, err = m.rights(ctx); err != nil {
		return nil, err
	}
	if len(x.missing) > 0 {
		return x, nil // the rest could not be read
	}
	for _, r := range slices.Concat(onlyKnative, []schema.GroupVersionResource{servingServices, revisions, routes, mappings, autoscalers, httpRouteResource,
		gatewayResource, listenerSetResource}) {
		list, err := m.Kube.Discovery().ServerResourcesForGroupVersion(r.GroupVersion().String())
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read the resources of %s: %w", r.GroupVersion(), err)
		}
		x.kinds[r.GroupResource()] = err == nil && slices.ContainsFunc(list.APIResources, func(a metav1.APIResource) bool { return a.Name == r.Resource })
	}
	if x.state, err = m.load(ctx); err != nil {
		return nil, err
	}
	list, err := m.listIn(ctx, deploymentResource, names.SystemNamespace, "")
	if err != nil {
		return nil, err
	}
	for _, d := range list {
		if len(d.GetOwnerReferences()) == 0 { // others are gateways
			x.deployments[d.GetName()] = d
		}
	}
	if err := m.lookAtSettings(ctx, x); err != nil {
		return nil, err
	}
	if err := m.lookAtObjects(ctx, x); err != nil {
		return nil, err
	}
	if x.kserve, err = LookAtKServe(ctx, m.Kube); err != nil {
		return nil, err
	}
	return x, m.lookAtNodes(ctx, x)
}

func (m *Move) rights(ctx context.Context) (missing []string, err error) {
	for _, r := range rights {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &r}}
		answer, err := m.Kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("ask for your rights: %w", err)
		}
		if !answer.Status.Allowed {
			missing = append(missing, strings.TrimSuffix(r.Verb+" "+r.Resource+"."+r.Group, "."))
		}
	}
	return missing, nil
}

func (m *Move) lookAtSettings(ctx context.Context, x *Inventory) error {
	list, err := m.Kube.CoreV1().ConfigMaps(names.SystemNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	for _, c := range list.Items {
		if strings.HasPrefix(c.Name, "config-") {
			x.settings[c.Name] = c.Data
		}
	}
	return nil
}

func (m *Move) lookAtObjects(ctx context.Context, x *Inventory) error {
	for _, r := range []schema.GroupVersionResource{servingServices, revisions, routes, mappings, ingresses, certificates} {
		list, err := m.list(ctx, r, "")
		if err != nil {
			return err
		}
		x.counts[r.Resource] = len(list)
		for _, o := range list {
			switch r {
			case ingresses:
				x.ingressClasses[o.GetAnnotations()["networking.knative.dev/ingress.class"]]++
			case certificates:
				x.certificateClasses[o.GetAnnotations()["networking.knative.dev/certificate.class"]]++
			case revisions:
				if class := o.GetAnnotations()[names.ClassAnnotation]; class != "" {
					x.scalerClasses[class]++
				}
				if livenessElsewhere(o) {
					x.livenessElsewhere = append(x.livenessElsewhere, o.GetNamespace()+"/"+o.GetName())
				}
			}
		}
	}
	pods, err := m.list(ctx, podResource, names.RevisionUIDLabel)
	x.pods = len(pods)
	return err
}

// livenessElsewhere reports whether the serving container's liveness probe says another port than
// requests go to. Knative's pods ask the serving port even so.
func livenessElsewhere(revision Object) bool {
	var r struct {
		Spec servingv1.RevisionSpec `json:"spec"`
	}
	if runtime.DefaultUnstructuredConverter.FromUnstructured(revision.Object, &r) != nil {
		return false // not one that Knative took
	}
	c := r.Spec.ServingContainer()
	if c == nil || c.LivenessProbe == nil {
		return false
	}
	says := 0
	switch p := c.LivenessProbe; {
	case p.HTTPGet != nil:
		says = p.HTTPGet.Port.IntValue()
	case p.TCPSocket != nil:
		says = p.TCPSocket.Port.IntValue()
	}
	return says > 0 && says != int(r.Spec.Port())
}

// lookAtNodes reads what nodes can still take.
func (m *Move) lookAtNodes(ctx context.Context, x *Inventory) error {
	nodes, err := m.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	pods, err := m.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	cpu, memory := map[string]*resource.Quantity{}, map[string]*resource.Quantity{}
	for _, pod := range pods.Items {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		c, b := requests(&pod.Spec)
		for into, add := range map[*map[string]*resource.Quantity]resource.Quantity{&cpu: c, &memory: b} {
			if (*into)[pod.Spec.NodeName] == nil {
				(*into)[pod.Spec.NodeName] = &resource.Quantity{}
			}
			(*into)[pod.Spec.NodeName].Add(add)
		}
	}
	for _, n := range nodes.Items {
		if n.Spec.Unschedulable || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoSchedule }) {
			continue
		}
		r := room{name: n.Name, cpu: n.Status.Allocatable.Cpu().DeepCopy(), memory: n.Status.Allocatable.Memory().DeepCopy()}
		if used := cpu[n.Name]; used != nil {
			r.cpu.Sub(*used)
		}
		if used := memory[n.Name]; used != nil {
			r.memory.Sub(*used)
		}
		for _, image := range n.Status.Images {
			r.images = append(r.images, image.Names...)
		}
		x.nodes = append(x.nodes, r)
	}
	return nil
}

func requests(spec *corev1.PodSpec) (cpu, memory resource.Quantity) {
	for _, c := range spec.Containers {
		cpu.Add(*c.Resources.Requests.Cpu())
		memory.Add(*c.Resources.Requests.Memory())
	}
	return cpu, memory
}

// needs sums the requests of the pods that Ebb starts while Knative's still run.
func (m Manifests) needs() (cpu, memory resource.Quantity) {
	for _, o := range m {
		if o.GetKind() != "Deployment" && o.GetKind() != "StatefulSet" && o.GetKind() != "DaemonSet" {
			continue
		}
		var workload struct {
			Spec struct {
				Replicas *int32                 `json:"replicas"`
				Template corev1.PodTemplateSpec `json:"template"`
			} `json:"spec"`
		}
		if runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &workload) != nil {
			continue // the API server will say what is wrong with it
		}
		for n := int32(0); n < 1 || workload.Spec.Replicas != nil && n < *workload.Spec.Replicas; n++ {
			c, b := requests(&workload.Spec.Template.Spec)
			cpu.Add(c)
			memory.Add(b)
		}
	}
	return cpu, memory
}

// refusedSettings says what Ebb does not accept, and what has no effect there.
func (x *Inventory) refusedSettings() (refused, idle []string) {
	for _, name := range sortedKeys(x.settings) {
		if !settings.Known(name) {
			if len(x.settings[name]) > 1 || len(x.settings[name]) == 1 && x.settings[name][settings.ExampleKey] == "" {
				idle = append(idle, "ConfigMap "+name+": Ebb does not read it")
			}
			continue
		}
		data := map[string]string{}
		maps.Copy(data, x.settings[name])
		if name == settings.DeploymentName {
			data["queue-sidecar-image"] = "queue-proxy" // Ebb's takes its place
		}
		if err := settings.ParseOne(name, data); err != nil {
			refused = append(refused, strings.Split(err.Error(), "\n")...)
		}
		idle = append(idle, settings.Warnings(name, x.settings[name])...)
	}
	return refused, idle
}
