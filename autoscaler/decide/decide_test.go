package decide

import (
	"fmt"
	"math"
	"math/rand"
	"strconv"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/test/golden"
)

var epoch = time.Unix(1_700_000_000, 0)

func defaults() Config {
	return Config{Total: 10, Target: 7, TargetBurstCapacity: 211, ActivatorCapacity: 100, MaxScaleUpRate: 1000,
		MaxScaleDownRate: 2, PanicThreshold: 2, StableWindow: 60 * time.Second, Reachable: true}
}

// TestScenarios plays testdata/*.txt: blocks of commands, a line ----, and the decisions expected.
//
//	config key=value...                    change the configuration (keys as in the scenario files)
//	start ready=N found=N                  a fresh process takes the revision over
//	at 12s ready=N stable=X panic=X ...    decide at that time; flags: missing, between, unknown;
//	                                       waiting=X is what the pods tell, for a target of 5, untold that it is old;
//	                                       inflight=X are requests in flight beside another metric
//
// and, where the averages are not given but come out of what is reported (loads_test.go), resolve,
// series, say, miss, tick and activators.
func TestScenarios(t *testing.T) {
	var all strings.Builder
	golden.Each(t, "testdata/*.txt", func(t *testing.T, file, text string) {
		c := defaults()
		s := Start(c, 0, NoDecision, epoch)
		var loads loads
		out := golden.Blocks(text, func(commands string) string { return play(t, commands, &c, &s, &loads) })
		golden.File(t, file, out)
		all.WriteString(out)
	})
	for _, rule := range ruleNames {
		if !strings.Contains(all.String(), "["+rule+"]") {
			t.Errorf("no scenario shows rule %s", rule)
		}
	}
}

func play(t *testing.T, commands string, c *Config, s *State, l *loads) string {
	t.Helper()
	var out strings.Builder
	for _, line := range strings.Split(commands, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		arguments, flags := parse(t, words[1:])
		switch words[0] {
		case "config":
			configure(t, c, arguments, flags)
		case "start":
			found := NoDecision
			if f, ok := arguments["found"]; ok {
				found = int32(f)
			}
			*s = Start(*c, int32(arguments["ready"]), found, epoch)
		case "at":
			after, err := time.ParseDuration(words[1])
			if err != nil {
				t.Fatal(err)
			}
			o := Observation{Ready: int32(arguments["ready"]), Stable: arguments["stable"], Panic: arguments["panic"], InFlight: arguments["inflight"],
				Queued: arguments["queued"], Burst: arguments["burst"], Known: !flags["unknown"], Missing: flags["missing"], BetweenTicks: flags["between"],
				Pushed: flags["pushed"], Unheard: arguments["unheard"]}
			if _, given := arguments["panic"]; !given {
				o.Panic = o.Stable
			}
			if waiting, given := arguments["waiting"]; given {
				o.Others = []OtherLoad{{Other: &Other{Name: "waiting", Metric: Told, Target: 5}, Stable: waiting, Panic: waiting, Known: !flags["untold"]}}
			}
			var d Decision
			d, *s = Decide(*c, *s, o, epoch.Add(after))
			tell(&out, words[1], d)
		default:
			l.play(t, words, c, s, &out)
		}
	}
	return out.String()
}

func tell(out *strings.Builder, at string, d Decision) {
	mode := ""
	if d.Panicking {
		mode = " panicking"
	}
	fmt.Fprintf(out, "%s: %d%s, excess %v [%s] %s\n", at, d.Desired, mode, d.ExcessBurst, d.Rule, d.Reason())
}

func parse(t *testing.T, words []string) (map[string]float64, map[string]bool) {
	t.Helper()
	arguments, flags := map[string]float64{}, map[string]bool{}
	for _, word := range words {
		key, value, ok := strings.Cut(word, "=")
		if !ok {
			flags[key] = true
			continue
		}
		if d, err := time.ParseDuration(value); err == nil && !strings.ContainsAny(value[len(value)-1:], "0123456789") {
			arguments[key] = d.Seconds()
			continue
		}
		f, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("%s: %v", word, err)
		}
		arguments[key] = f
	}
	return arguments, flags
}

