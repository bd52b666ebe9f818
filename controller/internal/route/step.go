package route

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/kmeta"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/ingress/ready"
	"ebb.dev/ebb/ingress/resting"
	"ebb.dev/ebb/settings"
)

// This file brings the targets of a Route from rest to HTTPRoutes of their own and back, by the
// steps of package resting. All go together: the next question waits for the answers about each.

// stepAgain is when the next step is taken. What a step has written comes back from the API server
// at once; nothing waits for a cache.
const stepAgain = 20 * time.Millisecond

// part is a target that is between, or may be, as the API server has it.
type part struct {
	target plan.Target
	want   []*gatewayv1.HTTPRoute          // as they are to be, by the plan that activators follow
	have   map[string]*gatewayv1.HTTPRoute // by name
	bridge *gatewayv1.HTTPRoute            // nil if there is none
	seen   resting.Seen
}

// parts are all targets that activators were told of, and what is there beside.
type parts struct {
	all []*part
	// routes and bridges are for hosts that the Route does not have any more.
	routes, bridges []*gatewayv1.HTTPRoute
}

// own reports whether every target has its HTTPRoutes, and no bridge.
func (p parts) own() bool { return p.are(resting.Own) }

func (p parts) are(state resting.State) bool {
	return !slices.ContainsFunc(p.all, func(one *part) bool { return one.seen.State() != state })
}

// live reads from the API server what there is of the targets.
func (t *turn) live(ctx context.Context) (out parts, err error) {
	told := t.planTold()
	have, err := t.gateways.GatewayV1().HTTPRoutes(t.route.Namespace).List(ctx, metav1.ListOptions{LabelSelector: names.RouteLabel + "=" + t.route.Name})
	if err != nil {
		return out, fmt.Errorf("list the HTTPRoutes of Route %s: %w", t.key, err)
	}
	bridges, err := t.gateways.GatewayV1().HTTPRoutes(t.system).List(ctx, metav1.ListOptions{LabelSelector: names.BridgeLabel + "=" + string(t.route.UID)})
	if err != nil {
		return out, fmt.Errorf("list the bridges of Route %s: %w", t.key, err)
	}
	annotations := inherited(t.route.Annotations)
	annotations[names.RolloutAnnotation] = t.state.String()
	all := gatewayapi.HTTPRoutes(told, t.s.Gateway, gatewayapi.Meta{Labels: t.route.Labels, Annotations: annotations, Owner: *kmeta.NewControllerRef(t.route)})
	for _, target := range told.Targets {
		one := &part{target: target, have: map[string]*gatewayv1.HTTPRoute{}}
		for _, h := range all {
			if isFor(h, &target) {
				one.want = append(one.want, h)
			}
		}
		out.all = append(out.all, one)
	}
	for i := range have.Items {
		h := &have.Items[i]
		if !metav1.IsControlledBy(h, t.route) {
			continue
		}
		if at := slices.IndexFunc(out.all, func(one *part) bool { return isFor(h, &one.target) }); at >= 0 {
			out.all[at].have[h.Name] = h
		} else {
			out.routes = append(out.routes, h)
		}
	}
	for i := range bridges.Items {
		h := &bridges.Items[i]
		if at := slices.IndexFunc(out.all, func(one *part) bool { return t.bridgeName(&one.target) == h.Name }); at >= 0 {
			out.all[at].bridge = h
		} else {
			out.bridges = append(out.bridges, h)
		}
	}
	return out, t.look(ctx, told, out)
}

// look sets what is seen of each target.
func (t *turn) look(ctx context.Context, told *plan.Plan, out parts) (err error) {
	needs := false
	if t.want != resting.Rest {
		if needs, err = t.haveServices(ctx, t.route, told, t.s); err != nil {
			return err
		}
	}
	for _, one := range out.all {
		one.seen = resting.Seen{Want: t.want, Rules: gatewayapi.Rules(one.have, one.want), Told: true, Needs: needs}
		if b := one.bridge; b != nil {
			one.seen.Bridge = resting.Moved
			if len(b.Spec.Hostnames) > 0 && string(b.Spec.Hostnames[0]) == one.target.Hosts[0] {
				one.seen.Bridge = resting.Serving
			}
			// Another Gateway of a changed setting is told, too.
			parents := t.atGateways(one, nil).Spec.ParentRefs
			one.seen.Fresh = b.Annotations[names.BridgeAfterAnnotation] == after(one.have) && equality.Semantic.DeepEqual(b.Spec.ParentRefs, parents)
		}
	}
	return nil
}

