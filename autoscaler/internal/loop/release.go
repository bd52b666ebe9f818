package loop

import (
	"time"

	"ebb.dev/ebb/autoscaler/revision"
)

// releasePeriod is how soon pods are told again that did not wake.
const releasePeriod = 30 * time.Second

// release wakes the pods of a revision that another autoscaler scales now, and gives those that
// woke what they asked for.
func (s *shard) release(key Key, now time.Time) {
	o := &s.engine.options
	if o.Given == nil || o.Tender == nil || !o.Given(key) {
		delete(s.given, key)
		return
	}
	c := o.Pods.Count(key)
	orders := revision.PodOrders{Wake: c.Asleep, Look: c.Asleep == 0 && c.Lapsed > 0, Grow: c.Shrunk > 0}
	if orders == (revision.PodOrders{}) {
		delete(s.given, key)
		return
	}
	o.Tender.Tend(key, orders, func() string { return "another autoscaler scales the revision, and pods do not sleep for it" })
	if again, ok := s.given[key]; !ok || !now.Before(again) {
		s.given[key] = now.Add(releasePeriod)
		time.AfterFunc(releasePeriod, func() { s.touch(key) })
	}
}
