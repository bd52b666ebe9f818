package process

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	servingv1beta1 "ebb.dev/ebb/api/serving/v1beta1"
)

var domainMappings = schema.GroupResource{Group: "serving.knative.dev", Resource: "domainmappings"}

// check asks every host that served, and looks at what is not Ready for long.
func (s *steady) check() {
	for _, service := range all[servingv1.Service](s.ground, services) {
		condition := service.Status.GetCondition(apis.ConditionReady)
		if condition.IsTrue() && service.Status.ObservedGeneration == service.Generation {
			s.since[service.Name] = time.Now()
		}
		s.explained(service, condition)
	}
	s.scalable()
	for _, host := range slices.Sorted(maps.Keys(s.served)) {
		by := s.served[host]
		if s.hurts(by...) {
			continue
		}
		if a := s.ask(gatewayOf(host), host, ""); a.code != 200 {
			full := s.noPods != "" || time.Since(s.room) < mended
			// Both are made for a request, and may not be.
			refused := s.putsAway && (strings.Contains(a.why, "create Deployment") || strings.Contains(a.why, "create Service") && strings.Contains(a.why, "-private"))
			if !refused && (!full || !strings.Contains(a.why, noMorePods)) {
				s.fail("host %s answers %d: %s", host, a.code, a.why)
			}
		} else if !slices.ContainsFunc(by, func(name string) bool { return strings.HasPrefix(a.by[0], name+"-") }) {
			s.fail("host %s of %s is answered by %v", host, by, a.by)
		}
	}
	s.remember()
}

// scalable: what requests woke half a minute ago has a Deployment for its pods, and a Service that
// lists them.
func (s *steady) scalable() {
	if len(s.wrong) > 0 || time.Since(s.moved) < mended {
		return
	}
	for _, pa := range all[autoscalingv1alpha1.PodAutoscaler](s.ground, autoscalers) {
		rev := get[servingv1.Revision](s.ground, revisions, pa.Name)
		if woken := time.Since(s.requests[pa.Name]); rev == nil || woken < 30*time.Second || woken > time.Minute-step || s.hurts(rev.Labels[names.ServiceLabel]) ||
			!upOnce(pa) || !pa.DeletionTimestamp.IsZero() || rev.Annotations[names.ParkedAnnotation] != "" || pa.Annotations[names.ClassAnnotation] == names.ClassHPA {
			continue
		}
		if d := get[appsv1.Deployment](s.ground, deployments, names.Deployment(pa.Name)); d == nil || ptr.Deref(d.Spec.Replicas, 1) == 0 {
			s.fail("requests for %s wait since %s, and its Deployment is %v", pa.Name, time.Since(s.requests[pa.Name]), d)
		}
		if s.store.Get(coreServices, "ns", names.PrivateService(pa.Name)) == nil {
			s.fail("requests for %s wait since %s, and it has no private Service", pa.Name, time.Since(s.requests[pa.Name]))
		}
	}
}

// remember notes the hosts that serve and are to serve.
func (s *steady) remember() {
	for _, route := range all[servingv1.Route](s.ground, routesResource) {
		if !route.IsReady() || s.hurts(route.Name) || route.Status.URL == nil {
			continue
		}
		hosts := []string{route.Name + ".ns.svc.cluster.local"}
		for _, t := range append(route.Status.Traffic, servingv1.TrafficTarget{URL: route.Status.URL}) {
			hosts = append(hosts, hostsOf(t.URL)...)
		}
		for _, host := range hosts {
			if s.wanted(route.Name, host) && s.ask(gatewayOf(host), host, "").code == 200 {
				s.served[host] = []string{route.Name}
			}
		}
	}
	if m := get[servingv1beta1.DomainMapping](s.ground, domainMappings, mapped); m != nil && s.mappingWanted(m) {
		for _, host := range hostsOf(m.Status.URL) {
			if by := m.Spec.Ref.Name; !s.hurts(by) && s.ask(public, host, "").code == 200 {
				s.served[host] = []string{by}
			}
		}
	}
}

