package main

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func read(t *testing.T, text string) Workload {
	t.Helper()
	w, err := ParseWorkload(strings.NewReader(text), "workloads")
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func of(t *testing.T, w Workload, kind string) *Result {
	t.Helper()
	for _, k := range kindsOf(w) {
		if k.name == kind {
			return simulateWorkload(w, k.create, 1)
		}
	}
	t.Fatalf("no autoscaler is named %q", kind)
	return nil
}

func TestTheSameSeedGivesTheSameResult(t *testing.T) {
	w := read(t, "revisions 8\nservice 20ms lognormal\nload rate 5 to 50 period 20s for 60s\nload idle for 90s\nload outstanding 30 for 10s")
	for _, kind := range kinds {
		first := simulateWorkload(w, kind.create, 1).row("w", kind.name)
		if again := simulateWorkload(w, kind.create, 1).row("w", kind.name); strings.Join(first, " ") != strings.Join(again, " ") {
			t.Errorf("%v\n%v", first, again)
		}
	}
}

func TestLittlesLawHolds(t *testing.T) {
	// 200 arrivals a second that take 100 ms each are 20 in flight, whoever scales.
	w := read(t, "service 100ms exponential\ntarget 20\nmin 3\ninitial 3\nload rate 200 for 300s")
	for _, kind := range kinds {
		sum := 0.0
		curve := of(t, w, kind.name).Curve
		for _, p := range curve[60:] {
			sum += p.Load
		}
		if mean := sum / float64(len(curve)-60); mean < 18 || mean > 22 {
			t.Errorf("%s: %.1f requests in flight, want 20", kind.name, mean)
		}
	}
}

func TestEveryRequestEndsAndAClosedLoadStaysClosed(t *testing.T) {
	w := read(t, "concurrency 5\nservice 50ms exponential\nload outstanding 40 for 60s")
	r := of(t, w, "ebb")
	for i, p := range r.Curve[5:] {
		if p.Load < 39.9 || p.Load > 40.1 {
			t.Fatalf("second %d: %.1f in flight, want 40", i+5, p.Load)
		}
	}
	if unfinished := r.Requests - r.responses.total; unfinished != 40 {
		t.Errorf("%d of %d requests did not end, want the 40 outstanding ones", unfinished, r.Requests)
	}
}

func TestPressureBringsThePodsSoonerThanTheTick(t *testing.T) {
	w := read(t, "min 1\nmax 10\ntarget 10\nutilization 100\nwindow 10s\nstart 1s\nservice 6ms exponential\nworkers 1\nload idle for 20s\nload outstanding 100 for 60s")
	ten := func(kind string) int {
		for i, p := range of(t, w, kind).Curve {
			if p.Ready >= 10 {
				return i - 20
			}
		}
		return 1000
	}
	plain, ours := ten("baseline"), ten("ebb")
	if ours > 2 || plain <= ours {
		t.Errorf("ten pods after %d s, the baseline after %d s", ours, plain)
	}
}

func TestNineOutstandingIsSeenByTheAdaptiveTarget(t *testing.T) {
	w, err := ReadWorkload("workloads/nine-outstanding.txt")
	if err != nil {
		t.Fatal(err)
	}
	throughput := func(r *Result) float64 { return float64(r.Requests) }
	fixed, adaptive := throughput(of(t, w, "ebb")), throughput(of(t, w, "ebb-adaptive"))
	if adaptive < 4*fixed {
		t.Errorf("%.0f requests with the adaptive target, %.0f with the configured one", adaptive, fixed)
	}
}

// What pods tell brings more of them where requests in flight are far below the target, and they go
// again.
func TestAToldLoadIsFollowedWhereRequestsDoNotTellIt(t *testing.T) {
	w := read(t, "max 20\nwindow 20s\nstart 5s\nservice 8s lognormal\nworkers 4\nmetric running 3\nmetric waiting 1\nload rate 0.2 for 60s\nload rate 2 for 300s\nload idle for 200s")
	blind, told := of(t, w, "ebb"), of(t, w, "ebb-metrics")
	if a, b := told.waits.quantile(0.9), blind.waits.quantile(0.9); a > b/4 {
		t.Errorf("one in ten waits for %s or more, and %s without the metrics", a, b)
	}
	if most := slices.MaxFunc(told.Curve, func(a, b Point) int { return cmp.Compare(a.Ready, b.Ready) }).Ready; most < 6 {
		t.Errorf("at most %v pods for 16 requests at a time", most)
	}
	if last := told.Curve[len(told.Curve)-1]; last.Wanted != 0 || last.Ready != 0 {
		t.Errorf("%+v after the load", last)
	}
}

// Service times of one-threaded pods that scatter as much as they are long leave a lesson to
// chance, so it takes enough of them: without, a quarter of these loads ended with the two pods of
// the configured target.
func TestChanceDoesNotHideNineOutstanding(t *testing.T) {
	w := read(t, "min 1\nmax 20\ntarget 10\nwindow 10s\nstart 1s\nservice 30ms exponential\nworkers 1\nload outstanding 9 for 2m")
	for seed := range int64(20) {
		for _, kind := range kinds {
			if kind.name != "ebb-adaptive" {
				continue
			}
			curve := simulate(w, 0, kind.create, seed).Curve
			if wanted := curve[len(curve)-5].Wanted; wanted < 7 || wanted > 14 {
				t.Errorf("seed %d: %.0f pods for nine requests at a time", seed, wanted)
			}
		}
	}
}

// What the start asked for too much is given back, and a lesson has been learned, within five
// minutes. From then on a constant load has the scale turn round never, whatever the pods are like;
// it moves one way at most, as noise may push it over a whole pod.
func TestConstantLoadDoesNotMoveTheScale(t *testing.T) {
	const settled = 300
	for behaviour, service := range map[string]string{
		"on random arrivals": "target 20\nstart 2s\nmin 1\nservice 100ms exponential\nload rate 400 for 10m",
		"single-threaded":    "target 10\nstart 1s\nmin 1\nmax 20\nwindow 10s\nservice 30ms exponential\nworkers 1\nload outstanding 9 for 10m",
		"I/O-bound":          "target 10\nstart 1s\nmin 1\nmax 20\nwindow 10s\nwait 90ms\nservice 10ms exponential\nworkers 1\nload outstanding 40 for 10m",
		"CPU-bound":          "target 10\nstart 1s\nmin 1\nmax 20\nwindow 10s\nservice 100ms exponential\nworkers 2\nload outstanding 40 for 10m",
	} {
		w := read(t, service)
		for _, kind := range kinds {
			curve := of(t, w, kind.name).Curve
			late := newResult()
			for i := settled + 1; i < len(curve); i++ {
				late.scaled(int32(curve[i-1].Wanted), int32(curve[i].Wanted))
			}
			if late.Reversals > 0 || late.Changes > 2 {
				t.Errorf("%s, %s: %d changes and %d reversals in the last five of ten minutes of constant load, from %v to %v pods",
					behaviour, kind.name, late.Changes, late.Reversals, curve[settled].Wanted, curve[len(curve)-1].Wanted)
			}
		}
	}
}

// On one node more pods bring nothing, and callers that think keep less open than they could: at
// seven open requests the mean is just what one pod is for. The one try of more pods tells nothing,
// and its pods go once it has been measured; from then on the scale stands still.
func TestPodsThatShareTheirProcessorsDoNotMoveAnAdaptiveScale(t *testing.T) {
	const lesson = 30
	for _, think := range []string{"1800us", "2ms", "2200us", "3ms"} {
		w, err := ReadWorkload("workloads/shared-processors.txt")
		if err != nil {
			t.Fatal(err)
		}
		if w.Think, err = time.ParseDuration(think); err != nil {
			t.Fatal(err)
		}
		changes := func(curve []Point) (n int) {
			for i := 1; i < len(curve); i++ {
				if curve[i].Wanted != curve[i-1].Wanted {
					n++
				}
			}
			return n
		}
		curve := of(t, w, "ebb-adaptive").Curve
		if early, late := changes(curve[:lesson]), changes(curve[lesson:]); early > 3 || late > 0 || curve[lesson].Wanted > 2 {
			t.Errorf("callers that think %s: %d changes in %d s, then %d from %v pods", think, early, lesson, late, curve[lesson].Wanted)
		}
		if without := changes(of(t, w, "ebb").Curve); think == "2ms" && without < 10 {
			t.Errorf("without hysteresis the scale changes %d times, so there is nothing to hold", without)
		}
	}
}

// Whatever a service is like: once a constant load has filled the windows, the production code and
// the plain version of the formula want as many pods, neither leaves its bounds, and what is held
// for a pod is answered.
func TestUnderConstantLoadBothWantTheSame(t *testing.T) {
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 5))
		least, target := r.IntN(4), 5+r.IntN(40)
		most := least + 1 + r.IntN(30)
		w := read(t, fmt.Sprintf("target %d\nutilization %d\nmin %d\nmax %d\nwindow %ds\nstart %dms\nservice %dms exponential\nload rate %d for 360s",
			target, 50+10*r.IntN(6), least, most, 10+r.IntN(60), 200+r.IntN(4000), 5+r.IntN(200), 20+r.IntN(250)))
		wants := map[string]float64{}
		for _, kind := range []string{"baseline", "ebb"} {
			result := of(t, w, kind)
			late := result.Curve[240:]
			for i, p := range result.Curve {
				if p.Wanted < 0 || p.Wanted > float64(most) || i > 0 && p.Wanted < float64(least) {
					t.Fatalf("seed %d, %s wants %v pods in second %d, bounds %d and %d", seed, kind, p.Wanted, i, least, most)
				}
			}
			for _, p := range late {
				wants[kind] += p.Wanted / float64(len(late))
			}
		}
		// The arrivals are random, so each of them may stand on the other side of a whole pod now
		// and then.
		if d := wants["ebb"] - wants["baseline"]; d > 1 || d < -1 {
			t.Errorf("seed %d: %.2f pods, the plain version %.2f", seed, wants["ebb"], wants["baseline"])
		}
	}
}

