package process

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// What a Service lacks that was never up may come a day later. It says what that is all the time,
// with few writes, and is Ready soon after.
func TestAServiceThatWasNeverUpRecoversADayLater(t *testing.T) {
	for what, c := range map[string]struct {
		says      string
		lack, end func(*ground)
	}{
		"a Secret": {`secret "shop" not found`, func(g *ground) { g.lacking = `secret "shop" not found` }, func(g *ground) { g.lacking = "" }},
		"a quota":  {"exceeded quota", func(g *ground) { g.noPods = "pods are forbidden: exceeded quota: none" }, func(g *ground) { g.noPods = "" }},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGround(t, 1, false)
				defer g.end()
				pass := func(d time.Duration, each func()) {
					for end := time.Now().Add(d); time.Now().Before(end); {
						time.Sleep(30 * time.Second)
						synctest.Wait()
						g.run()
						synctest.Wait()
						each()
					}
				}
				c.lack(g)
				v := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
				v.Spec.Template.Spec.Containers = []corev1.Container{{Image: "dev.local/hello:1"}}
				g.put(services, "serving.knative.dev/v1", "Service", v)

				began, said := time.Now(), map[string]int{}
				attempts := map[string]bool{}
				pass(24*time.Hour, func() {
					ready := get[servingv1.Service](g, services, "a").Status.GetCondition(apis.ConditionReady)
					if time.Since(began) > 2*time.Minute {
						said[fmt.Sprint(ready.GetReason(), " ", ready.GetMessage())]++
					}
					if d := g.store.Get(deployments, "ns", "a-00001-deployment"); d != nil {
						attempts[string(d.GetUID())] = true
					}
				})
				if len(said) != 1 {
					t.Errorf("in a day it said %v", said)
				}
				for words := range said {
					if !strings.Contains(words, c.says) {
						t.Errorf("it said %q", words)
					}
				}
				// An attempt is ten and a half minutes, then a pause of up to 15.
				if n := len(attempts); n < 24*60/26 || n > 24*60/26+30 {
					t.Errorf("%d attempts in a day", n)
				}
				writes := 0
				for _, w := range g.store.Writes() {
					if w.Resource == "services/status" {
						writes++
					}
				}
				if writes > 10 {
					t.Errorf("the status of the Service was written %d times", writes)
				}

				c.end(g)
				var took time.Duration
				ended := time.Now()
				pass(anewWithin, func() {
					if took == 0 && get[servingv1.Service](g, services, "a").Status.GetCondition(apis.ConditionReady).IsTrue() {
						took = time.Since(ended)
					}
				})
				if took == 0 {
					t.Errorf("it does not recover: %+v", get[servingv1.Service](g, services, "a").Status.Conditions)
				}
			})
		})
	}
}

// A Secret may come at any time of an attempt, and the container may need longer than what is left
// of it. The Revision says what it waited for, and the Service is Ready soon after.
func TestASecretMayComeAtAnyTimeOfAnAttempt(t *testing.T) {
	for _, comes := range []time.Duration{5 * time.Minute, 9*time.Minute + 50*time.Second, 10*time.Minute + 5*time.Second, 10*time.Minute + 25*time.Second,
		10*time.Minute + 32*time.Second, 11 * time.Minute} {
		t.Run(comes.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGround(t, 1, false)
				defer g.end()
				ready := func() *apis.Condition {
					return get[servingv1.Service](g, services, "a").Status.GetCondition(apis.ConditionReady)
				}
				g.lacking, g.takes = `secret "shop" not found`, 6*time.Minute
				g.hello("dev.local/hello:1", nil)
				g.pass(comes)
				g.lacking = ""
				// The attempt is given up, and the next is not there yet.
				for range 12 {
					if got := get[servingv1.Revision](g, revisions, "a-00001").Status.GetCondition(servingv1.RevisionConditionResourcesAvailable); got.IsTrue() || !strings.Contains(got.GetMessage(), "secret") {
						t.Fatalf("the Secret came after %s, and it says %+v", comes, got)
					}
					g.pass(5 * time.Second)
				}
				g.pass(anewWithin + g.takes)
				if got := ready(); !got.IsTrue() {
					t.Errorf("the Secret came after %s, and it does not recover: %+v", comes, got)
				}
			})
		})
	}
}

// A Service at zero whose Secret is deleted says so from the first request on, and while requests
// go on. One after the Secret is back makes it Ready, and so does time, if none comes.
func TestAServiceAtZeroThatCannotStartSaysOneThing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t, 1, false)
		defer g.end()
		var said []string
		pass := func(d time.Duration) {
			for range d / step {
				g.pass(step)
				c := get[servingv1.Service](g, services, "a").Status.GetCondition(apis.ConditionReady)
				if now := fmt.Sprint(c.Status, " ", c.GetMessage()); len(said) == 0 || said[len(said)-1] != now {
					said = append(said, now)
				}
			}
		}
		lacks := func() {
			said = nil
			g.lacking = `secret "shop" not found`
			for range 40 { // for a minute after each a pod is wanted
				g.requests["a-00001"] = time.Now()
				pass(90 * time.Second)
			}
			if len(said) > 2 || !strings.HasPrefix(said[len(said)-1], "False") || !strings.Contains(said[len(said)-1], g.lacking) {
				t.Fatalf("in an hour of requests it said %q", said)
			}
			g.lacking = ""
		}
		g.hello("dev.local/hello:1", nil)
		g.pass(5 * time.Minute)

		lacks()
		g.requests["a-00001"] = time.Now()
		pass(time.Minute)
		if said[len(said)-1] != "True " {
			t.Errorf("after a request, it says %q", said)
		}
		lacks()
		pass(2 * time.Minute)
		if said[len(said)-1] != "True " {
			t.Errorf("after a while, it says %q", said)
		}
	})
}

// anewWithin bounds the pause before a revision is tried anew, and its start.
const anewWithin = 16 * time.Minute

// The newest revision did not come up for want of quota, and its user went back to the one before.
// The Service says so, and is Ready when the quota has room again.
func TestTheNewestRevisionIsTriedAnewThoughNoRouteLeadsToIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t, 1, false)
		defer g.end()
		ready := func() *apis.Condition {
			return get[servingv1.Service](g, services, "a").Status.GetCondition(apis.ConditionReady)
		}
		g.hello("dev.local/hello:1", nil)
		g.pass(2 * time.Minute)
		g.noPods = "pods are forbidden: exceeded quota: none"
		g.hello("dev.local/hello:2", nil)
		g.pass(2 * time.Minute)
		g.hello("dev.local/hello:2", nil, servingv1.TrafficTarget{RevisionName: "a-00001", Percent: ptr.To(int64(100))})
		g.pass(20 * time.Minute)
		if got := ready(); got.IsTrue() || !strings.Contains(got.GetMessage(), "exceeded quota") {
			t.Fatalf("without room it says %+v", got)
		}
		g.noPods = ""
		g.pass(anewWithin)
		if got := ready(); !got.IsTrue() {
			t.Errorf("with room it says %+v", got)
		}
		if to := g.routedTo("a.ns.svc.cluster.local"); len(to) != 1 || to[0] != "a-00001" {
			t.Errorf("requests go to %v", to)
		}
	})
}
