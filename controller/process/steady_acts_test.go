package process

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/names"
	networkingv1alpha1 "ebb.dev/ebb/api/networking/v1alpha1"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	servingv1beta1 "ebb.dev/ebb/api/serving/v1beta1"
)

// acts are what users do and what goes wrong.
func (s *steady) acts() []func(string) {
	return []func(string){
		s.update, s.update, s.update, s.tag, s.untag, s.split, s.rollBack, s.latest, s.hide, s.send, s.send, s.mapDomain, s.unmap, s.again, s.collect,
		s.take, s.refuseCreation, s.refuseCreation, s.refuseWrites, s.refuseWrites, s.webhook, s.fillQuota, s.evict, s.evict, s.moveGateways, s.moveClaim,
		s.restart, s.crash, s.isolate, s.lose, s.lose, s.cutOff, s.breakChild, s.breakChild, s.editChild, s.editChild,
	}
}

// edit changes the spec of a Service as a user does.
func (s *steady) edit(name string, change func(*servingv1.Service)) {
	service := get[servingv1.Service](s.ground, services, name).DeepCopy()
	if service == nil {
		service = &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	}
	change(service)
	s.put(services, "serving.knative.dev/v1", "Service", service)
	s.touched[name] = time.Now()
}

// update is a new image, and some annotations.
func (s *steady) update(name string) {
	s.tries++
	notes := []map[string]string{{}, {}, {}, {names.MinScaleAnnotation: "1"}, {names.ClassAnnotation: names.ClassHPA}}[s.rand.IntN(5)]
	s.note("user: %s runs image %d %v", name, s.tries, notes)
	s.edit(name, func(v *servingv1.Service) {
		v.Spec.Template.Annotations = notes
		v.Spec.Template.Spec.Containers = []corev1.Container{{Image: fmt.Sprintf("dev.local/hello:%d", s.tries)}}
	})
}

// revision returns a Ready revision of a Service, or "".
func (s *steady) revision(service string) string {
	list := slices.DeleteFunc(all[servingv1.Revision](s.ground, revisions), func(r *servingv1.Revision) bool {
		return r.Labels[names.ServiceLabel] != service || !r.IsReady()
	})
	if len(list) == 0 {
		return ""
	}
	return list[s.rand.IntN(len(list))].Name
}

func (s *steady) traffic(name string, targets ...servingv1.TrafficTarget) {
	s.edit(name, func(v *servingv1.Service) {
		tags := slices.DeleteFunc(slices.Clone(v.Spec.Traffic), func(t servingv1.TrafficTarget) bool { return t.Tag == "" })
		v.Spec.Traffic = append(targets, tags...)
		s.note("user: %s to %s", name, told(v.Spec.Traffic))
	})
}

func told(targets []servingv1.TrafficTarget) string {
	var out []string
	for _, t := range targets {
		out = append(out, fmt.Sprintf("%s=%s:%d", t.Tag, t.RevisionName, ptr.Deref(t.Percent, 0)))
	}
	return strings.Join(out, " ")
}

var toLatest = servingv1.TrafficTarget{LatestRevision: ptr.To(true), Percent: ptr.To(int64(100))}

func (s *steady) latest(name string) { s.traffic(name, toLatest) }

func (s *steady) rollBack(name string) {
	if rev := s.revision(name); rev != "" {
		s.traffic(name, servingv1.TrafficTarget{RevisionName: rev, Percent: ptr.To(int64(100))})
	}
}

func (s *steady) split(name string) {
	one, two := s.revision(name), s.revision(name)
	if one != "" && one != two {
		s.traffic(name, servingv1.TrafficTarget{RevisionName: one, Percent: ptr.To(int64(50))}, servingv1.TrafficTarget{RevisionName: two, Percent: ptr.To(int64(50))})
	}
}

// tag gives a revision a tag, so that it has hosts of its own.
func (s *steady) tag(name string) { s.tagAs(name, []string{"x", "y"}[s.rand.IntN(2)]) }

