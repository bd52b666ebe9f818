package act

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/autoscaler/revision"
)

func (c *cluster) set(replicas int32) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.scales["hello-00001-deployment"] = replicas
}

func (c *cluster) told() []int32 {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.found
}

// A replica is cut off with "10 to 2" pending, another one scales to 20, and the first one comes
// back: it must not remove 18 pods.
func TestAReplicaThatLostItsLeaseWritesNothing(t *testing.T) {
	for behaviour, lose := range map[string]func(c *cluster, w *Writer){
		"it was told": func(c *cluster, w *Writer) {
			c.lost.Store(true)
			w.Release(time.Second)
		},
		"it was not told yet": func(c *cluster, _ *Writer) { c.lost.Store(true) },
		"it was frozen, and only the clock tells": func(c *cluster, w *Writer) {
			c.frozen.Store(true)
			time.AfterFunc(time.Second, func() { // virtual
				c.lost.Store(true)
				w.Release(time.Second)
			})
		},
	} {
		t.Run(behaviour, func(t *testing.T) {
			play(t, func(t *testing.T, c *cluster, w *Writer) {
				c.set(10)
				c.mutex.Lock()
				c.failures = 3 // it is cut off
				c.mutex.Unlock()
				w.Act(order(10, 2))
				expect(t, c)
				lose(c, w)
				c.set(20)
				w.Act(order(10, 3)) // the loop was at it
				time.Sleep(time.Hour)
				expect(t, c)
				if w.Dropped() == 0 || len(w.orders.tasks) > 0 {
					t.Errorf("%d orders dropped, %d are kept", w.Dropped(), len(w.orders.tasks))
				}
			})
		})
	}
}

func TestLosingARevisionStopsItsWorker(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		stopped := false
		w.costs = &Costs{Kube: c.kube, Ready: func(loop.Key) []pods.Pod { return podsOf("a", "b") },
			Count: func(loop.Key) revision.Counts { return revision.Counts{Ready: 2} }, Now: time.Now,
			InFlight: func(ctx context.Context, _ loop.Key, _ []pods.Pod) map[string]float64 {
				<-ctx.Done()
				stopped = true
				return nil
			}}
		c.set(2)
		w.Act(order(2, 1))
		expect(t, c)
		began := time.Now()
		c.lost.Store(true)
		w.Release(time.Minute)
		if took := time.Since(began); !stopped || took > askTimeout/2 { // virtual
			t.Errorf("stopped: %v, after %s", stopped, took)
		}
		time.Sleep(time.Hour)
		expect(t, c)
	})
}

// What was decided before a loss is not written after the revision came back.
func TestWhatIsLostStaysLost(t *testing.T) {
	owned := true
	q := queue{tasks: map[loop.Key]*task{}, owns: func(loop.Key) bool { return owned }, queued: func(rank) {}}
	q.put(order(10, 2))
	begun := q.next(false)
	q.put(order(2, 3)) // it waits for the worker
	owned = false
	if !q.release() {
		t.Error("a worker is at an order, and release does not wait for it")
	}
	q.put(order(2, 4)) // the loop was at it
	owned = true
	q.done(begun, begun.order, false)
	if left := q.next(false); left != nil || len(q.tasks) > 0 {
		t.Errorf("left: %+v", left)
	}
	q.put(order(5, 6))
	if next := q.next(false); next == nil || next.order.From != 5 || next.order.Replicas != 6 {
		t.Errorf("after its return: %+v", next)
	}
}

// A write that is late finds another scale than it was decided on: it fails, and the loop is told.
func TestAScaleIsWrittenOnlyOverWhatItWasDecidedOn(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		c.set(20)
		w.Act(order(10, 2))
		expect(t, c, "get scale", "status want 2, 1 ready, Serve, active True")
		if got := c.told(); !slices.Equal(got, []int32{20}) || w.Stale.Load() != 1 || w.Written.Load() != 0 {
			t.Errorf("told %v, %d stale, %d written", got, w.Stale.Load(), w.Written.Load())
		}
		// From and to zero, which a Scale has no field for.
		c.set(0)
		w.Act(order(0, 3))
		expect(t, c, "scale hello-00001-deployment 3", "status want 3, 1 ready, Serve, active True")
		w.Act(order(3, 0))
		expect(t, c, "scale hello-00001-deployment 0", "status want 0, 1 ready, Serve, active True")
		c.set(5)
		w.Act(order(0, 1))
		expect(t, c, "get scale", "status want 1, 1 ready, Serve, active True")
		if got := c.told(); !slices.Equal(got, []int32{20, 5}) {
			t.Errorf("told %v", got)
		}
	})
}