func configure(t *testing.T, c *Config, arguments map[string]float64, flags map[string]bool) {
	t.Helper()
	for key, v := range arguments {
		switch key {
		case "total":
			c.Total = v
		case "target":
			c.Target = v
		case "cc":
			c.ContainerConcurrency = v
		case "tbc":
			c.TargetBurstCapacity = v
		case "up-rate":
			c.MaxScaleUpRate = v
		case "down-rate":
			c.MaxScaleDownRate = v
		case "activation":
			c.ActivationScale = int32(v)
		case "threshold":
			c.PanicThreshold = v
		case "window":
			c.StableWindow = time.Duration(v * float64(time.Second))
		case "delay":
			c.ScaleDownDelay = time.Duration(v * float64(time.Second))
		default:
			t.Fatalf("unknown key %q", key)
		}
	}
	for flag := range flags {
		switch flag {
		case "steady":
			c.Steady = true
		case "trying":
			c.Trying = true
		case "learned":
			c.Trying = false
		case "unreachable":
			c.Reachable = false
		case "reachable":
			c.Reachable = true
		case "rps":
			c.Metric = RequestsPerSecond
		}
	}
}

// plain is the second, dumb implementation: the compatible formula as one would write it on paper,
// without any of the additions.
type plain struct {
	c          Config
	panicking  bool
	panicStart time.Time
	highest    int32
	decided    []struct {
		at time.Time
		n  int32
	}
}

func (p *plain) decide(ready int32, stableAverage, panicAverage float64, now time.Time) (desired int32, excess float64) {
	r := float64(ready)
	if r < 1 {
		r = 1
	}
	up, down := math.Ceil(p.c.MaxScaleUpRate*r), math.Floor(r/p.c.MaxScaleDownRate)
	if !p.c.Reachable {
		down = 0
	}
	clamp := func(raw float64) float64 {
		v := raw
		if v > up {
			v = up
		}
		if v < down {
			v = down
		}
		if p.c.ActivationScale > 1 && raw > 0 && v < float64(p.c.ActivationScale) {
			v = float64(p.c.ActivationScale)
		}
		return v
	}
	stableRaw, panicRaw := math.Ceil(stableAverage/p.c.Target), math.Ceil(panicAverage/p.c.Target)
	stable, panicky := clamp(stableRaw), clamp(panicRaw)
	if over := panicRaw/r >= p.c.PanicThreshold; over {
		if !p.panicking {
			p.highest = max(p.highest, 0)
		}
		p.panicking, p.panicStart = true, now
	} else if p.panicking && p.panicStart.Add(p.c.StableWindow).Before(now) {
		p.panicking, p.highest = false, 0
	}
	desired = int32(stable)
	if p.panicking {
		desired = int32(max(stable, panicky))
		p.highest = max(p.highest, desired)
		desired = p.highest
	}
	if p.c.ScaleDownDelay > 0 && p.c.Reachable {
		p.decided = append(p.decided, struct {
			at time.Time
			n  int32
		}{now, desired})
		for _, d := range p.decided {
			slots := now.Unix()/2 - d.at.Unix()/2
			if time.Duration(slots)*2*time.Second < (p.c.ScaleDownDelay+time.Second)/2/time.Second*2*time.Second {
				desired = max(desired, d.n)
			}
		}
	}
	switch {
	case p.c.TargetBurstCapacity == 0:
		excess = 0
	case p.c.TargetBurstCapacity == -1:
		excess = -1
	default:
		excess = math.Floor(float64(ready)*p.c.Total - p.c.TargetBurstCapacity - panicAverage)
	}
	return desired, excess
}

