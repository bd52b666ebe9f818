package process

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

var (
	steadyFor  = flag.Duration("steady-for", 0, "how long TestWhatServesGoesOnServing plays")
	steadySeed = flag.Uint64("steady-seed", 0, "the one sequence to play; 0 plays new ones")
)

// A model test: users change Services, and things go wrong, in random order, in virtual time. Each
// host that was Ready once is asked every five seconds. It goes on serving, unless the user has
// taken it away. When the mishaps are over, everything is Ready again, and what is not Ready for
// longer than a minute meanwhile says why. `-steady-seed` plays a sequence again.
func TestWhatServesGoesOnServing(t *testing.T) {
	if *steadySeed != 0 {
		t.Run(fmt.Sprint("seed ", *steadySeed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { newSteady(t, *steadySeed).play() }) })
		return
	}
	if *steadyFor == 0 {
		t.Skip("by hand: -steady-for 1m, or -steady-seed N")
	}
	began, first := time.Now(), uint64(time.Now().UnixNano()/1e6)
	n := uint64(0)
	for ; time.Since(began) < *steadyFor && !t.Failed(); n++ {
		t.Run(fmt.Sprint("seed ", first+n), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { newSteady(t, first+n).play() }) })
	}
	t.Logf("%d sequences, from seed %d on", n, first)
}

const (
	step   = 5 * time.Second
	public = "knative-serving/ebb-external"
	local  = "knative-serving/ebb-local"
)

// steady is one sequence.
type steady struct {
	*ground
	rand *rand.Rand
	log  []string
	// The hosts that served, by their Service.
	served map[string]string
	tries  int // images so far
	// Damage is what somebody did to what serves itself: until then hosts are not asked.
	damage time.Time
	// What is wrong now, by its words in conditions, and how to end it.
	wrong map[string]func()
	since map[string]time.Time // when a Service was Ready last
	moved time.Time            // when something went wrong or was over last
}

func newSteady(t *testing.T, seed uint64) *steady {
	s := &steady{ground: newGround(t), rand: rand.New(rand.NewPCG(seed, 1)), served: map[string]string{}, wrong: map[string]func(){}, since: map[string]time.Time{}}
	s.start()
	return s
}

func (s *steady) note(format string, args ...any) {
	s.log = append(s.log, time.Now().Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

func (s *steady) fail(format string, args ...any) {
	s.note(format, args...)
	s.t.Fatalf("%s", strings.Join(s.log, "\n"))
}

// play is three acts, each with changes and mishaps for a quarter of an hour, and then quiet.
func (s *steady) play() {
	defer func() { s.stop() }()
	for _, name := range []string{"a", "b"} {
		s.update(name)
	}
	s.pass(2 * time.Minute)
	for range 3 {
		for range 12 {
			s.act()
			s.pass(time.Duration(5+s.rand.IntN(150)) * time.Second)
		}
		for _, what := range slices.Sorted(maps.Keys(s.wrong)) {
			s.end(what)
		}
		s.pass(4 * time.Minute)
		s.atRest()
	}
}

func (s *steady) act() {
	name := []string{"a", "b"}[s.rand.IntN(2)]
	acts := []func(string){s.update, s.update, s.tag, s.untag, s.split, s.rollBack, s.latest, s.hide,
		s.take, s.quota, s.quota, s.evict, s.gateways, s.restart, s.breakChild}
	acts[s.rand.IntN(len(acts))](name)
	for _, what := range slices.Sorted(maps.Keys(s.wrong)) {
		if s.rand.IntN(4) == 0 {
			s.end(what)
		}
	}
}

// begin notes that something is wrong from now on.
func (s *steady) begin(words string, end func()) {
	s.note("wrong: %s", words)
	s.wrong[words], s.moved = end, time.Now()
}

func (s *steady) end(words string) {
	s.note("over: %s", words)
	s.wrong[words]()
	delete(s.wrong, words)
	s.moved = time.Now()
	if s.damage.After(time.Now()) {
		s.damage = time.Now().Add(90 * time.Second) // a write that was refused is tried again within a minute
	}
}

// pass lets time pass.
func (s *steady) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(step)
		synctest.Wait()
		s.run()
		synctest.Wait()
		s.check()
	}
}