// The scale was another one when the patch arrived, and is again what the order was decided on when
// it is read: the write goes on, on condition of the version that was read.
func TestAScaleThatChangedAndChangedBackIsWrittenByVersion(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		c.set(9)
		c.kube.PrependReactor("get", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
			c.set(10)
			scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 10}}
			scale.ResourceVersion = "7"
			return true, scale, nil
		})
		c.kube.PrependReactor("patch", "deployments", func(a clienttesting.Action) (bool, runtime.Object, error) {
			patch := a.(clienttesting.PatchAction)
			if patch.GetPatchType() != types.MergePatchType {
				return false, nil, nil
			}
			c.note("%s %s", patch.GetSubresource(), patch.GetPatch())
			return true, &appsv1.Deployment{}, nil
		})
		w.Act(order(10, 2))
		expect(t, c, `scale {"metadata":{"resourceVersion":"7"},"spec":{"replicas":2}}`, "status want 2, 1 ready, Serve, active True")
	})
}

// The model: two replicas, one revision, a lease and an API server. A wants 2 pods in its first
// term; then demand rises, and every later owner wants 20. What runs is the writer's own queue and
// check, the loop's revision.Revision, and the patch that the API server applies. Every order of
// these events is explored: decisions, the beginning of an order, its check and the sending of its
// write, the write's arrival at any later time, a call that ends without an answer, retries, the
// expiry of a lease, its loss being noticed, the next owner's start, and A's return.
type fenceWorld struct {
	scale int32
	// terms counts how often the lease was taken. A has the first and the third, B the second.
	terms   int
	expired bool // the lease of the present term has run out
	wrote   bool // a write of B was applied
	sides   [2]*fenceSide
	broken  string
}

type fenceSide struct {
	revision *revision.Revision
	term     int   // the one that it believes in, 0 for none
	ordered  int32 // what the revision has ordered, to tell states apart
	queue    queue
	task     *task // a worker is at it
	order    loop.Order
	ctx      context.Context
	checked  bool         // and its check has passed
	flying   []loop.Order // writes on the network, with an answer to come only for the last one
	lost     int          // calls that ended without an answer
}

// fences are the protections. The test shows that without any one of them something breaks.
type fences struct{ clock, condition, release bool }

// asked is what the writer's check asks: the lease by the clock.
type asked struct{ may bool }

func (a asked) Owns(loop.Key) bool     { return true }
func (a asked) MayWrite(loop.Key) bool { return a.may }

func newFenceWorld() *fenceWorld {
	w := &fenceWorld{scale: 10, terms: 1}
	for i := range w.sides {
		s := &fenceSide{}
		s.queue = queue{tasks: map[loop.Key]*task{}, owns: func(loop.Key) bool { return s.term != 0 }, queued: func(rank) {}}
		w.sides[i] = s
	}
	w.sides[0].start(1, 2, 10)
	return w
}

// start adopts the revision with the scale that it finds. The bounds make it want so many pods.
func (s *fenceSide) start(term int, want, found int32) {
	c := &revision.Config{UID: "u1", Rules: &revision.Rules{PanicWindow: 6 * time.Second}}
	c.Formula.Target, c.Formula.Total, c.Formula.MaxScaleUpRate, c.Formula.MaxScaleDownRate = 1, 1, 1000, 1000
	c.Formula.PanicThreshold, c.Formula.StableWindow, c.Formula.ActivatorCapacity = 2, time.Minute, 100
	c.Zero.Min, c.Zero.Max, c.Zero.Initial, c.Zero.StableWindow = want, want, want, time.Minute
	s.revision = revision.New(c, revision.Counts{Ready: found}, time.Unix(1000, 0))
	s.revision.Found(found)
	s.term, s.ordered = term, found
}

