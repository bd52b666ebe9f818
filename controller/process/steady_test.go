package process

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	steadyFor  = flag.Duration("steady-for", 0, "how long TestWhatServesGoesOnServing plays new sequences; 0 plays a few known ones")
	steadyFrom = flag.Uint64("steady-from", 0, "with -steady-for, the first sequence; others follow; by default they are new")
	steadySeed = flag.Uint64("steady-seed", 0, "the one sequence that TestWhatServesGoesOnServing plays")
)

// A model test: users change Services, and things go wrong, in random order, in virtual time. Each
// host that served once is asked every five seconds. It goes on serving its old or its new answer,
// unless the user has taken it away. In each third sequence hosts have TLS, too, and in each fourth
// they may rest instead; in each fifth, Deployments are put away after a minute at zero, and are
// there again when a request comes. What is not Ready for long says why. When the mishaps are over,
// everything is as the users want it, and nothing is written any more. `-steady-seed` plays a
// sequence again, `-steady-for 1h` looks for new faults.
func TestWhatServesGoesOnServing(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that a seed plays out alike each time
	play := func(seed uint64) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { newSteady(t, seed).play() }) })
	}
	switch {
	case *steadySeed != 0:
		play(*steadySeed)
	case *steadyFor == 0:
		for _, seed := range usualSeeds {
			play(seed)
		}
	default:
		began, first := time.Now(), *steadyFrom
		if first == 0 {
			first = uint64(began.UnixMilli())
		}
		n := uint64(0)
		for ; time.Since(began) < *steadyFor && !t.Failed(); n++ {
			play(first + n)
		}
		t.Logf("%d sequences, from seed %d on", n, first)
	}
}

// In the last two a revision wakes when its Deployment is just ten minutes old.
var usualSeeds = []uint64{1, 2, 3, 4, 32, 156}

const (
	step = 5 * time.Second
	// mended is how long a write that was refused waits for the next attempt, and then some.
	mended = 90 * time.Second
	mapped = "maps.test" // the domain of the DomainMapping
)

// steady is one sequence.
type steady struct {
	*ground
	rand *rand.Rand
	log  []string
	// The hosts that served, by the Services that may answer.
	served map[string][]string
	tries  int // images so far
	// Until then, by the Service, somebody's damage to what serves itself may show.
	damage map[string]time.Time
	// What is wrong now, by its words in conditions, and how to end it.
	wrong map[string]func()
	since map[string]time.Time // when a Service was Ready last
	// When a user edited a Service last: it is told that the gateways have just been told.
	touched map[string]time.Time
	moved   time.Time // when something went wrong or was over last
	room    time.Time // when a quota was full last
	blind   bool      // nothing can be written: no condition is new
}

func newSteady(t *testing.T, seed uint64) *steady {
	var g *ground
	if seed%4 == 0 {
		g = newRestingGround(t, int(1+seed/4%2))
	} else {
		g = newGround(t, int(1+seed%2), seed%3 == 0)
	}
	if seed%5 == 2 {
		g.putsAway = true
		g.set()
	}
	return &steady{ground: g, rand: rand.New(rand.NewPCG(seed, 1)), served: map[string][]string{},
		damage: map[string]time.Time{}, wrong: map[string]func(){}, since: map[string]time.Time{}, touched: map[string]time.Time{}}
}

func (s *steady) note(format string, args ...any) {
	s.log = append(s.log, time.Now().Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

func (s *steady) fail(format string, args ...any) {
	s.note("FAIL: "+format, args...)
	s.t.Fatalf("%s\n%s", strings.Join(s.log, "\n"), s.state())
}

// play is two acts, each with changes and mishaps for a quarter of an hour, and then quiet.
func (s *steady) play() {
	defer s.ground.end()
	for _, name := range serviceNames {
		s.update(name)
	}
	s.pass(2 * time.Minute)
	for range 2 {
		for range 12 {
			s.act()
			s.pass(time.Duration(5+s.rand.IntN(150)) * time.Second)
		}
		for _, what := range slices.Sorted(maps.Keys(s.wrong)) {
			s.over(what)
		}
		s.atRest()
	}
}

var serviceNames = []string{"a", "b"}

func (s *steady) act() {
	acts := s.acts()
	if s.canRest {
		acts = append(acts, s.restingActs()...)
	}
	acts[s.rand.IntN(len(acts))](serviceNames[s.rand.IntN(2)])
	for _, what := range slices.Sorted(maps.Keys(s.wrong)) {
		if s.rand.IntN(4) == 0 {
			s.over(what)
		}
	}
}

// begin notes that something is wrong from now on.
func (s *steady) begin(words string, end func()) {
	s.note("wrong: %s", words)
	s.wrong[words], s.moved = end, time.Now()
}

func (s *steady) over(words string) {
	s.note("over: %s", words)
	s.wrong[words]()
	delete(s.wrong, words)
	s.moved = time.Now()
	for name, until := range s.damage {
		if until.After(time.Now()) {
			s.damage[name] = time.Now().Add(mended)
		}
	}
}

// hurt notes that somebody damaged what a Service serves with. It is mended in a while, once
// nothing is wrong any more.
func (s *steady) hurt(name string) { s.damage[name] = time.Now().Add(mended) }

func (s *steady) hurts(services ...string) bool {
	return slices.ContainsFunc(services, func(name string) bool { return s.damage[name].After(time.Now()) })
}

// pass lets time pass.
func (s *steady) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(step)
		synctest.Wait()
		s.run()
		synctest.Wait()
		for name := range s.damage {
			if len(s.wrong) > 0 && s.hurts(name) {
				s.hurt(name)
			}
		}
		s.check()
	}
}

func (s *steady) notServed(which func(host string) bool) {
	maps.DeleteFunc(s.served, func(host string, _ []string) bool { return which(host) })
}

func gatewayOf(host string) string {
	if strings.HasSuffix(host, ".cluster.local") {
		return local
	}
	return public
}