// edit changes the spec of a Service as a user does.
func (s *steady) edit(name string, change func(*servingv1.Service)) {
	service := get[servingv1.Service](s.ground, services, name)
	if service == nil {
		service = &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	}
	change(service)
	s.put(services, "serving.knative.dev/v1", "Service", service)
}

func (s *steady) update(name string) {
	s.tries++
	s.note("user: %s runs image %d", name, s.tries)
	s.edit(name, func(v *servingv1.Service) {
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
func (s *steady) tag(name string) {
	rev := s.revision(name)
	if rev == "" {
		return
	}
	tag := []string{"x", "y"}[s.rand.IntN(2)]
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
		s.notServed(func(host string) bool { return s.served[host] == name && strings.HasSuffix(host, ".example.com") })
	})
}

func (s *steady) notServed(which func(host string) bool) {
	maps.DeleteFunc(s.served, func(host, _ string) bool { return which(host) })
}

// take makes a Service of somebody else with the name that a tag needs.
func (s *steady) take(name string) {
	other, words := "z-"+name, "do not own"
	if s.wrong[words] != nil || s.store.Get(coreServices, "ns", other) != nil {
		return
	}
	rev := s.revision(name)
	if rev == "" {
		return
	}
	s.put(coreServices, "v1", "Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: other}})
	s.begin(words, func() { s.store.Remove(coreServices, "ns", other) })
	s.edit(name, func(v *servingv1.Service) {
		if len(v.Spec.Traffic) == 0 {
			v.Spec.Traffic = []servingv1.TrafficTarget{toLatest}
		}
		v.Spec.Traffic = append(slices.DeleteFunc(v.Spec.Traffic, func(t servingv1.TrafficTarget) bool { return t.Tag == "z" }),
			servingv1.TrafficTarget{Tag: "z", RevisionName: rev})
	})
	s.update(name)
}

func (s *steady) quota(string) {
	if words := "the quota is full"; s.wrong[words] == nil {
		s.refused = []string{"services", "deployments", "httproutes", "podautoscalers", "revisions", "endpointslices"}[s.rand.IntN(6)]
		s.note("writes of %s are refused", s.refused)
		s.begin(words, func() { s.refused = "" })
	}
}

// evict has the node evict every pod of a Service: the objects stay.
func (s *steady) evict(name string) {
	for _, pod := range all[corev1.Pod](s.ground, pods) {
		if pod.Labels[names.ServiceLabel] == name {
			s.note("pod %s is evicted", pod.Name)
			pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory."}
			s.put(pods, "v1", "Pod", pod)
		}
	}
}

// gateways has config-gateway name Gateways that are not there.
func (s *steady) gateways(string) {
	if words := "config-gateway"; s.wrong[words] == nil {
		s.set("edge")
		s.begin(words, func() { s.set("") })
	}
}

func (s *steady) restart(string) {
	s.note("the controller is restarted")
	s.start()
}

// breakChild deletes an object that serves. Requests may fail until it is made again.
func (s *steady) breakChild(string) {
	children := []schema.GroupResource{httpRoutes, coreServices, endpointSlices, autoscalers, deployments}
	resource := children[s.rand.IntN(len(children))]
	var list []string
	for name := range s.store.Versions(resource, labels.Everything()) {
		if short, ours := strings.CutPrefix(name, "ns/"); ours && !strings.HasPrefix(short, "z-") {
			list = append(list, short)
		}
	}
	slices.Sort(list)
	if len(list) == 0 || len(s.wrong) > 0 {
		return // what cannot be made again is not taken away
	}
	victim := list[s.rand.IntN(len(list))]
	s.note("somebody deletes %s %s", resource.Resource, victim)
	s.store.Remove(resource, "ns", victim)
	s.damage = time.Now().Add(90 * time.Second)
}

// check asks every host that served, and looks at what is not Ready for long.
func (s *steady) check() {
	for _, service := range all[servingv1.Service](s.ground, services) {
		condition := service.Status.GetCondition(apis.ConditionReady)
		if condition.IsTrue() && service.Status.ObservedGeneration == service.Generation {
			s.since[service.Name] = time.Now()
		}
		s.explained(service, condition)
	}
	for host, service := range s.served {
		if s.damage.After(time.Now()) {
			break
		}
		if a := s.ask(gatewayOf(host), host, ""); a.code != 200 {
			s.fail("FAIL: host %s answers %d: %s\n%s", host, a.code, a.why, s.state())
		} else if !slices.ContainsFunc(a.by, func(by string) bool { return strings.HasPrefix(by, service+"-") }) {
			s.fail("FAIL: host %s of %s is answered by %v", host, service, a.by)
		}
	}
	for _, route := range all[servingv1.Route](s.ground, routesResource) {
		if !route.IsReady() || s.damage.After(time.Now()) {
			continue
		}
		hosts := []string{route.Name + ".ns.svc.cluster.local", route.Status.URL.Host}
		for _, t := range route.Status.Traffic {
			if t.URL != nil {
				hosts = append(hosts, t.URL.Host)
			}
		}
		for _, host := range hosts {
			if a := s.ask(gatewayOf(host), host, ""); a.code == 200 && s.wanted(route.Name, host) {
				s.served[host] = route.Name
			}
		}
	}
}

// wanted: a status may lag behind the user, who has just taken a host away.
func (s *steady) wanted(name, host string) bool {
	service := get[servingv1.Service](s.ground, services, name)
	if service == nil || service.Status.ObservedGeneration != service.Generation || !service.Status.GetCondition(apis.ConditionReady).IsTrue() {
		return false
	}
	tag, _, tagged := strings.Cut(strings.SplitN(host, ".", 2)[0], "-")
	return !tagged || slices.ContainsFunc(service.Spec.Traffic, func(t servingv1.TrafficTarget) bool { return t.Tag == tag })
}

func gatewayOf(host string) string {
	if strings.HasSuffix(host, ".example.com") {
		return public
	}
	return local
}

// explained: what is not Ready for longer than a minute names one of the things that are wrong.
func (s *steady) explained(service *servingv1.Service, condition *apis.Condition) {
	if len(s.wrong) == 0 || condition.IsTrue() || time.Since(s.since[service.Name]) < 3*time.Minute || time.Since(s.moved) < 90*time.Second || s.damage.After(time.Now()) {
		return
	}
	text := fmt.Sprint(condition.GetReason(), " ", condition.GetMessage())
	for words := range s.wrong {
		if strings.Contains(text, words) {
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
	s.fail("FAIL: Service %s is not Ready for %s and says %q, while this is wrong: %v\n%s", service.Name,
		time.Since(s.since[service.Name]), text, slices.Sorted(maps.Keys(s.wrong)), s.state())
}

// atRest: nothing is wrong any more, so everything is as the users want it.
func (s *steady) atRest() {
	for _, service := range all[servingv1.Service](s.ground, services) {
		if c := service.Status.GetCondition(apis.ConditionReady); !c.IsTrue() || service.Status.ObservedGeneration != service.Generation {
			s.fail("FAIL: at rest, Service %s is not Ready: %+v\n%s", service.Name, c, s.state())
		}
	}
	synctest.Wait()
	s.store.Writes()
	s.pass(30 * time.Second)
	s.since = map[string]time.Time{"a": time.Now(), "b": time.Now()}
}

func (s *steady) state() string {
	var out strings.Builder
	for _, r := range all[servingv1.Route](s.ground, routesResource) {
		fmt.Fprintf(&out, "route %s wants %s has %s\n", r.Name, told(r.Spec.Traffic), told(r.Status.Traffic))
		for _, c := range r.Status.Conditions {
			fmt.Fprintf(&out, "  %s=%s %s %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
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
