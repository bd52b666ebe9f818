package process

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
)

var claims = schema.GroupResource{Group: "networking.internal.knative.dev", Resource: "clusterdomainclaims"}

const claimMoved = "belongs to another namespace"

func (s *steady) now() time.Time { return time.Now() }

// take makes a Service of somebody else with the name that a tag needs.
func (s *steady) take(name string) {
	other, words := "z-"+name, "do not own"
	if s.wrong[words] != nil || s.store.Get(coreServices, "ns", other) != nil || s.revision(name) == "" {
		return
	}
	s.put(coreServices, "v1", "Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: other}})
	s.begin(words, func() { s.store.Remove(coreServices, "ns", other) })
	s.tagAs(name, "z")
	s.update(name)
}

// children are the resources whose writes go wrong. Objects of Ebb's own kinds are among them.
var children = []string{"services", "deployments", "httproutes", "podautoscalers", "revisions", "endpointslices", "configurations", "routes",
	"horizontalpodautoscalers", "secrets", "listenersets", "certificates"}

// refusing has the API server refuse writes of one resource.
func (s *steady) refusing(words string, verbs []string, err func(schema.GroupResource) error) {
	if s.refuse != nil {
		return
	}
	which := children[s.rand.IntN(len(children))]
	s.note("%s of %s: refused", strings.Join(verbs, ", "), which)
	s.forbid(func(verb, resource, subresource string) error {
		if subresource == "" && resource == which && slices.Contains(verbs, verb) {
			return err(schema.GroupResource{Resource: resource})
		}
		return nil
	})
	s.begin(words, func() { s.forbid(nil) })
}

func (s *steady) refuseCreation(string) {
	s.refusing("the quota is full", []string{"create"}, func(r schema.GroupResource) error {
		return apierrors.NewForbidden(r, "it", errors.New("exceeded quota: the quota is full"))
	})
}

func (s *steady) refuseWrites(string) {
	s.refusing("the policy forbids it", []string{"create", "update", "patch"}, func(r schema.GroupResource) error {
		return apierrors.NewForbidden(r, "it", errors.New("ValidatingAdmissionPolicy 'x' denied request: the policy forbids it"))
	})
}

func (s *steady) webhook(string) {
	s.refusing("failed calling webhook", []string{"create", "update"}, func(schema.GroupResource) error {
		return apierrors.NewInternalError(errors.New(`failed calling webhook "x.test": connection refused`))
	})
}

const noMorePods = "pods are forbidden: exceeded quota: no more pods"

// fillQuota has no place for pods.
func (s *steady) fillQuota(string) {
	if words := "no more pods"; s.wrong[words] == nil {
		s.noPods = noMorePods
		s.begin(words, func() { s.noPods, s.room = "", time.Now() })
	}
}

// evict has the node evict every pod of a Service: the objects stay. New pods are spared: one that
// replaced another and is evicted, too, is a failure.
func (s *steady) evict(name string) {
	for _, pod := range all[corev1.Pod](s.ground, pods) {
		if pod.Labels[names.ServiceLabel] == name && pod.Status.Phase != corev1.PodFailed && time.Since(pod.CreationTimestamp.Time) > time.Minute {
			s.note("pod %s is evicted", pod.Name)
			s.put(pods, "v1", "Pod", evicted(pod))
		}
	}
}

// What is wrong with config-gateway, by its words in conditions.
const (
	absent   = "config-gateway"
	misspelt = "misspelt"
)

// moveGateways has config-gateway name Gateways that are not there, with Services that are not
// there or with that of the right one.
func (s *steady) moveGateways(string) {
	if s.gateways == "" {
		s.gateways = []string{absent, misspelt}[s.rand.IntN(2)]
		s.set()
		s.begin(s.gateways, func() { s.gateways = ""; s.set() })
	}
}

// moveClaim gives the domain to another namespace: the mapping may not serve it any more.
func (s *steady) moveClaim(string) {
	if s.store.Get(domainMappings, "ns", mapped) == nil || s.wrong[claimMoved] != nil {
		return
	}
	s.claim("other")
	s.notServed(isMapped)
	s.begin(claimMoved, func() { s.claim("ns") })
}

func (s *steady) anyReplica() *replica { return s.replicas[s.rand.IntN(len(s.replicas))] }

func (s *steady) restart(string) {
	r := s.anyReplica()
	s.note("%s is restarted", r.name)
	s.start(r)
	s.moved = time.Now()
}

// crash restarts a controller that cannot release its Leases.
func (s *steady) crash(string) {
	r := s.anyReplica()
	s.note("%s crashes", r.name)
	r.cut.Store(true)
	r.stop()
	r.cut.Store(false)
	r.stop = nil
	s.start(r)
	s.moved = time.Now()
}

// isolate cuts one controller of two off for a while. Its Leases go to the other.
func (s *steady) isolate(string) {
	words, r := "a controller is cut off", s.anyReplica()
	if len(s.replicas) == 1 || s.wrong[words] != nil || s.blind {
		return
	}
	s.note("%s is cut off", r.name)
	r.cut.Store(true)
	s.store.Interrupt(false)
	s.begin(words, func() { r.cut.Store(false) })
}

// lose ends all watches. What comes and goes meanwhile nobody is told.
func (s *steady) lose(name string) {
	s.note("watches are lost")
	if s.rand.IntN(2) == 0 {
		s.evict(name)
	}
	s.store.Interrupt(s.rand.IntN(2) == 0)
}

// cutOff takes the API server away from every controller.
func (s *steady) cutOff(string) {
	words := "the API server is away"
	if s.wrong[words] != nil {
		return
	}
	s.away.Store(true)
	s.blind = true
	s.store.Interrupt(s.rand.IntN(2) == 0)
	s.begin(words, func() { s.away.Store(false); s.blind = false })
}

var childKinds = []schema.GroupResource{httpRoutes, coreServices, endpointSlices, autoscalers, deployments, configurations, routesResource, listenerSets}

// child is an object that Ebb made for a Service.
func (s *steady) child(name string, kinds []schema.GroupResource) (schema.GroupResource, string) {
	resource := kinds[s.rand.IntN(len(kinds))]
	list := slices.DeleteFunc(s.names(resource), func(child string) bool {
		ours := child == name || strings.HasPrefix(child, name+"-") || strings.Contains(child, "-"+name+".") || strings.HasPrefix(child, name+".")
		return !ours || strings.HasPrefix(child, "z-")
	})
	if len(list) == 0 {
		return resource, ""
	}
	return resource, list[s.rand.IntN(len(list))]
}

// breakChild deletes an object that serves. Requests may fail until it is made again.
func (s *steady) breakChild(name string) {
	resource, victim := s.child(name, childKinds)
	if victim == "" {
		return
	}
	s.note("somebody deletes %s %s", resource.Resource, victim)
	s.store.Remove(resource, "ns", victim)
	if s.rand.IntN(3) == 0 {
		s.note("and watches are lost")
		s.store.Interrupt(true)
	}
	s.hurt(name)
	if resource == configurations { // with its revisions
		s.notServed(func(host string) bool { return slices.Contains(s.served[host], name) })
	}
}

// editChild changes an object that serves, as `kubectl edit` does.
func (s *steady) editChild(name string) {
	resource, victim := s.child(name, childKinds[:5])
	if victim == "" {
		return
	}
	s.note("somebody edits %s %s", resource.Resource, victim)
	s.hurt(name)
	switch resource {
	case httpRoutes:
		h := get[gatewayv1.HTTPRoute](s.ground, resource, victim).DeepCopy()
		for i := range h.Spec.Rules {
			for j := range h.Spec.Rules[i].BackendRefs {
				h.Spec.Rules[i].BackendRefs[j].Name = "nobody"
			}
		}
		s.put(resource, "gateway.networking.k8s.io/v1", "HTTPRoute", h)
	case coreServices:
		v := get[corev1.Service](s.ground, resource, victim).DeepCopy()
		v.Spec.Selector, v.Spec.Ports, v.Labels = map[string]string{"app": "nobody"}, nil, nil
		s.put(resource, "v1", "Service", v)
	case endpointSlices:
		e := get[discoveryv1.EndpointSlice](s.ground, resource, victim).DeepCopy()
		e.Endpoints = nil
		s.put(resource, "discovery.k8s.io/v1", "EndpointSlice", e)
	case autoscalers:
		pa := get[autoscalingv1alpha1.PodAutoscaler](s.ground, resource, victim).DeepCopy()
		pa.Spec.Reachability, pa.Annotations, pa.Labels = autoscalingv1alpha1.ReachabilityUnreachable, nil, nil
		s.put(resource, "autoscaling.internal.knative.dev/v1alpha1", "PodAutoscaler", pa)
	case deployments:
		d := get[appsv1.Deployment](s.ground, resource, victim).DeepCopy()
		d.Spec.Replicas, d.Labels["edited"] = ptr.To(int32(s.rand.IntN(3))), fmt.Sprint(s.tries)
		d.Spec.Template.Spec.Containers[0].Image = "dev.local/other"
		s.put(resource, "apps/v1", "Deployment", d)
	}
}