// fenceActions are what can happen. Each reports whether it could.
func fenceActions(f fences) map[string]func(w *fenceWorld) bool {
	actions := map[string]func(w *fenceWorld) bool{
		"the lease runs out": func(w *fenceWorld) bool {
			ok := !w.expired && w.terms < 3
			w.expired = w.expired || ok
			return ok
		},
		"the next one takes the lease": func(w *fenceWorld) bool {
			next := w.sides[w.terms%2]
			if !w.expired || next.term != 0 {
				return false
			}
			w.terms, w.expired = w.terms+1, false
			next.start(w.terms, 20, w.scale)
			return true
		},
	}
	for i, name := range []string{"A", "B"} {
		for event, do := range map[string]func(w *fenceWorld, s *fenceSide) bool{
			"notices the loss": func(w *fenceWorld, s *fenceSide) bool {
				if s.term == 0 || s.term == w.terms && !w.expired {
					return false
				}
				s.term = 0
				if f.release {
					s.queue.release()
				}
				return true
			},
			"decides": func(_ *fenceWorld, s *fenceSide) bool { return s.term != 0 && s.decide() },
			"begins":  func(_ *fenceWorld, s *fenceSide) bool { return s.task == nil && s.begin() },
			"checks": func(w *fenceWorld, s *fenceSide) bool {
				if s.task == nil || s.checked {
					return false
				}
				// The clock knows only of the term that this side has, or had last.
				may := !f.clock || s.term == w.terms && !w.expired
				if err := (&Writer{owners: asked{may}}).check(s.ctx, s.order); err != nil {
					s.end(true)
					return true
				}
				if s.checked = true; s.order.Target.Name != fmt.Sprint(w.terms) {
					w.broken = name + " begins to write what it decided in an earlier term"
				}
				return true
			},
			"sends": func(w *fenceWorld, s *fenceSide) bool {
				if !s.checked || s.waits() {
					return false
				}
				s.flying = append(s.flying, s.order)
				return true
			},
			"gets no answer": func(w *fenceWorld, s *fenceSide) bool {
				if !s.waits() || w.sides[0].lost+w.sides[1].lost > 0 { // one is enough, and more cost minutes
					return false
				}
				s.lost++
				s.end(true)
				return true
			},
			"resumes": func(_ *fenceWorld, s *fenceSide) bool {
				for _, t := range s.queue.tasks {
					if t.paused {
						s.queue.resume(t)
						return true
					}
				}
				return false
			},
			"has its first write applied": func(w *fenceWorld, s *fenceSide) bool { return w.arrive(s, f) },
		} {
			actions[name+" "+event] = func(w *fenceWorld) bool { return do(w, w.sides[i]) }
		}
	}
	return actions
}

func (s *fenceSide) decide() bool {
	out := s.revision.Decide(time.Unix(1001, 0), true, nil)
	if !out.Scale {
		return false
	}
	s.ordered = out.Replicas
	s.queue.put(loop.Order{Key: key, Target: loop.Target{Name: fmt.Sprint(s.term)}, Outcome: out})
	return true
}

func (s *fenceSide) begin() bool {
	if s.task = s.queue.next(false); s.task == nil {
		return false
	}
	s.order, s.checked = s.task.order, false
	s.ctx, s.task.stop = context.WithCancel(context.Background())
	return true
}

// waits reports that the order under way has been sent.
func (s *fenceSide) waits() bool { return s.checked && len(s.flying) > s.lostFlying() }

// lostFlying is how many of the writes on the network nobody waits for.
func (s *fenceSide) lostFlying() (n int) {
	for _, o := range s.flying {
		if o.Status.Actual == unanswered {
			n++
		}
	}
	return n
}

// unanswered marks a write that nobody waits for any more.
const unanswered = -1

func (s *fenceSide) end(failed bool) {
	for i := range s.flying {
		s.flying[i].Status.Actual = unanswered
	}
	s.task.stop()
	s.queue.done(s.task, s.order, failed)
	s.task, s.checked = nil, false
}