func (s *steady) tagAs(name, tag string) {
	rev := s.revision(name)
	if rev == "" {
		return
	}
	s.edit(name, func(v *servingv1.Service) {
		rest := slices.DeleteFunc(slices.Clone(v.Spec.Traffic), func(t servingv1.TrafficTarget) bool { return t.Tag == tag })
		if len(rest) == 0 {
			rest = []servingv1.TrafficTarget{toLatest}
		}
		v.Spec.Traffic = append(rest, servingv1.TrafficTarget{Tag: tag, RevisionName: rev})
		s.note("user: %s to %s", name, told(v.Spec.Traffic))
	})
}

func (s *steady) untag(name string) {
	s.edit(name, func(v *servingv1.Service) {
		v.Spec.Traffic = slices.DeleteFunc(v.Spec.Traffic, func(t servingv1.TrafficTarget) bool { return t.Tag != "" })
	})
	s.note("user: %s has no tags", name)
	s.notServed(func(host string) bool { return strings.Contains(host, "-"+name+".") })
}

func (s *steady) hide(name string) {
	s.edit(name, func(v *servingv1.Service) {
		if v.Labels[names.VisibilityLabel] != "" {
			delete(v.Labels, names.VisibilityLabel)
			s.note("user: %s is public", name)
			return
		}
		v.Labels = map[string]string{names.VisibilityLabel: names.VisibilityClusterLocal}
		s.note("user: %s is cluster-local", name)
		s.notServed(func(host string) bool {
			return slices.Contains(s.served[host], name) && strings.HasSuffix(host, ".example.com")
		})
	})
}

// send has requests come that wake the revisions of a Service.
func (s *steady) send(name string) {
	s.note("user: requests for %s", name)
	for _, rev := range s.routedTo(name + ".ns.svc.cluster.local") {
		s.requests[rev] = s.now()
	}
}

// mapDomain maps the domain to a Service.
func (s *steady) mapDomain(name string) {
	if s.wrong[claimMoved] != nil {
		return
	}
	s.note("user: %s is mapped to %s", mapped, name)
	s.claim("ns")
	m := get[servingv1beta1.DomainMapping](s.ground, domainMappings, mapped).DeepCopy()
	if m == nil {
		m = &servingv1beta1.DomainMapping{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: mapped}}
	}
	m.Spec.Ref = duckv1.KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: name, Namespace: "ns"}
	s.put(domainMappings, "serving.knative.dev/v1beta1", "DomainMapping", m)
	for host, by := range s.served {
		if isMapped(host) {
			s.served[host] = append(by, name)
		}
	}
}

func (s *steady) claim(namespace string) {
	s.put(claims, "networking.internal.knative.dev/v1alpha1", "ClusterDomainClaim", &networkingv1alpha1.ClusterDomainClaim{
		ObjectMeta: metav1.ObjectMeta{Name: mapped}, Spec: networkingv1alpha1.ClusterDomainClaimSpec{Namespace: namespace}})
}

func (s *steady) unmap(string) {
	if s.store.Get(domainMappings, "ns", mapped) == nil {
		return
	}
	s.note("user: %s is not mapped", mapped)
	s.notServed(isMapped)
	if err := s.user.Ebb.ServingV1beta1().DomainMappings("ns").Delete(context.Background(), mapped, metav1.DeleteOptions{}); err != nil {
		s.fail("delete the DomainMapping: %v", err)
	}
}

// again deletes a Service and makes it anew, as `kubectl replace --force` does.
func (s *steady) again(name string) {
	have := get[servingv1.Service](s.ground, services, name)
	if have == nil {
		return
	}
	s.note("user: %s is replaced", name)
	service := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: have.Labels}, Spec: *have.Spec.DeepCopy()}
	service.Spec.Traffic = nil
	if err := s.user.Ebb.ServingV1().Services("ns").Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		s.fail("delete Service %s: %v", name, err)
	}
	s.notServed(func(host string) bool { return slices.Contains(s.served[host], name) })
	s.since[name] = s.now()
	s.pass(step)
	s.put(services, "serving.knative.dev/v1", "Service", service)
}

// collect changes whether old revisions are collected at once.
func (s *steady) collect(string) {
	s.collects = !s.collects
	s.note("administrator: revisions are collected: %v", s.collects)
	s.set()
}
