package shares

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestOwnersThatTakeAllTheyCanLeaveSomeToOthers(t *testing.T) {
	for attackers := 1; attackers <= 4; attackers++ {
		p := New(60)
		taken := map[string]int64{}
		for more := true; more; {
			more = false
			for i := range attackers {
				if name := string(rune('a' + i)); p.Take(name, 1) {
					taken[name]++
					more = true
				}
			}
		}
		for name, n := range taken {
			if want := int64(60 / (attackers + 1)); n != want || p.Held(name) != n {
				t.Errorf("of %d, %s took %d of 60, not %d", attackers, name, n, want)
			}
		}
		if !p.Take("victim", 1) {
			t.Errorf("%d attackers leave nothing", attackers)
		}
		p.Give("victim", 1)
		for name, n := range taken {
			p.Give(name, n)
		}
		if p.Free() != 60 || len(p.held) != 0 {
			t.Errorf("after all gave back: %d free, held %v", p.Free(), p.held)
		}
	}
}

func TestALargePieceIsNotTakenBeyondTheShare(t *testing.T) {
	p := New(100)
	if !p.Take("a", 40) || p.Take("a", 30) || !p.Take("a", 10) || !p.Take("b", 25) || p.Take("b", 1) {
		t.Errorf("a holds %d, b %d, %d are free", p.Held("a"), p.Held("b"), p.Free())
	}
	p.Add("c", 90)
	if name, n := p.Largest(); name != "c" || n != 90 || p.Free() != -65 {
		t.Errorf("%s holds most, %d; %d are free", name, n, p.Free())
	}
}

func TestWhatIsAddedToAPoolIsDividedToo(t *testing.T) {
	p := New(2)
	if !p.Take("a", 1) || p.Take("a", 1) {
		t.Error("of 2, a takes 1")
	}
	if p.Grow(2); !p.Take("a", 1) || p.Take("a", 1) || p.Free() != 2 {
		t.Errorf("of 4, a takes 2: %d, %d are free", p.Held("a"), p.Free())
	}
}

func TestWhoWaitsGetsWhatIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(10)
		p.Add("a", 10)
		got := make(chan error, 1)
		go func() { got <- p.Wait(t.Context(), "b", 5) }()
		synctest.Wait()
		p.Give("a", 8)
		synctest.Wait()
		select {
		case err := <-got:
			t.Fatalf("with 8 free it took 5, and left 3: %v", err)
		default:
		}
		p.Give("a", 2)
		if err := <-got; err != nil || p.Held("b") != 5 {
			t.Errorf("%v, %d", err, p.Held("b"))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Wait(ctx, "b", 1); err == nil {
			t.Error("it took what is not there")
		}
	})
}