// The formula is compared without the loop around it in autoscaler/decide; here with pods that
// start and load that follows them. A load that rises is met by the production code no later than
// by the plain version, and costs no more than a window of it longer.
func TestRisingLoadIsMetNoLaterThanByThePlainVersion(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 7))
		before, after := 1+r.IntN(20), 100+r.IntN(150)
		w := read(t, fmt.Sprintf("target 10\nmin 1\nwindow 30s\nstart %dms\nservice 100ms exponential\nload rate %d for 90s\nload rate %d for 120s", 500+r.IntN(2000), before, after))
		enough := math.Ceil(float64(after) / 10 / 10)
		met := func(kind string) int {
			for i, p := range of(t, w, kind).Curve {
				if i >= 90 && p.Ready >= enough {
					return i - 90
				}
			}
			return 1000
		}
		if ours, plain := met("ebb"), met("baseline"); ours > plain || ours > 60 {
			t.Errorf("seed %d, %d to %d a second: %v pods after %d s, by the plain version after %d s", seed, before, after, enough, ours, plain)
		}
	}
}

func TestIdleGoesToZeroAndNotBefore(t *testing.T) {
	w := read(t, "window 20s\nload rate 1 for 120s\nload idle for 60s")
	for _, kind := range kinds {
		curve := of(t, w, kind.name).Curve
		for i := 5; i < 119; i++ {
			if curve[i].Ready == 0 {
				t.Fatalf("%s: no pod in second %d of one request a second", kind.name, i)
			}
		}
		keeps := strings.Contains("keepalive-10m hybrid-histogram", kind.name)
		if last := curve[len(curve)-1]; (last.Ready != 0) != keeps || last.Wanted != 0 {
			t.Errorf("%s: %+v after a minute without a request", kind.name, last)
		}
	}
}

