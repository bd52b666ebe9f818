package gc

import (
	"cmp"
	"slices"
	"time"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// choose returns the revisions of a Configuration to delete, oldest first. Active revisions are not
// counted:
//
//	all limits disabled, or non-active <= min      nothing
//	older than every enabled retention time        deleted, oldest first, while more than min are left
//	still more than max are left                   deleted, oldest first, down to max
//
// The age of a revision counts from when a Route last led to it, or from its creation.
func choose(config *servingv1.Configuration, revisions []*servingv1.Revision, limits settings.GC, now time.Time) []*servingv1.Revision {
	if limits.RetainSinceCreateTime == nil && limits.RetainSinceLastActiveTime == nil && limits.MaxNonActiveRevisions == nil {
		return nil
	}
	var idle []*servingv1.Revision
	for _, rev := range revisions {
		if !active(rev, config) {
			idle = append(idle, rev)
		}
	}
	least := int(limits.MinNonActiveRevisions)
	if len(idle) <= least {
		return nil
	}
	slices.SortStableFunc(idle, func(a, b *servingv1.Revision) int {
		return cmp.Or(lastActive(a).Compare(lastActive(b)), cmp.Compare(a.Name, b.Name))
	})
	var doomed, kept []*servingv1.Revision
	for i, rev := range idle {
		left := len(idle) - i + len(kept)
		if left > least && stale(rev, limits, now) {
			doomed = append(doomed, rev)
		} else {
			kept = append(kept, rev)
		}
	}
	if limits.MaxNonActiveRevisions != nil {
		for most := int(*limits.MaxNonActiveRevisions); len(kept) > most; kept = kept[1:] {
			doomed = append(doomed, kept[0])
		}
	}
	return doomed
}

// active revisions are never deleted: a Route leads to them, or no Route has led to them yet, or
// they are the latest created or ready one, or the user protects them.
func active(rev *servingv1.Revision, config *servingv1.Configuration) bool {
	return rev.Labels[names.RoutingStateLabel] != string(names.RoutingReserve) ||
		rev.Name == config.Status.LatestReadyRevisionName || rev.Name == config.Status.LatestCreatedRevisionName ||
		rev.Annotations[names.NoGCAnnotation] == "true" || !rev.DeletionTimestamp.IsZero()
}

// stale reports whether a revision is older than the enabled retention times. Without any it is
// not.
func stale(rev *servingv1.Revision, limits settings.GC, now time.Time) bool {
	if limits.RetainSinceCreateTime == nil && limits.RetainSinceLastActiveTime == nil {
		return false
	}
	if d := limits.RetainSinceCreateTime; d != nil && now.Sub(rev.CreationTimestamp.Time) < *d {
		return false
	}
	if d := limits.RetainSinceLastActiveTime; d != nil && now.Sub(lastActive(rev)) < *d {
		return false
	}
	return true
}

func lastActive(rev *servingv1.Revision) time.Time {
	if t, err := time.Parse(time.RFC3339, rev.Annotations[names.RoutingStateModifiedAnnotation]); err == nil {
		return t
	}
	return rev.CreationTimestamp.Time
}
