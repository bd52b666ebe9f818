package revision

import (
	"slices"
	"strings"
)

// shares divides the memory of the pods asleep that do not pay its price: those that a number, a
// schedule or scale-buffer asks for. Each namespace that asks has an equal share, and what one does
// not need is divided among the others.
type shares struct {
	asks   map[string]ask     // by revision
	sums   map[string]float64 // MiB that each namespace asks for
	level  float64            // MiB that a namespace may have, if divided
	parted bool
}

type ask struct {
	pods, granted int32
	each          float64
}

func namespaceOf(revision string) string {
	namespace, _, _ := strings.Cut(revision, "/")
	return namespace
}

// Ask asks for pods of a revision ("namespace/name") that sleep without paying, with so many MiB
// each, and returns how many its namespace's share has room for. It replaces what the revision
// asked for before.
func (b *Budget) Ask(revision string, pods int32, each float64) (granted int32) {
	if b == nil {
		return pods
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	s, namespace := &b.shares, namespaceOf(revision)
	s.leave(revision)
	if pods <= 0 {
		return 0
	}
	if s.asks == nil {
		s.asks, s.sums = map[string]ask{}, map[string]float64{}
	}
	a := ask{pods: pods, granted: pods, each: max(each, 1)}
	s.sums[namespace] += float64(pods) * a.each
	if sum := s.sums[namespace]; s.parted && sum > s.level {
		a.granted = int32(float64(pods) * s.level / sum)
	}
	s.asks[revision] = a
	return a.granted
}

// Leave ends what a revision asked for.
func (b *Budget) Leave(revision string) {
	if b == nil {
		return
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.shares.leave(revision)
}

func (s *shares) leave(revision string) {
	a, ok := s.asks[revision]
	if !ok {
		return
	}
	delete(s.asks, revision)
	namespace := namespaceOf(revision)
	if s.sums[namespace] -= float64(a.pods) * a.each; s.sums[namespace] < 1 {
		delete(s.sums, namespace)
	}
}

// Granted returns how many pods of a revision sleep without paying.
func (b *Budget) Granted(revision string) int32 {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.asks[revision].granted
}

// Asked returns how much memory is asked for, in MiB.
func (b *Budget) Asked() (mib float64) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for _, sum := range b.sums {
		mib += sum
	}
	return mib
}

// Divide divides mib MiB among the namespaces by what they ask for now.
func (b *Budget) Divide(mib float64) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	var sums []float64
	for _, sum := range b.sums {
		sums = append(sums, sum)
	}
	b.level, b.parted = level(sums, mib), true
}

// level is the highest bound for which all sums, each cut down to it, are no more than mib. If they
// are less without a bound, it is what the largest of them could be.
func level(sums []float64, mib float64) float64 {
	slices.Sort(sums)
	largest := 0.0
	for i, sum := range sums {
		if share := mib / float64(len(sums)-i); sum > share {
			return share
		}
		mib, largest = mib-sum, sum
	}
	return mib + largest
}
