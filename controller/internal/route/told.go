package route

import (
	"maps"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/ingress/resting"
)

// changedTo returns what activators are to be told, nil if it is too long.
func (t *turn) changedTo() *plan.Compact {
	ranks := map[string]int{}
	for tag := range t.in.Targets {
		ranks[tag] = 0
	}
	for i := range t.p.Targets {
		if target := &t.p.Targets[i]; target.Visibility == plan.External && !plan.Gives(t.s, t.clusterDomain, target.Hosts[0], t.route.Namespace) {
			ranks[target.Tag] = 1
		}
	}
	c, err := t.in.Compact(t.p, string(t.route.UID), ranks)
	if err != nil {
		return nil
	}
	return c
}

// tell writes into the status what activators are to do, if that is another thing than before. What
// a Route that is to be Apart has told stays until its HTTPRoutes serve.
func (t *turn) tell() {
	if t.want == resting.Apart {
		return
	}
	next := t.changedTo()
	if t.told != nil {
		next.At = t.told.At
		if next.String() == t.told.String() {
			return
		}
	}
	t.write(next)
}

// write puts a plan into the status. Its time is new, and so is what activators answer.
func (t *turn) write(c *plan.Compact) {
	c.At = t.now().UnixMilli()
	if t.told != nil {
		c.At = max(c.At, t.told.At+1)
	}
	annotations := maps.Clone(t.route.Status.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[names.PlanAnnotation] = c.String()
	t.route.Status.Annotations, t.changed = annotations, true
}

// untell takes the plan out of the status. The rollout's state is then in the HTTPRoutes alone.
func (t *turn) untell() {
	if t.route.Status.Annotations[names.PlanAnnotation] == "" && t.route.Status.Annotations[names.RolloutAnnotation] == "" {
		return
	}
	annotations := maps.Clone(t.route.Status.Annotations)
	delete(annotations, names.PlanAnnotation)
	delete(annotations, names.RolloutAnnotation)
	if len(annotations) == 0 {
		annotations = nil
	}
	t.route.Status.Annotations = annotations
	t.rests.activators.Forget(t.key)
}

// targetsTold returns the targets that activators know, as they are there: without certificates and
// what else keeps hosts from resting. So both ways of a request are by one plan.
func (t *turn) targetsTold() []plan.Target {
	p := t.planTold()
	if p == nil {
		return nil
	}
	return p.Targets
}

// planTold returns the plan that activators follow, with those targets that the Route still has.
func (t *turn) planTold() *plan.Plan {
	if t.told == nil {
		return nil
	}
	p, err := t.told.Plan(t.route.Namespace, t.route.Name, t.clusterDomain)
	if err != nil {
		return nil // Told has read it, and Make has made it
	}
	has := map[string]bool{}
	for i := range t.p.Targets {
		has[string(t.p.Targets[i].Visibility)+" "+t.p.Targets[i].Hosts[0]] = true
	}
	kept := *p
	kept.Targets = nil
	for i := range p.Targets {
		if has[string(p.Targets[i].Visibility)+" "+p.Targets[i].Hosts[0]] {
			kept.Targets = append(kept.Targets, p.Targets[i])
		}
	}
	return &kept
}
