package revision

import (
	"slices"
	"strings"
	"sync"
)

// Memory is that of the pods asleep. It has a price, which those pay that sleep because it is worth
// it. Those that a number, a schedule or scale-buffer asks for do not. They have as much memory
// again: each namespace that asks has an equal share of that, and what one does not need is divided
// among the others.
type Memory struct {
	mutex  sync.Mutex
	price  float64
	asks   map[string]ask     // by revision
	sums   map[string]float64 // MiB that each namespace asks for
	level  float64            // MiB that a namespace may have, if divided
	parted bool
}

// Charge sets the price, 1 while there is enough. It rises until those whose memory is worth least
// are gone.
func (m *Memory) Charge(price float64) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.price = price
}

// Price returns the price, at least 1.
func (m *Memory) Price() float64 {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return max(m.price, 1)
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
func (m *Memory) Ask(revision string, pods int32, each float64) (granted int32) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	namespace := namespaceOf(revision)
	m.leave(revision)
	if pods <= 0 {
		return 0
	}
	if m.asks == nil {
		m.asks, m.sums = map[string]ask{}, map[string]float64{}
	}
	a := ask{pods: pods, granted: pods, each: max(each, 1)}
	m.sums[namespace] += float64(pods) * a.each
	if sum := m.sums[namespace]; m.parted && sum > m.level {
		a.granted = int32(float64(pods) * m.level / sum)
	}
	m.asks[revision] = a
	return a.granted
}

// Leave ends what a revision asked for.
func (m *Memory) Leave(revision string) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.leave(revision)
}

func (m *Memory) leave(revision string) {
	a, ok := m.asks[revision]
	if !ok {
		return
	}
	delete(m.asks, revision)
	namespace := namespaceOf(revision)
	if m.sums[namespace] -= float64(a.pods) * a.each; m.sums[namespace] < 1 {
		delete(m.sums, namespace)
	}
}

// Granted returns how many pods of a revision sleep without paying.
func (m *Memory) Granted(revision string) int32 {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.asks[revision].granted
}

// Asked returns how much memory is asked for, in MiB.
func (m *Memory) Asked() (mib float64) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, sum := range m.sums {
		mib += sum
	}
	return mib
}

// Divide divides mib MiB among the namespaces by what they ask for now.
func (m *Memory) Divide(mib float64) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	var sums []float64
	for _, sum := range m.sums {
		sums = append(sums, sum)
	}
	m.level, m.parted = level(sums, mib), true
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
