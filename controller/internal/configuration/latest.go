package configuration

import (
	"cmp"
	"slices"

	"knative.dev/pkg/apis"

	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// latestReady returns the revision that "the latest" stands for in traffic.
//
//	                                             chosen
//	the created revision is named by the user
//	  and is Ready                               the created one, even if it is older: that is a rollback
//	a revision created after the present one,
//	  up to the Configuration's generation,
//	  is Ready                                   the newest of these
//	else                                         the present one, Ready or not
//
// Because of the last row, a revision that fails for a while (a node is lost, an image registry
// does not answer) is not replaced by an older one.
func latestReady(config *servingv1.Configuration, created *servingv1.Revision, all []*servingv1.Revision) string {
	present := config.Status.LatestReadyRevisionName
	if config.Spec.Template.Name != "" && created != nil && isReady(created) {
		return created.Name
	}
	from := int64(-1)
	for _, rev := range all {
		if rev.Name == present {
			from = generationOf(rev)
		}
	}
	var candidates []*servingv1.Revision
	for _, rev := range all {
		if g := generationOf(rev); g > from && g <= config.Generation && isReady(rev) && rev.DeletionTimestamp.IsZero() {
			candidates = append(candidates, rev)
		}
	}
	if len(candidates) == 0 {
		return present
	}
	return slices.MaxFunc(candidates, func(a, b *servingv1.Revision) int {
		return cmp.Or(cmp.Compare(generationOf(a), generationOf(b)), cmp.Compare(a.Name, b.Name))
	}).Name
}

func ready(rev *servingv1.Revision) *apis.Condition {
	return rev.Status.GetCondition(apis.ConditionReady)
}

// isReady reports whether the revision is Ready in its present generation. Right after a change of
// the spec, the conditions are those of the old one.
func isReady(rev *servingv1.Revision) bool {
	return ready(rev).IsTrue() && rev.Status.ObservedGeneration == rev.Generation
}
