package hold

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

// fill takes bytes piece by piece until the share has no room, and returns how many it got.
func fill(t *testing.T, s *Share, piece int64) (n int64) {
	t.Helper()
	for {
		err := s.Take(piece)
		if err == nil {
			n += piece
			continue
		}
		var full *FullError
		if !errors.As(err, &full) {
			t.Fatal(err)
		}
		return n
	}
}

// A namespace that floods leaves room for the others, however many revisions it has.
func TestANamespaceCannotUseUpTheMemory(t *testing.T) {
	const total, piece = 8000, 10 // 7000 for requests, 1000 for buffers
	for _, test := range []struct {
		name   string
		bounds Bounds
		floods []string // the namespace of each revision that floods, one after the other
		most   []int64  // what each gets
	}{
		{"one revision", Bounds{TotalBytes: total}, []string{"a"}, []int64{3500}},
		{"two revisions of a namespace", Bounds{TotalBytes: total}, []string{"a", "a"}, []int64{3500, 0}},
		{"two namespaces", Bounds{TotalBytes: total}, []string{"a", "b"}, []int64{3500, 1750}},
		{"four namespaces", Bounds{TotalBytes: total}, []string{"a", "b", "c", "d"}, []int64{3500, 1750, 880, 440}},
		{"a revision's own limit", Bounds{TotalBytes: total, PerRevisionBytes: 1000}, []string{"a", "a"}, []int64{1000, 1000}},
	} {
		t.Run(test.name, func(t *testing.T) {
			budget := NewBudget(test.bounds)
			shares := make([]*Share, len(test.floods))
			for i, namespace := range test.floods {
				shares[i] = budget.Share(namespace)
				if got := fill(t, shares[i], piece); got != test.most[i] {
					t.Errorf("revision %d of namespace %s got %d bytes, want %d", i, namespace, got, test.most[i])
				}
			}
			other := budget.Share("other")
			if err := other.Take(piece); err != nil {
				t.Errorf("another namespace got %v", err)
			}
			other.Give(piece)
			if got := budget.Refusals(); got != int64(len(shares)) {
				t.Errorf("%d refusals are counted, want %d", got, len(shares))
			}
			for i, s := range shares {
				s.Give(test.most[i])
			}
			if got := budget.HeldBytes(); got != 0 {
				t.Errorf("%d bytes are left", got)
			}
		})
	}
}

// Without a large buffer a request is slower, so buffers never take room from requests.
func TestBuffersThatAreLentTakeNoRoomFromRequests(t *testing.T) {
	budget := NewBudget(Bounds{TotalBytes: 8000})
	flood, other := budget.Share("flood"), budget.Share("other")
	lent := 0
	for flood.Borrow(10) {
		lent++
	}
	if lent != 50 {
		t.Errorf("%d buffers of 10 bytes were lent, want 50: half of an eighth", lent)
	}
	if !other.Borrow(10) {
		t.Error("another namespace got no buffer")
	}
	other.Return(10)
	if err := flood.Take(3500); err != nil {
		t.Errorf("requests of the namespace: %v", err)
	}
	flood.Give(3500)
	flood.Return(500)
	if got := budget.HeldBytes(); got != 0 {
		t.Errorf("%d bytes are left", got)
	}
}

func TestANamespaceWithoutRevisionsIsForgotten(t *testing.T) {
	budget := NewBudget(Bounds{})
	for i := range 100 {
		first, second := New(1, budget.Share(fmt.Sprint(i)), Options{}), New(1, budget.Share(fmt.Sprint(i)), Options{})
		first.Delete()
		first.Delete()
		if len(budget.tenants) != 1 {
			t.Fatalf("%d namespaces are known, want 1", len(budget.tenants))
		}
		second.Delete()
	}
	if len(budget.tenants) != 0 {
		t.Errorf("%d namespaces are known, want none", len(budget.tenants))
	}
}

// Whatever goes on at once, the total is exceeded by a request per goroutine at most, and all comes
// back.
func TestTheBudgetHoldsWithManyAtOnce(t *testing.T) {
	const piece, goroutines = 100, 8
	budget := NewBudget(Bounds{TotalBytes: 80_000})
	var group sync.WaitGroup
	for g := range goroutines {
		group.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 1))
			share := budget.Share(fmt.Sprint(g % 3))
			var taken, lent int64
			for range 20_000 {
				switch random.IntN(5) {
				case 0, 1:
					if share.Take(piece) == nil {
						taken += piece
					}
				case 2:
					if share.Borrow(piece) {
						lent += piece
					}
				case 3:
					share.Give(taken)
					taken = 0
				case 4:
					share.Return(lent)
					lent = 0
				}
				if used := budget.HeldBytes(); used > 80_000+2*goroutines*piece {
					t.Errorf("%d bytes are used", used)
					break
				}
			}
			share.Give(taken)
			share.Return(lent)
		})
	}
	group.Wait()
	if got := budget.HeldBytes(); got != 0 {
		t.Errorf("%d bytes are left", got)
	}
}