// hostsOf is the host of an address, and the same over TLS if the address says so.
func hostsOf(u *apis.URL) []string {
	switch {
	case u == nil:
		return nil
	case u.Scheme == "https":
		return []string{u.Host, https + u.Host}
	}
	return []string{u.Host}
}

func isMapped(host string) bool { return strings.TrimPrefix(host, https) == mapped }

func (s *steady) mappingWanted(m *servingv1beta1.DomainMapping) bool {
	return m.DeletionTimestamp.IsZero() && m.Status.ObservedGeneration == m.Generation && m.Status.GetCondition(apis.ConditionReady).IsTrue()
}

// wanted: a status may lag behind the user, who has just taken a host away.
func (s *steady) wanted(name, host string) bool {
	service := get[servingv1.Service](s.ground, services, name)
	if service == nil || service.Status.ObservedGeneration != service.Generation || !service.Status.GetCondition(apis.ConditionReady).IsTrue() {
		return false
	}
	if service.Labels[names.VisibilityLabel] != "" && gatewayOf(host) == public {
		return false // labels have no generation
	}
	tag, _, tagged := strings.Cut(strings.SplitN(strings.TrimPrefix(host, https), ".", 2)[0], "-")
	return !tagged || slices.ContainsFunc(service.Spec.Traffic, func(t servingv1.TrafficTarget) bool { return t.Tag == tag })
}

// explained: what is not Ready for longer than a minute names one of the things that are wrong. A
// new revision takes two steps, and then its Route and its Service may each hold a message back for
// 10 s.
func (s *steady) explained(service *servingv1.Service, condition *apis.Condition) {
	if len(s.wrong) == 0 || s.blind || condition.IsTrue() || time.Since(s.since[service.Name]) < 3*time.Minute ||
		time.Since(s.moved) < mended || time.Since(s.touched[service.Name]) < 8*step || s.hurts(service.Name) {
		return
	}
	text := fmt.Sprint(condition.GetReason(), " ", condition.GetMessage())
	if s.wrong[misspelt] != nil && (strings.Contains(text, "answers 404") || s.canRest && strings.Contains(text, "follows an older plan")) {
		return // for a host that no gateway has had
	}
	for words := range s.wrong {
		if strings.Contains(text, words) {
			return
		}
	}
	for _, t := range service.Spec.Traffic { // somebody deleted it
		if t.RevisionName != "" && strings.Contains(text, t.RevisionName) && s.store.Get(revisions, "ns", t.RevisionName) == nil {
			return
		}
	}
	// It may name another object that says it.
	for _, rev := range all[servingv1.Revision](s.ground, revisions) {
		for _, c := range rev.Status.Conditions {
			for words := range s.wrong {
				if strings.Contains(c.Message, words) && strings.Contains(text, rev.Name) {
					return
				}
			}
		}
	}
	s.fail("Service %s is not Ready for %s and says %q, while this is wrong: %v", service.Name,
		time.Since(s.since[service.Name]), text, slices.Sorted(maps.Keys(s.wrong)))
}

// How long everything may take to be at rest once nothing is wrong: the last attempts of what was
// refused, and parking. What gave up is tried again later.
const (
	restsWithin  = 4 * time.Minute
	triesWithin  = anewWithin + restsWithin
	quietAtLeast = time.Minute
)

// atRest: nothing is wrong any more, so everything is as the users want it, and stays so.
func (s *steady) atRest() {
	s.possible()
	s.pass(restsWithin)
	for waited := restsWithin; s.notAsWanted() != "" && s.givenUp() && waited < triesWithin; waited += step {
		s.pass(step)
	}
	if why := s.notAsWanted(); why != "" {
		s.fail("at rest, %s", why)
	}
	s.pass(restsWithin) // what was superseded is parked
	s.store.Writes()
	s.pass(quietAtLeast)
	for _, write := range s.store.Writes() {
		if write.Resource != "leases" {
			s.fail("at rest, somebody writes: %s", describe(write))
		}
	}
	for _, name := range serviceNames {
		s.since[name] = time.Now()
	}
}

