package mailbox

import (
	"sync"
	"testing"
)

func TestTheLatestValueWins(t *testing.T) {
	m := New[int]()
	m.Put(1)
	m.Put(2)
	<-m.Ready()
	if value, ok := m.Take(); !ok || value != 2 {
		t.Fatalf("took %d, %v; want 2", value, ok)
	}
	if _, ok := m.Take(); ok {
		t.Fatal("an empty mailbox gave a value")
	}
	select {
	case <-m.Ready():
		t.Fatal("an empty mailbox said that it was ready")
	default:
	}
}

func TestAnUpdateMergesWithWhatNobodyTook(t *testing.T) {
	m := New[[]string]()
	add := func(word string) {
		m.Update(func(held []string, _ bool) []string { return append(held, word) })
	}
	add("a")
	add("b")
	if words, _ := m.Take(); len(words) != 2 {
		t.Fatalf("took %v, want both words", words)
	}
	add("c")
	if words, _ := m.Take(); len(words) != 1 {
		t.Fatalf("took %v, want only the word since the last Take", words)
	}
}

func TestNoValueIsMissedAndNoSenderBlocks(t *testing.T) {
	const senders, each = 8, 1000
	m := New[int]()
	var group sync.WaitGroup
	for range senders {
		group.Go(func() {
			for range each {
				m.Update(func(sum int, _ bool) int { return sum + 1 })
			}
		})
	}
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	total := 0
	for running := true; running; {
		select {
		case <-m.Ready():
		case <-done:
			running = false
		}
		sum, _ := m.Take()
		total += sum
	}
	if total != senders*each {
		t.Fatalf("saw %d updates, want %d", total, senders*each)
	}
}
