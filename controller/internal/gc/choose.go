package gc

import (
	"cmp"
	"slices"
	"time"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// choose returns the revisions of a Configuration to delete, oldest first, and how long the answer
// holds. Active revisions are not counted:
//
//	all limits disabled, or non-active <= min      nothing
//	older than every enabled retention time        deleted, oldest first, while more than min are left
//	still more than max are left                   deleted, oldest first, down to max
//
// The age of a revision counts from when a Route last led to it, or from its creation.
func choose(config *servingv1.Configuration, revisions []*servingv1.Revision, limits settings.GC, now time.Time) (doomed []*servingv1.Revision, next time.Duration) {
	next = interval
	if limits.RetainSinceCreateTime == nil && limits.RetainSinceLastActiveTime == nil && limits.MaxNonActiveRevisions == nil {
		return nil, next
	}
	var idle []*servingv1.Revision
	for _, rev := range revisions {
		if !active(rev, config) {
			idle = append(idle, rev)
		}
	}
	least := int(limits.MinNonActiveRevisions)
	if len(idle) <= least {
		return nil, next
	}
	slices.SortStableFunc(idle, func(a, b *servingv1.Revision) int {
		return cmp.Or(lastActive(a).Compare(lastActive(b)), cmp.Compare(a.Name, b.Name))
	})
	var kept []*servingv1.Revision
	for i, rev := range idle {
		left, stale := len(idle)-i+len(kept), stale(rev, limits)
		if left > least && !stale.IsZero() && !now.Before(stale) {
			doomed = append(doomed, rev)
			continue
		}
		kept = append(kept, rev)
		if wait := stale.Sub(now); wait > 0 {
			next = min(next, wait)
		}
	}
	if limits.MaxNonActiveRevisions != nil {
		for most := int(*limits.MaxNonActiveRevisions); len(kept) > most; kept = kept[1:] {
			doomed = append(doomed, kept[0])
		}
	}
	return doomed, next
}

// active revisions are never deleted: a Route leads to them, or no Route has led to them yet, or
// they are the latest created or ready one, or the user protects them.
func active(rev *servingv1.Revision, config *servingv1.Configuration) bool {
	return rev.Labels[names.RoutingStateLabel] != string(names.RoutingReserve) ||
		rev.Name == config.Status.LatestReadyRevisionName || rev.Name == config.Status.LatestCreatedRevisionName ||
		rev.Annotations[names.NoGCAnnotation] == "true" || !rev.DeletionTimestamp.IsZero()
}

// stale returns when a revision is older than the enabled retention times, zero for never.
func stale(rev *servingv1.Revision, limits settings.GC) (at time.Time) {
	if d := limits.RetainSinceCreateTime; d != nil {
		at = rev.CreationTimestamp.Add(*d)
	}
	if d := limits.RetainSinceLastActiveTime; d != nil {
		if active := lastActive(rev).Add(*d); active.After(at) {
			at = active
		}
	}
	return at
}

func lastActive(rev *servingv1.Revision) time.Time {
	if t, err := time.Parse(time.RFC3339, rev.Annotations[names.RoutingStateModifiedAnnotation]); err == nil {
		return t
	}
	return rev.CreationTimestamp.Time
}
