package v1

import (
	"slices"
	"strconv"

	"k8s.io/utils/ptr"

	"ebb.dev/ebb/api/names"
)

// WentBack is why a Revision went back, "" if it did not.
func (r *Revision) WentBack() string { return r.Annotations[names.WentBackAnnotation] }

// generation is that of the Configuration of which a Revision was made; 0 if it does not say.
func (r *Revision) generation() int64 {
	n, err := strconv.ParseInt(r.Labels[names.ConfigurationGenerationLabel], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Serves reports whether requests go to the Revision already.
func (r *Route) Serves(revision string) bool {
	return slices.ContainsFunc(r.Status.Traffic, func(t TrafficTarget) bool { return t.RevisionName == revision })
}

// shares reports whether a Revision has a part of what a target that follows the latest one gets.
func (r *Route) shares(revision string) bool {
	return slices.ContainsFunc(r.Status.Traffic, func(t TrafficTarget) bool {
		return t.RevisionName == revision && ptr.Deref(t.LatestRevision, false)
	})
}

// LastGood returns to which Revision of the same Configuration the requests of one go that went
// back: the newest one that did not and shares them already, or else the newest older one that
// could. What a target names does not share them, such as an old Revision that is kept under a tag.
// One that shares them may be newer: who names Revisions in the template can return to an older
// one. It is nil if there is none.
func (r *Route) LastGood(latest *Revision, all []*Revision) (best *Revision) {
	for _, one := range all {
		shares := r.shares(one.Name)
		if one.Name == latest.Name || one.WentBack() != "" || !shares && (one.generation() >= latest.generation() || !one.IsReady()) {
			continue
		}
		if better := best == nil || shares && !r.shares(best.Name) || shares == r.shares(best.Name) && best.generation() < one.generation(); better {
			best = one
		}
	}
	return best
}
