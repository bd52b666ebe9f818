package process

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// What the controller writes for one more Service until it is Ready, and in the ten minutes after.
// Each object is created once as it stays, and each status is written once; the Route's is written
// twice where activators have to be told of its plan before it can be Ready.
func TestWhatANewServiceCosts(t *testing.T) {
	bounds := func(more map[string]int) map[string]int {
		most := map[string]int{
			"create configurations": 1, "create routes": 1, "create revisions": 1,
			"create deployments": 1, "create podautoscalers": 1, "create services": 3, "create endpointslices": 1,
			"update services/status": 1, "update configurations/status": 1, "update routes/status": 1, "update revisions/status": 1,
		}
		maps.Copy(most, more)
		return most
	}
	for what, c := range map[string]struct {
		rests bool
		notes map[string]string
		most  map[string]int
	}{
		"hosts that rest, no pod": {true, map[string]string{names.InitialScaleAnnotation: "0"}, bounds(map[string]int{"update routes/status": 2,
			"create services": 2, "create endpointslices": 0})},
		"HTTPRoutes, no pod": {false, map[string]string{names.InitialScaleAnnotation: "0"}, bounds(map[string]int{"create httproutes": 2})},
		// It takes five seconds until its pod is ready, so all say meanwhile what they wait for,
		// and two Events say that it is over. Then the revision goes to zero.
		"hosts that rest, a pod": {true, nil, bounds(map[string]int{"update services/status": 2, "update configurations/status": 2,
			"update routes/status": 3, "update revisions/status": 3, "event Normal RevisionReady": 1, "event Normal ConfigurationReady": 1})},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGround(t, 1, false)
				if c.rests {
					g.end()
					g = newRestingGround(t, 1)
				}
				defer g.end()
				g.told = make(chan string, 1000)
				g.start(g.replicas[0])
				g.pass(30 * time.Second)
				g.hello("dev.local/hello:1", nil) // with the first one the namespace gets its Secret
				g.pass(10 * time.Minute)
				g.store.Writes()
				for len(g.told) > 0 {
					<-g.told
				}
				one := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one"}}
				one.Spec.Template.Annotations = c.notes
				one.Spec.Template.Spec.Containers = []corev1.Container{{Image: "dev.local/hello:1"}}
				g.put(services, "serving.knative.dev/v1", "Service", one)
				g.readily("one")
				g.pass(10 * time.Minute)

				counts, list := map[string]int{}, []string{}
				events := map[string]bool{} // a cache that is behind has one told twice
				for _, w := range g.store.Writes() {
					counts[w.Verb+" "+w.Resource]++
					list = append(list, describe(w))
				}
				for len(g.told) > 0 {
					events["event "+<-g.told] = true
				}
				for _, event := range slices.Sorted(maps.Keys(events)) {
					counts[strings.Join(strings.Fields(event)[:3], " ")]++
					list = append(list, event)
				}
				sum := 0
				for _, kind := range slices.Sorted(maps.Keys(counts)) {
					if sum += counts[kind]; counts[kind] > c.most[kind] {
						t.Errorf("%d times %s, at most %d are needed", counts[kind], kind, c.most[kind])
					}
				}
				if text := fmt.Sprintf("%d writes:\n%s", sum, strings.Join(list, "\n")); t.Failed() {
					t.Error(text)
				} else {
					t.Log(text)
				}
			})
		})
	}
}

// readily plays time in small steps until a Service is Ready.
func (g *ground) readily(name string) {
	g.t.Helper()
	for range 60 * 100 {
		if get[servingv1.Service](g, services, name).Status.GetCondition(apis.ConditionReady).IsTrue() {
			return
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		g.run()
		synctest.Wait()
	}
	g.t.Fatalf("Service %s is not Ready within a minute:\n%s", name, g.store.Names("ns"))
}