// possible has users mend what asks for revisions that are gone.
func (s *steady) possible() {
	for _, service := range all[servingv1.Service](s.ground, services) {
		if slices.ContainsFunc(service.Spec.Traffic, func(t servingv1.TrafficTarget) bool {
			return t.RevisionName != "" && s.store.Get(revisions, "ns", t.RevisionName) == nil
		}) {
			s.untag(service.Name)
			s.latest(service.Name)
		}
	}
}

func (s *steady) givenUp() bool {
	return slices.ContainsFunc(all[servingv1.Revision](s.ground, revisions), func(r *servingv1.Revision) bool {
		return r.Status.GetCondition(servingv1.RevisionConditionResourcesAvailable).IsFalse()
	})
}

// notAsWanted tells what is not as users want it, or "".
func (s *steady) notAsWanted() string {
	for _, service := range all[servingv1.Service](s.ground, services) {
		if c := service.Status.GetCondition(apis.ConditionReady); !c.IsTrue() || service.Status.ObservedGeneration != service.Generation {
			return fmt.Sprintf("Service %s is not Ready: %s %s", service.Name, c.GetReason(), c.GetMessage())
		}
		config := get[servingv1.Configuration](s.ground, configurations, service.Name)
		host := service.Name + ".ns.svc.cluster.local"
		if want, is := wantedRevisions(service, config, ""), s.routedTo(host); !slices.Equal(want, is) {
			return fmt.Sprintf("%s is answered by %v, not %v", host, is, want)
		}
		for _, t := range service.Spec.Traffic {
			if t.Tag == "" {
				continue
			}
			host := t.Tag + "-" + host
			if want, is := wantedRevisions(service, config, t.Tag), s.routedTo(host); !slices.Equal(want, is) {
				return fmt.Sprintf("%s is answered by %v, not %v", host, is, want)
			}
		}
	}
	if m := get[servingv1beta1.DomainMapping](s.ground, domainMappings, mapped); m != nil && !s.mappingWanted(m) {
		c := m.Status.GetCondition(apis.ConditionReady)
		return fmt.Sprintf("the DomainMapping is not Ready: %s %s", c.GetReason(), c.GetMessage())
	}
	return ""
}

// wantedRevisions are those that a tag, or "", leads to.
func wantedRevisions(service *servingv1.Service, config *servingv1.Configuration, tag string) (out []string) {
	for _, t := range service.Spec.Traffic {
		if tag == "" && ptr.Deref(t.Percent, 0) > 0 || tag != "" && t.Tag == tag {
			rev := t.RevisionName
			if rev == "" {
				rev = config.Status.LatestReadyRevisionName
			}
			out = append(out, rev)
		}
	}
	if len(service.Spec.Traffic) == 0 {
		out = append(out, config.Status.LatestReadyRevisionName)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (s *steady) state() string {
	var out strings.Builder
	for _, r := range all[servingv1.Route](s.ground, routesResource) {
		fmt.Fprintf(&out, "route %s wants %s has %s\n", r.Name, told(r.Spec.Traffic), told(r.Status.Traffic))
		for _, c := range r.Status.Conditions {
			fmt.Fprintf(&out, "  %s=%s %s %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	if m := get[servingv1beta1.DomainMapping](s.ground, domainMappings, mapped); m != nil {
		fmt.Fprintf(&out, "mapping to %s: %+v\n", m.Spec.Ref.Name, m.Status.GetCondition(apis.ConditionReady))
	}
	for _, r := range all[servingv1.Revision](s.ground, revisions) {
		fmt.Fprintf(&out, "revision %s %s parked=%q\n", r.Name, r.RoutingState(), r.Annotations[names.ParkedAnnotation])
		for _, c := range r.Status.Conditions {
			if c.Status != corev1.ConditionTrue {
				fmt.Fprintf(&out, "  %s=%s %s %s\n", c.Type, c.Status, c.Reason, c.Message)
			}
		}
	}
	fmt.Fprint(&out, strings.Join(s.store.Names("ns"), ", "))
	return out.String()
}