func (w *fenceWorld) arrive(s *fenceSide, f fences) bool {
	if len(s.flying) == 0 {
		return false
	}
	write := s.flying[0]
	s.flying = s.flying[1:]
	patch := scalePatch(write.From, write.Replicas)
	if !f.condition {
		patch = fmt.Appendf(nil, `[{"op":"add","path":"/spec/replicas","value":%d}]`, write.Replicas)
	}
	after, err := applyOnce(patch, w.scale)
	if err == nil {
		if write.Replicas == 2 && w.wrote {
			w.broken = fmt.Sprintf("A wrote 2 over B's %d", w.scale)
		}
		w.wrote = w.wrote || s == w.sides[1]
		w.scale = after
	}
	if write.Status.Actual == unanswered {
		return true
	}
	if err != nil && s.term != 0 {
		s.revision.Found(w.scale)
		s.ordered = w.scale
	}
	s.end(false)
	return true
}

// applyOnce remembers what applyScale says, because replays ask the same again and again.
func applyOnce(patch []byte, replicas int32) (int32, error) {
	question := fmt.Sprintf("%d %s", replicas, patch)
	answer, known := applied[question]
	if !known {
		answer.after, answer.err = applyScale(patch, replicas)
		applied[question] = answer
	}
	return answer.after, answer.err
}

var applied = map[string]struct {
	after int32
	err   error
}{}

// name tells states apart.
func (w *fenceWorld) name() string {
	text := fmt.Sprint(w.scale, w.terms, w.expired, w.wrote)
	for _, s := range w.sides {
		text += fmt.Sprint(";", s.task != nil && s.ctx.Err() != nil, s.ordered, s.term, s.checked, s.lost, s.queue.lines)
		for _, t := range s.queue.tasks {
			text += fmt.Sprint(t.full, t.busy, t.lost, t.paused, t.order.From, t.order.Replicas, t.order.Target)
		}
		for _, o := range append(slices.Clone(s.flying), s.order) {
			text += fmt.Sprint(",", o.From, o.Replicas, o.Target, o.Status.Actual)
		}
	}
	return text
}

// exploreFences replays every path to a state that was not seen before. It returns the first path
// that breaks a promise, and how many states there are.
func exploreFences(f fences) (broken string, states int) {
	actions := fenceActions(f)
	names := slices.Sorted(maps.Keys(actions))
	replay := func(path []string) *fenceWorld {
		w := newFenceWorld()
		for _, action := range path {
			actions[action](w)
		}
		return w
	}
	seen := map[string]bool{}
	for paths := [][]string{nil}; len(paths) > 0; {
		path := paths[0]
		paths = paths[1:]
		quiet := true
		for _, action := range names {
			w := replay(path)
			if !actions[action](w) {
				continue
			}
			next := append(slices.Clone(path), action)
			quiet = false
			if w.broken != "" {
				return w.broken + ": " + strings.Join(next, ", "), len(seen)
			}
			if name := w.name(); !seen[name] {
				seen[name] = true
				paths = append(paths, next)
			}
		}
		if w := replay(path); quiet && w.scale != 20 {
			return fmt.Sprintf("all is quiet at %d pods, the owner wants 20: %s", w.scale, strings.Join(path, ", ")), len(seen)
		}
	}
	return "", len(seen)
}

func TestTwoOwnersInEveryInterleaving(t *testing.T) {
	broken, states := exploreFences(fences{clock: true, condition: true, release: true})
	if broken != "" || states < 1000 {
		t.Errorf("%d states; %s", states, broken)
	}
	t.Logf("%d states", states)
	for name, f := range map[string]fences{
		"the check of the lease":        {condition: true, release: true},
		"the condition of the patch":    {clock: true, release: true},
		"dropping the orders on a loss": {clock: true, condition: true},
	} {
		if broken, _ := exploreFences(f); broken == "" {
			t.Errorf("without %s nothing breaks, so this test shows nothing", name)
		} else {
			t.Logf("without %s: %s", name, broken)
		}
	}
}
