package view

import (
	"cmp"
	"context"
	"encoding/json"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"ebb.dev/ebb/api/view/v1alpha1"
)

const (
	// fresh is for how long a board counts as the present.
	fresh = time.Second
	// gone is for how long a deletion is told of.
	gone = time.Minute
)

// entry is the newest short view of a Service.
type entry struct {
	namespace, name string
	text            json.RawMessage
	hash            uint64
	// added and changed are the rounds in which the Service came and its view last changed.
	added, changed uint64
	// deleted is when it was no longer there; zero while it is.
	deleted time.Time
}

// board has the short views of all Services. All readers share it, so that a thousand of them cost
// one round a second.
type board struct {
	replicas *Replicas
	seed     maphash.Seed

	mutex   sync.Mutex // held for a round, which takes at most askTimeout
	at      time.Time
	round   uint64
	entries []*entry // by namespace and name; replaced, never changed
	warning error    // replicas that did not answer
}

// now is the present state of the board, made anew if it is old.
func (b *board) now(ctx context.Context) (entries []*entry, round uint64, warning error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if time.Since(b.at) < fresh {
		return b.entries, b.round, b.warning
	}
	parts, err := b.replicas.parts(context.WithoutCancel(ctx), scope{})
	b.at, b.warning = time.Now(), err
	b.round++
	known := make(map[[2]string]*entry, len(b.entries))
	for _, e := range b.entries {
		known[[2]string{e.namespace, e.name}] = e
	}
	next := make([]*entry, 0, len(b.entries))
	for _, service := range group(parts) {
		v := merge(service, false, b.at)
		key := [2]string{v.Namespace, v.Name}
		next = append(next, b.entry(known[key], v))
		delete(known, key)
	}
	for _, e := range known {
		if e = b.without(e, err != nil); e != nil {
			next = append(next, e)
		}
	}
	sortEntries(next)
	b.entries = next
	return b.entries, b.round, b.warning
}

func (b *board) entry(before *entry, v v1alpha1.ServiceView) *entry {
	text, _ := json.Marshal(still(v)) // numbers and texts alone
	hash := maphash.Bytes(b.seed, text)
	if before != nil && before.deleted.IsZero() && before.hash == hash {
		return before
	}
	e := &entry{namespace: v.Namespace, name: v.Name, hash: hash, added: b.round, changed: b.round}
	if before != nil && before.deleted.IsZero() {
		e.added = before.added
	}
	e.text, _ = json.Marshal(v)
	return e
}

// without is the entry of a Service that nobody knows now, nil if it is to be forgotten. If a
// replica did not answer, it may be one that that one decides for.
func (b *board) without(e *entry, unsure bool) *entry {
	switch {
	case !e.deleted.IsZero() && b.at.Sub(e.deleted) > gone:
		return nil
	case !e.deleted.IsZero() || unsure:
		return e
	}
	next := *e
	next.deleted, next.changed = b.at, b.round
	return &next
}

func sortEntries(all []*entry) {
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
}
