package act

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
)

// without takes the Deployment away until it is made.
func without(c *cluster) (made *atomic.Bool, tries *atomic.Int32) {
	made, tries = &atomic.Bool{}, &atomic.Int32{}
	c.kube.PrependReactor("*", "deployments", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if made.Load() {
			return false, nil, nil
		}
		tries.Add(1)
		return true, nil, apierrors.NewNotFound(schema.GroupResource{Group: "apps", Resource: "deployments"}, "hello-00001-deployment")
	})
	return made, tries
}

// The controller makes a Deployment with the scale that the status says: so that is written at
// once, also while a status that only says that a revision wakes is held.
func TestAScaleOfADeploymentThatIsNotThereIsToldInTheStatus(t *testing.T) {
	for what, from := range map[string]int32{"at zero": 0, "after a restart": -1} {
		t.Run(what, func(t *testing.T) {
			play(t, func(t *testing.T, c *cluster, w *Writer) {
				made, _ := without(c)
				o := order(from, 1)
				o.Held, o.Urgent = true, true
				w.Act(o)
				expect(t, c, "status want 1, 1 ready, Serve, active True")
				c.set(1)
				made.Store(true)
				time.Sleep(2 * firstRetry) // virtual
				synctest.Wait()
				calls := c.done()
				if scaled(calls, "hello-00001-deployment", 1) || len(w.orders.tasks) > 0 || w.Failed.Load() > 0 || w.Stale.Load() > 0 || len(c.told()) > 0 {
					t.Errorf("calls %q, orders %v, %d failed, %d stale, told %v", calls, w.orders.tasks, w.Failed.Load(), w.Stale.Load(), c.told())
				}
				time.Sleep(time.Hour)
				expect(t, c)
			})
		})
	}
}

// What was decided before the Deployment was made, or after, counts in the end.
func TestADeploymentMadeWithAnotherScaleIsScaled(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		made, _ := without(c)
		w.Act(order(0, 1))
		expect(t, c, "status want 1, 1 ready, Serve, active True")
		w.Act(order(1, 3)) // more requests came
		expect(t, c, "status want 3, 1 ready, Serve, active True")
		c.set(0) // the settings had it made again, with what the status said before
		made.Store(true)
		time.Sleep(lastRaise)
		synctest.Wait()
		if calls := c.done(); !scaled(calls, "hello-00001-deployment", 3) {
			t.Errorf("calls %q", calls)
		}
	})
}

// Nobody needs a Deployment for no pods.
func TestZeroOfADeploymentThatIsNotThereIsDone(t *testing.T) {
	for what, verify := range map[string]bool{"an order": false, "a look": true} {
		t.Run(what, func(t *testing.T) {
			play(t, func(t *testing.T, c *cluster, w *Writer) {
				_, tries := without(c)
				o := order(1, 0)
				o.Scale, o.Verify = !verify, verify
				w.Act(o)
				expect(t, c, "status want 0, 1 ready, Serve, active True")
				time.Sleep(time.Hour)
				expect(t, c)
				if tries.Load() != 1 || len(w.orders.tasks) > 0 {
					t.Errorf("%d tries, orders %v", tries.Load(), w.orders.tasks)
				}
			})
		})
	}
}

// While no controller makes the Deployment, it is asked for once in a while, and the order says
// that it fails.
func TestADeploymentThatNobodyMakesIsAskedForSeldom(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		_, tries := without(c)
		w.Act(order(0, 1))
		time.Sleep(time.Minute)
		expect(t, c, "status want 1, 1 ready, Serve, active True")
		if n := tries.Load(); n < 30 || n > 80 || w.Failed.Load() == 0 {
			t.Errorf("%d tries in a minute, %d failed", n, w.Failed.Load())
		}
		w.Act(order(1, 0)) // its client went away
		expect(t, c, "status want 0, 1 ready, Serve, active True")
		before := tries.Load()
		time.Sleep(time.Hour)
		if n := tries.Load(); n != before || len(w.orders.tasks) > 0 {
			t.Errorf("%d more tries, orders %v", n-before, w.orders.tasks)
		}
	})
}

// A status that could not be written is tried again, or nobody would make the Deployment.
func TestTheStatusOfADeploymentThatIsNotThereIsTriedAgain(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		without(c)
		var refused atomic.Int32
		c.client.PrependReactor("patch", "podautoscalers", func(clienttesting.Action) (bool, runtime.Object, error) {
			if refused.Add(1) > 3 {
				return false, nil, nil
			}
			return true, nil, apierrors.NewGenericServerResponse(http.StatusServiceUnavailable, "", schema.GroupResource{}, "", "etcd has no leader", 0, false)
		})
		w.Act(order(0, 1))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if calls := c.done(); !slices.Equal(calls, []string{"status want 1, 1 ready, Serve, active True"}) {
			t.Errorf("calls %q", calls)
		}
	})
}
