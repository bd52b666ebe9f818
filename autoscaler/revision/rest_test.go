package revision

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

// What a revision drops at zero makes no difference to any decision, however it got there and
// whatever comes next.
func TestARevisionThatWasAtZeroDecidesAsIfItHadBeenAwake(t *testing.T) {
	dropped := 0
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 0))
		standby, adaptive := random.IntN(3) == 0, random.IntN(3) == 0
		change := func(c *Config) {
			if !standby {
				c.Standby = nil
			}
			c.Adaptive, c.BusyFor = adaptive, time.Minute
		}
		one, other := newVillage(t, change), newVillage(t, change)
		one.quiet, other.quiet, other.keeps = true, true, true
		for range 20 {
			load, rate, busy, deaf := float64(max(0, random.IntN(40)-20)), float64(random.IntN(2)), int32(random.IntN(2)), random.IntN(4) == 0
			lasts := time.Duration(1+random.IntN(90)) * time.Second
			if load == 0 {
				lasts *= 4
				busy = 0
			}
			for _, v := range []*village{one, other} {
				v.load, v.rate, v.busy, v.deaf = load, load*rate, busy, deaf
			}
			for range lasts / time.Second {
				one.run(time.Second)
				other.run(time.Second)
				if one.lively == nil {
					dropped++
				}
				if !reflect.DeepEqual(one.last, other.last) {
					t.Fatalf("seed %d at %s:\n%+v\nand awake\n%+v", seed, one.now.Sub(epoch), one.last, other.last)
				}
			}
		}
	}
	if dropped == 0 {
		t.Error("none dropped anything")
	}
}
