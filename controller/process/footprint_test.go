package process

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/test/golden"
)

// What all reconcilers watch and leave behind for a Service that gets a second revision, a
// tag and a domain, and goes. A feature that is off must not change a line of it.
func TestWhatTheControllerWatchesAndWrites(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that it plays out alike each time
	golden.Twice(t, "testdata/footprint.txt", func() (out string) {
		synctest.Test(t, func(t *testing.T) { out = footprint(t) })
		return out
	})
}

func footprint(t *testing.T) string {
	g := newGround(t, 1, false)
	defer g.end()
	only := g.replicas[0]
	only.stop()
	only.stop = nil
	watched := &watches{next: g.config.Transport, of: map[string]bool{}}
	g.config.Transport = watched
	g.start(only)

	var out strings.Builder
	tell := func(title string) {
		fmt.Fprintf(&out, "# %s\n", title)
		for _, namespace := range []string{"ns", "knative-serving"} {
			for _, name := range g.store.Names(namespace) {
				if !strings.HasPrefix(name, "pods ") {
					fmt.Fprintf(&out, "there is %s/%s\n", namespace, name)
				}
			}
		}
		for _, resource := range []schema.GroupResource{httpRoutes, routesResource} {
			for _, name := range slices.Sorted(maps.Keys(g.store.Versions(resource, labels.Everything()))) {
				namespace, short, _ := strings.Cut(name, "/")
				out.WriteString(text(t, g.store.Get(resource, namespace, short).Object))
			}
		}
	}
	share := func(percent int64, tag, revision string) servingv1.TrafficTarget {
		return servingv1.TrafficTarget{Percent: ptr.To(percent), Tag: tag, RevisionName: revision, LatestRevision: ptr.To(revision == "")}
	}

	g.hello("dev.local/hello:1", nil, share(100, "", ""))
	g.pass(2 * time.Minute)
	tell("a new Service")
	g.hello("dev.local/hello:2", nil, share(90, "", ""), share(10, "old", "a-00001"))
	g.pass(2 * time.Minute)
	tell("a second revision, and a tag for the first")
	g.mapDomain()
	g.pass(time.Minute)
	tell("a domain")
	g.store.Writes() // how often objects are written on their way to what stands above is chance
	g.set()          // everything is looked at again
	g.pass(15 * time.Minute)
	for _, w := range g.store.Writes() {
		if w.Resource != "events" {
			t.Errorf("nothing changed, and the controller does this: %v", w)
		}
	}
	for _, err := range []error{
		g.user.Ebb.ServingV1beta1().DomainMappings("ns").Delete(context.Background(), mapped, metav1.DeleteOptions{}),
		g.user.Ebb.ServingV1().Services("ns").Delete(context.Background(), "a", metav1.DeleteOptions{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	g.pass(2 * time.Minute)
	tell("deleted")

	fmt.Fprintln(&out, "# watched in all this")
	for _, line := range watched.sorted() {
		fmt.Fprintln(&out, line)
	}
	return out.String()
}

var (
	uids  = regexp.MustCompile(`00000000-0000-0000-0000-\d{12}`)
	times = regexp.MustCompile(`(?m)^.*(creationTimestamp|lastTransitionTime|resourceVersion|uid): .*\n`)
	// The hash of a plan depends on what Ebb took for a change on the way to it.
	hashes = regexp.MustCompile(`(name: K-Network-Hash\n *value: )\w+`)
)

// text returns an object without what differs each time.
func text(t *testing.T, object map[string]any) string {
	out, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	bare := uids.ReplaceAllString(times.ReplaceAllString(string(out), ""), "UID")
	return "---\n" + hashes.ReplaceAllString(bare, "${1}HASH")
}

// watches notes what is watched, with its selectors. Which objects are read besides is chance: a
// cache may have them already.
type watches struct {
	next http.RoundTripper
	mu   sync.Mutex
	of   map[string]bool
}

func (w *watches) RoundTrip(r *http.Request) (*http.Response, error) {
	if query := r.URL.Query(); query.Has("watch") {
		w.mu.Lock()
		w.of[strings.TrimSpace(fmt.Sprintf("%s %s %s", r.URL.Path, query.Get("labelSelector"), query.Get("fieldSelector")))] = true
		w.mu.Unlock()
	}
	return w.next.RoundTrip(r)
}

func (w *watches) sorted() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.of))
}
