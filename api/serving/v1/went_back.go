package v1

import (
	"slices"
	"strconv"

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

// LastGood returns to which Revision of the same Configuration the requests of one go that went
// back: the newest older one that did not and serves already, or else the newest that could. It is
// nil if there is none.
func (r *Route) LastGood(latest *Revision, all []*Revision) (best *Revision) {
	for _, one := range all {
		serves := r.Serves(one.Name)
		if one.generation() >= latest.generation() || one.WentBack() != "" || !one.IsReady() && !serves {
			continue
		}
		if better := best == nil || serves && !r.Serves(best.Name) || serves == r.Serves(best.Name) && best.generation() < one.generation(); better {
			best = one
		}
	}
	return best
}