func TestAgreesWithThePlainVersion(t *testing.T) {
	for seed := range int64(500) {
		r := rand.New(rand.NewSource(seed))
		c := defaults()
		c.Total = 1 + float64(r.Intn(100))
		c.Target = c.Total * (0.1 + 0.9*r.Float64())
		c.TargetBurstCapacity = []float64{-1, 0, 211, 10}[r.Intn(4)]
		c.MaxScaleUpRate = 1.1 + float64(r.Intn(10))
		c.MaxScaleDownRate = 1.1 + float64(r.Intn(4))
		c.ActivationScale = int32(r.Intn(5))
		c.PanicThreshold = 1.1 + 3*r.Float64()
		c.StableWindow = time.Duration(6+r.Intn(60)) * time.Second
		c.Reachable = r.Intn(4) > 0
		c.ScaleDownDelay = time.Duration(r.Intn(3)) * 10 * time.Second
		s, p := Start(c, 0, NoDecision, epoch), &plain{c: c}
		now, ready := epoch, int32(0)
		for step := range 100 {
			now = now.Add(2 * time.Second)
			stable, urgent := r.Float64()*500*float64(r.Intn(2)), r.Float64()*500*float64(r.Intn(2))
			want, excess := p.decide(ready, stable, urgent, now)
			var d Decision
			d, s = Decide(c, s, Observation{Ready: ready, Stable: stable, Panic: urgent, Known: true}, now)
			if d.Desired != want || d.ExcessBurst != excess {
				t.Fatalf("seed %d, step %d, ready %d, stable %v, panic %v, config %+v:\ngot  %d, excess %v (%s: %s)\nwant %d, excess %v",
					seed, step, ready, stable, urgent, c, d.Desired, d.ExcessBurst, d.Rule, d.Reason(), want, excess)
			}
			if d.Reason() == "" {
				t.Fatalf("rule %s gives no reason", d.Rule)
			}
			ready = max(0, ready+int32(r.Intn(2*int(want)+3))-want)
		}
	}
}

// Whatever is thrown at it: a decision in between ticks, on missing data or during warm-up never
// lowers the scale, and the result is a replica count.
func TestOnlyTicksWithDataLower(t *testing.T) {
	for seed := range int64(300) {
		r := rand.New(rand.NewSource(seed))
		c := defaults()
		found := int32(r.Intn(20))
		s := Start(c, int32(r.Intn(20)), found, epoch)
		now := epoch
		for range 100 {
			now = now.Add(time.Duration(r.Intn(3000)) * time.Millisecond)
			o := Observation{Ready: int32(r.Intn(30)), Stable: r.Float64() * 300, Panic: r.Float64() * 300, Known: r.Intn(5) > 0,
				Missing: r.Intn(3) == 0, BetweenTicks: r.Intn(2) == 0, Queued: float64(r.Intn(2) * r.Intn(40)), Burst: r.Float64() * 100}
			if r.Intn(20) == 0 {
				o.Stable, o.Panic = math.NaN(), math.Inf(1)
			}
			before := s.Desired
			var d Decision
			d, s = Decide(c, s, o, now)
			lowering := d.Desired < before
			switch {
			case lowering && (o.BetweenTicks || o.Missing):
				t.Fatalf("seed %d: %d -> %d on %+v", seed, before, d.Desired, o)
			case now.Before(epoch.Add(c.StableWindow)) && d.Desired != NoDecision && d.Desired < found:
				t.Fatalf("seed %d: decided %d below the %d found before a window was seen", seed, d.Desired, found)
			case d.Desired < 0 && d.Rule != RuleNoData:
				t.Fatalf("seed %d: desired %d by rule %s", seed, d.Desired, d.Rule)
			case o.Queued > 0 && o.Ready == 0 && d.Desired < 1:
				t.Fatalf("seed %d: %v requests wait at zero pods, and desired is %d", seed, o.Queued, d.Desired)
			}
		}
	}
}

func TestPanicWindow(t *testing.T) {
	for _, c := range []struct {
		stable     time.Duration
		percentage float64
		want       time.Duration
	}{{60 * time.Second, 10, 6 * time.Second}, {6 * time.Second, 10, time.Second}, {6 * time.Second, 1, time.Second}, {25 * time.Second, 10, 3 * time.Second}, {10 * time.Second, 100, 10 * time.Second}} {
		if got := PanicWindow(c.stable, c.percentage); got != c.want {
			t.Errorf("%v %% of %s: %s, want %s", c.percentage, c.stable, got, c.want)
		}
	}
}
