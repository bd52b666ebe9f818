package loop

// dueHeap orders revisions by when they are due, in Unix nanoseconds. The times lie next to each
// other: with ten thousand revisions most comparisons would miss the CPU's cache otherwise.
type dueHeap []dueEntry

type dueEntry struct {
	at int64
	m  *member
}

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].m.heapIndex, h[j].m.heapIndex = i, j
}
func (h *dueHeap) Push(x any) {
	e := x.(dueEntry)
	e.m.heapIndex = len(*h)
	*h = append(*h, e)
}
func (h *dueHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = dueEntry{}
	*h = old[:len(old)-1]
	return e
}
