package route

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	viewv1alpha1 "ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/test/eventually"
)

// asked are asks whose questions a test answers, in a bubble of testing/synctest.
func asked(t *testing.T, view func(ctx context.Context) (*viewv1alpha1.ServiceView, error)) (a *asks, woken *atomic.Int32) {
	woken = &atomic.Int32{}
	a = &asks{wake: func(reconcile.Key) { woken.Add(1) },
		view: func(ctx context.Context, _, _ string) (*viewv1alpha1.ServiceView, error) { return view(ctx) }}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.run(ctx)
	}()
	synctest.Wait()
	t.Cleanup(func() { stop(); <-ended })
	return a, woken
}

func routeNamed(i int) reconcile.Key {
	return reconcile.Key{Namespace: "ns", Name: fmt.Sprintf("route-%03d", i)}
}

func TestAnAnswerWakesTheRouteAndIsTakenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		a, woken := asked(t, func(context.Context) (*viewv1alpha1.ServiceView, error) {
			at = append(at, time.Since(began))
			time.Sleep(300 * time.Millisecond)
			return &viewv1alpha1.ServiceView{}, nil
		})
		if got := a.take(routeNamed(0), "hello"); got != nil {
			t.Errorf("an answer without a question: %+v", got)
		}
		time.Sleep(time.Second)
		if woken.Load() != 1 {
			t.Errorf("woken %d times", woken.Load())
		}
		if got := a.take(routeNamed(0), "hello"); got == nil || got.err != nil || got.view == nil {
			t.Errorf("got %+v", got)
		}
		if got := a.take(routeNamed(0), "hello"); got != nil {
			t.Errorf("taken twice: %+v", got)
		}
		time.Sleep(310 * time.Millisecond)
		a.take(routeNamed(0), "hello") // before a second is over
		a.take(routeNamed(0), "hello")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := fmt.Sprint(at); got != "[0s 1s 2s]" {
			t.Errorf("asked at %s", got)
		}
	})
}

// The autoscaler asks the pods each second. Who asks soon after that hears of them soon.
func TestAQuestionComesSoonAfterTheSecondEnds(t *testing.T) {
	for behaviour, row := range map[string]struct {
		phase time.Duration // of the autoscaler, by the controller's clock
		want  string
	}{
		"in the middle of a second": {300 * time.Millisecond, "[0s 400ms 1.4s 2.4s 3.4s]"},
		"just before its end":       {50 * time.Millisecond, "[0s 150ms 1.15s 2.15s 3.15s]"},
		"its clock is ahead":        {5300 * time.Millisecond, "[0s 1s 2s 3s]"},
		"its clock is behind":       {-5300 * time.Millisecond, "[0s 1s 2s 3s]"},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var at []time.Duration
			a, _ := asked(t, func(context.Context) (*viewv1alpha1.ServiceView, error) {
				at = append(at, time.Since(began))
				newest := time.Now().Add(-row.phase % time.Second).Truncate(time.Second).Add(row.phase)
				v := told(map[string]string{"a": "1:1/0 2:1/0", "b": "1:1/0", "d": ""})
				v.Revisions[slices.IndexFunc(v.Revisions, func(r viewv1alpha1.RevisionView) bool { return r.Name == "a" })].Judged.Seconds[1].At = newest
				return v, nil
			})
			a.wake = func(key reconcile.Key) { a.take(key, "hello") }
			a.take(routeNamed(0), "hello")
			time.Sleep(3500 * time.Millisecond)
			synctest.Wait()
			if got := fmt.Sprint(at); got != row.want {
				t.Errorf("%s: asked at %s, want %s", behaviour, got, row.want)
			}
		})
	}
}

// Nobody who takes waits, and what hangs has bounds.
func TestAViewThatHangsHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int32
		var tooMany atomic.Bool
		a, woken := asked(t, func(ctx context.Context) (*viewv1alpha1.ServiceView, error) {
			if open.Add(1) > askAtOnce {
				tooMany.Store(true)
			}
			defer open.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		began := time.Now()
		for i := range 3 * askAtOnce {
			a.take(routeNamed(i), "hello")
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("%d questions held their Routes up for %v", 3*askAtOnce, took)
		}
		time.Sleep(answerWithin / 2)
		if open.Load() != askAtOnce {
			t.Errorf("%d questions are open, want %d", open.Load(), askAtOnce)
		}
		time.Sleep(3 * answerWithin)
		if woken.Load() != 3*askAtOnce || tooMany.Load() {
			t.Errorf("%d of %d Routes heard of it; too many questions at once: %v", woken.Load(), 3*askAtOnce, tooMany.Load())
		}
		if got := a.take(routeNamed(0), "hello"); got == nil || !errors.Is(got.err, context.DeadlineExceeded) {
			t.Errorf("got %+v", got)
		}
	})
}

func TestWhatIsAskedAboutARouteEndsWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int32
		a, woken := asked(t, func(ctx context.Context) (*viewv1alpha1.ServiceView, error) {
			open.Add(1)
			defer open.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		a.take(routeNamed(0), "hello")
		synctest.Wait()
		a.end(routeNamed(0))
		synctest.Wait()
		if open.Load() != 0 || woken.Load() != 0 || len(a.all) != 0 {
			t.Errorf("%d questions are open, %d Routes woken, %d known", open.Load(), woken.Load(), len(a.all))
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// While view.ebb.dev hangs for good, more Routes than there are workers have their judges ask it.
func TestOtherRoutesAreReconciledWhileTheViewHangs(t *testing.T) {
	over := make(chan struct{})
	var hanging atomic.Int32
	s := setThrough(t, func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if !strings.HasPrefix(r.URL.Path, "/apis/"+viewv1alpha1.Group+"/") {
				return next.RoundTrip(r)
			}
			hanging.Add(1)
			<-over
			return nil, errors.New("it hangs")
		})
	})
	t.Cleanup(func() { close(over) })
	s.judged(nil, []string{"hello-00001=100"}, nobody)
	const judged = 20
	for i := range judged {
		r := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("judged-%02d", i), Namespace: "ns", Labels: map[string]string{names.ServiceLabel: "hello"},
			Annotations: map[string]string{names.RolloutDurationAnnotation: "10m", names.RolloutGuardAnnotation: "errors<1%"}}}
		r.Spec.Traffic = []servingv1.TrafficTarget{{ConfigurationName: "hello", Percent: ptr.To(int64(100))}}
		s.put(routes, "serving.knative.dev/v1", "Route", r)
	}
	ready := func(name string) bool {
		r := &servingv1.Route{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(s.store.Get(routes, "ns", name).Object, r); err != nil {
			t.Fatal(err)
		}
		return condition(r, "Ready") == "True "
	}
	eventually.True(t, "all serve the first revision", func() bool {
		for i := range judged {
			if !ready(fmt.Sprintf("judged-%02d", i)) {
				return false
			}
		}
		return true
	})
	s.configuration("hello-00002")
	eventually.True(t, "all ask", func() bool { return hanging.Load() == judged })
	s.route("hello-00003=100")
	s.until("another Route is reconciled", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && shown(r) == "hello-00003=100"
	})
}