func TestTheTimeThatAWorkloadTookIsToldBesideTheReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "little.txt")
	if err := os.WriteFile(file, []byte("revisions 3\nservice 20ms\nload rate 5 for 10s"), 0o600); err != nil {
		t.Fatal(err)
	}
	var report, took strings.Builder
	if err := run([]string{file}, &report, &took); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(took.String()), "\n")
	if len(lines) != len(kinds) || !strings.HasPrefix(lines[1], "little under ebb: ") || !strings.HasSuffix(lines[1], " s") || !strings.Contains(lines[1], "requests of 3 revisions in ") {
		t.Errorf("told %q", took.String())
	}
	if strings.Contains(report.String(), " revisions in ") {
		t.Errorf("the report is another each time:\n%s", report.String())
	}
}

func TestAllWorkloadFilesAreRead(t *testing.T) {
	files, err := filepath.Glob("workloads/*.txt")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		w, err := ReadWorkload(file)
		if err != nil || w.Length() < time.Minute || w.About == "" || w.Shows == "" {
			t.Errorf("%s: %v, %s, %q", file, err, w.Length(), w.About)
		}
		if _, err := os.Stat(filepath.Join("../docs/simulation", chart(w.Name))); err != nil {
			t.Errorf("the report lacks %s: run make simulate", w.Name)
		}
	}
}

