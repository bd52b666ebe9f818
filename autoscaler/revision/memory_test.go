package revision

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func TestWhatOneNamespaceAsksForTakesNothingFromOthers(t *testing.T) {
	b := &Memory{}
	ask := func(revision string, pods int32, want int32) {
		t.Helper()
		if got := b.Ask(revision, pods, 100); got != want || b.Granted(revision) != want {
			t.Errorf("%s asks for %d and gets %d (%d), want %d", revision, pods, got, b.Granted(revision), want)
		}
	}
	ask("a/1", 50, 50) // nothing is known of the nodes
	b.Divide(1000)
	ask("a/1", 50, 10)
	ask("b/1", 4, 4)
	b.Divide(1000)
	ask("a/1", 50, 6) // what is left
	ask("b/1", 4, 4)
	ask("b/1", 8, 6) // what a takes changes with the next division
	b.Divide(1000)
	ask("a/1", 50, 5)
	ask("b/1", 8, 5)
	ask("a/2", 50, 2) // two of a namespace share
	ask("a/1", 50, 2)
	b.Leave("a/1")
	b.Leave("a/2")
	b.Leave("a/2")
	b.Divide(1000)
	ask("b/1", 8, 8)
	ask("b/1", 0, 0)
	if b.Asked() != 0 || len(b.asks)+len(b.sums) != 0 {
		t.Errorf("left over: %v, %v", b.asks, b.sums)
	}
}

func TestTheDivisionIsFair(t *testing.T) {
	for range 2000 {
		b, mib := &Memory{}, 1000*rand.Float64()
		pods := map[string]int32{}
		for i := range rand.IntN(8) {
			name := fmt.Sprintf("n%d/r", i)
			pods[name] = 1 + rand.Int32N(20)
			b.Ask(name, pods[name], 20)
		}
		b.Divide(mib)
		sum := 0.0
		for name, n := range pods {
			got := b.Ask(name, n, 20)
			sum += float64(got) * 20
			if part := mib / float64(len(pods)); got < n && float64(got+1)*20 <= part {
				t.Fatalf("%s has %d of %d pods, its part of %.0f MiB has room for more", name, got, n, part)
			}
		}
		if sum > mib {
			t.Fatalf("%v of %v MiB are given", sum, mib)
		}
	}
}

// A tenant that asks for pods by number, by a schedule or as a buffer gets its share, and those of
// others that pay for themselves stay.
func TestANumberTakesNoPodsOfOthers(t *testing.T) {
	for name, change := range map[string]func(c *Config){
		"a number":   func(c *Config) { c.Standby.Always, c.Standby.MaxPods = true, 20 },
		"a schedule": func(c *Config) { c.Standby.Schedule, c.Standby.Worth = always(20), 1 },
	} {
		t.Run(name, func(t *testing.T) {
			b := &Budget{}
			b.Memory.Divide(5 * 64 * CompressedShare)
			victim := newVillage(t, func(c *Config) { c.Name = "victim/hello-00001" })
			hog := newVillage(t, func(c *Config) { c.Name = "hog/hello-00001"; change(c) })
			victim.budget, hog.budget = b, b
			victim.load, hog.load = 1, 100
			victim.run(time.Minute)
			hog.run(time.Minute)
			victim.load, hog.load = 0, 0
			hog.run(5 * time.Minute)
			victim.run(5 * time.Minute)
			hog.want("what the share has room for", 0, 5)
			victim.want("its own", 0, 1)
			if got := b.Memory.Granted("hog/hello-00001"); got != 5 {
				t.Errorf("%d pods count against the share", got)
			}
			if got := b.Memory.Granted("victim/hello-00001"); got != 0 {
				t.Errorf("%d pods of a revision that pays count as asked for", got)
			}
		})
	}
}