// step takes the next step of each target.
func (t *turn) step(ctx context.Context) (again time.Duration, done bool, err error) {
	if t.told == nil || t.changed {
		if t.want == resting.Apart { // somebody has taken the plan away
			if c := t.changedTo(); c != nil {
				t.write(c)
			}
		}
		t.waits("the activators have just been told")
		return stepAgain, false, nil // what counts is what stands in the status
	}
	now, err := t.live(ctx)
	if err != nil {
		return 0, false, err
	}
	if t.want == resting.Rest {
		followed, _ := t.followed()
		for _, one := range now.all {
			one.seen.Followed, one.seen.Common = followed, t.rests.seen.Covers(one.target.Visibility, gatewayapi.Name(one.target))
		}
	}
	if t.want == resting.Rest && now.are(resting.Resting) || t.want != resting.Rest && now.own() {
		return stepAgain, false, t.arrive(ctx, now)
	}
	if again, all, err := t.services(ctx, now); err != nil || all {
		return again, false, err
	}
	if !t.rests.begin(t.course) {
		t.waits("other Routes go first")
		return time.Second, false, nil
	}
	if wrote, err := t.act(ctx, now); err != nil || wrote {
		t.waits("they have just been told")
		return stepAgain, false, err
	}
	questions := t.questions(now)
	if len(questions) == 0 {
		t.waits("another step comes first")
		return time.Second, false, nil
	}
	answered, why := t.prober.Check(t.key, ready.Want{Hash: "a switch", Probes: questions})
	if !answered {
		t.waits(why)
		return 0, false, nil // the prober wakes the Route
	}
	for _, one := range now.all {
		one.seen.Answered = resting.Next(one.seen).Ask
	}
	// What was answered stays so if a write is refused. After a write there is another question:
	// whatever follows one has a new bridge first.
	_, err = t.act(ctx, now)
	return stepAgain, false, err
}

// services makes the public Services that the next steps need, and reports whether all targets wait
// for them. Gateways are told nothing by this, so it takes no place of those that are between.
func (t *turn) services(ctx context.Context, now parts) (again time.Duration, all bool, err error) {
	n := 0
	for _, one := range now.all {
		if resting.Next(one.seen).Do == resting.Need {
			n++
		}
	}
	if n == 0 {
		return 0, false, nil
	}
	revision, lacks, err := t.makeServices(ctx, t.route, t.planTold(), t.s) // all targets are of one plan
	switch {
	case err != nil || lacks == nothing:
		return stepAgain, n == len(now.all), err
	case t.resources(t.route.Namespace, revision).GetReason() == autoscalingv1alpha1.ReasonFailedCreate:
		t.route.Status.MarkIngressNotReady(reasonUninitialized, t.whyMissing(t.route.Namespace, revision, lacks))
	default:
		t.waits(t.whyMissing(t.route.Namespace, revision, lacks))
	}
	return time.Second, n == len(now.all), nil
}

// waits says in the status that gateways do not follow the plan yet, unless they did when the
// switch began and nothing has changed since. Where activators get all requests, they decide.
func (t *turn) waits(why string) {
	if !t.changed && t.route.Status.GetCondition(servingv1.RouteConditionIngressReady).IsTrue() {
		return
	}
	t.route.Status.MarkIngressNotReady(reasonUninitialized, waiting(why))
}

// arrive ends a switch: what is left of hosts that the Route does not have any more is deleted.
func (t *turn) arrive(ctx context.Context, now parts) error {
	if t.want == resting.Rest {
		for _, h := range now.routes {
			if err := t.remove(ctx, h); err != nil {
				return err
			}
		}
	}
	for _, h := range now.bridges {
		if err := t.remove(ctx, h); err != nil {
			return err
		}
	}
	t.prober.Forget(t.key) // it was asked about bridges
	t.rests.end(t.course)
	return nil
}

// act does what the next steps ask for. It reports whether it has written something.
func (t *turn) act(ctx context.Context, now parts) (wrote bool, err error) {
	for _, one := range now.all {
		switch next := resting.Next(one.seen); next.Do {
		case resting.Wait, resting.Need, resting.Tell, resting.Untell: // all are told, and who is apart is not told later
			continue
		default:
			wrote = true
			if err := t.do(ctx, one, next.Do); err != nil {
				return wrote, err
			}
		}
	}
	return wrote, nil
}

// questions returns the probes that answer what the next steps ask.
func (t *turn) questions(now parts) (out []ready.Probe) {
	for _, one := range now.all {
		for _, on := range t.gatewaysOf(one) {
			probe := ready.Probe{Service: on.Service, Port: gateway.HTTP, Host: gatewayapi.Name(one.target), Hash: gatewayapi.HashOf(one.bridge)}
			switch resting.Next(one.seen).Ask {
			case resting.BridgeAnswers:
				out = append(out, probe)
			case resting.SparesAnswer:
				out = append(out, probe)
				_, values := gatewayapi.Spares(one.unfilled())
				for _, value := range values[gatewayapi.Name(one.target)] {
					probe.Hash, probe.Backend = gatewayapi.HashOf(one.want[0]), value
					out = append(out, probe)
				}
			case resting.BridgeGone:
				probe.Host = string(one.bridge.Spec.Hostnames[0])
				out = append(out, probe)
			}
		}
	}
	return out
}

func (t *turn) gatewaysOf(one *part) []settings.GatewayRef {
	if one.target.Visibility == plan.ClusterLocal {
		return t.s.Gateway.Local
	}
	return t.s.Gateway.External
}

// unfilled returns those of the wanted HTTPRoutes that have no rules for requests yet.
func (p *part) unfilled() (out []*gatewayv1.HTTPRoute) {
	for _, w := range p.want {
		if !gatewayapi.Full(p.have[w.Name]) {
			out = append(out, w)
		}
	}
	return out
}

// after says which HTTPRoutes there are, and how often each was written.
func after(have map[string]*gatewayv1.HTTPRoute) string {
	var all []string
	for _, h := range have {
		all = append(all, fmt.Sprintf("%s/%d", h.UID, h.Generation))
	}
	slices.Sort(all)
	return plan.ShortHash(strings.Join(all, " "))
}