func TestWorkloadsThatMakeNoSense(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "there is no load",
		"colour red\nload idle for 1s":        "1: colour red: no such key",
		"min -1\nload idle for 1s":            `1: min -1: "-1" is not a whole number`,
		"target 0\nload idle for 1s":          `"0" is not a number above 0`,
		"target NaN\nload idle for 1s":        `"NaN" is not a number above 0`,
		"load rate 5":                         "a load ends in: for DURATION",
		"load rate -5 for 1s":                 `"-5" is no load`,
		"load storm 5 for 1s":                 `"storm" is none of`,
		"load rate 5 until 9 for 1s":          `"9" is no load`,
		"service 1s gamma\nload idle for 1s":  `"gamma" is none of`,
		"service -1s\nload idle for 1s":       `"-1s" is not a duration`,
		"trace nowhere.csv\nload idle for 1s": "no such file",
		"metric waiting\nload idle for 1s":    "a metric is: running|waiting TARGET",
		"metric cpu 1\nload idle for 1s":      "a metric is: running|waiting TARGET",
		"metric waiting 0\nload idle for 1s":  "is not a number above 0",
		"min":                                 "a key without a value",
	} {
		if _, err := ParseWorkload(strings.NewReader(text), "workloads"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseWorkload(f *testing.F) {
	f.Add("revisions 3\nload rate 1 to 2 period 3s for 4s")
	f.Fuzz(func(t *testing.T, text string) {
		w, err := ParseWorkload(strings.NewReader(text), "workloads")
		if err == nil && (!(w.Target > 0) || w.Revisions < 1 || w.Length() <= 0) {
			t.Errorf("%q gave %+v", text, w)
		}
	})
}

func TestQuantiles(t *testing.T) {
	var h histogram
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Millisecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond} {
		if got := h.quantile(q); got < want*94/100 || got > want*106/100 {
			t.Errorf("quantile %v: %s, want about %s", q, got, want)
		}
	}
}

func TestEveryShapeOfTrace(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file("plain.csv", "function,mean_ms,m0,m1\nf,20,3,0\n")
	file("with-memory.csv", "function,mean_ms,memory_mib,m0,m1\nf,20,64,3,0\n")
	file("in-flight.csv", "app,average_memory_mib,invocations,m0,m1,m2\na,64,9,2,2,0\n")
	file("prompts.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,160,10\n2023-11-16 18:17:05.4799600,0,0")
	file("invocations.csv", "HashOwner,HashApp,HashFunction,Trigger,480,481\no,a,f,timer,3,0\n")
	file("durations.csv", "HashOwner,HashApp,HashFunction,Average,Count\no,a,f,20,9\n")
	for name, want := range map[string]Function{
		"plain.csv":       {Name: "f", Service: 20 * time.Millisecond, Minutes: []float64{3, 0}},
		"with-memory.csv": {Name: "f", Service: 20 * time.Millisecond, Memory: 64, Minutes: []float64{3, 0}},
		"prompts.csv":     {Name: "llm", Arrivals: []Arrival{{0, 340 * time.Millisecond}, {1500 * time.Millisecond, time.Millisecond}}},
		"in-flight.csv":   {Name: "a", Memory: 64, Load: []Segment{{Closed: true, From: 2, To: 2, For: 2 * time.Minute}, {Closed: true, For: time.Minute}}},
		"":                {Name: "f", Service: 20 * time.Millisecond, Minutes: []float64{3, 0}},
	} {
		got, err := readTrace(filepath.Join(dir, name))
		if err != nil || len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
			t.Errorf("%q: %+v, %v; want %+v", name, got, err, want)
		}
	}
	for name, text := range map[string]string{
		"negative": "function,mean_ms,m0\nf,20,-1\n", "NaN": "function,mean_ms,m0\nf,NaN,1\n", "empty": "", "no function": "function,mean_ms,m0\n",
		"no time": "TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,1\n", "negative tokens": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,-1,1\n",
		"backwards": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n2023-11-16 18:17:02,1,1\n", "no prompt": "TIMESTAMP,ContextTokens,GeneratedTokens\n",
		"no minute": "function,mean_ms\nf,20\n", "ragged": "function,mean_ms,m0\nf,20,1,2\n",
	} {
		file("bad.csv", text)
		if got, err := readTrace(filepath.Join(dir, "bad.csv")); err == nil {
			t.Errorf("%s: read %+v", name, got)
		}
	}
}

func TestAWorkloadWithoutItsDataIsSkipped(t *testing.T) {
	t.Setenv("EBB_DATA", "")
	var said strings.Builder
	o, err := simulateAll([]string{"workloads/day/azure2019-100.txt"}, 1, &said)
	if err != nil || len(o.records) != 0 || !strings.Contains(said.String(), "skipped: ") {
		t.Errorf("%d results, %v, said %q", len(o.records), err, said.String())
	}
}
