package gatewayapi

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/ingress/plan"
)

// behind is an HTTPRoute while plans come and go, and a gateway pod that is behind. The test visits
// every order of what can happen.
type behind struct {
	log  [12]int16 // the HTTPRoute as it was after each write that the pod has not passed
	n    int8      // the newest of them
	pod  int8      // the one whose rules the pod has
	sent int8      // the one whose backends the pod has
	// knows says which backends are ready there: a gateway may use a rule before they are.
	knows   uint8
	plan    int8
	changes int8 // how often the plan may still change

	asked  int16
	passed uint8 // the probes of what is asked that have succeeded
}

// question is what the prober asks: the backends in probes' headers, and the hash.
type question struct {
	hash   string
	values []string
}

// lab has what worlds are made of.
type lab struct {
	plans     [][]plan.Share
	want      [][]*gatewayv1.HTTPRoute
	forms     []*gatewayv1.HTTPRoute
	ids       map[string]int16
	questions []question
}

var backendNames = []string{"hello-00001:80", "hello-00002:80", "hello-00003:80"}

// id returns the number of an HTTPRoute's content.
func (l *lab) id(h *gatewayv1.HTTPRoute) int16 {
	raw, err := json.Marshal(struct {
		G int64
		S gatewayv1.HTTPRouteSpec
	}{h.Generation, h.Spec})
	if err != nil {
		panic(err)
	}
	if id, ok := l.ids[string(raw)]; ok {
		return id
	}
	l.ids[string(raw)] = int16(len(l.forms))
	l.forms = append(l.forms, h)
	return int16(len(l.forms) - 1)
}

func (l *lab) names(form int16) (out uint8) {
	for one := range named(l.forms[form].Spec.Rules) {
		out |= 1 << slices.Index(backendNames, one)
	}
	return out
}

// main returns what the requests of users meet in an HTTPRoute.
func (l *lab) main(form int16) gatewayv1.HTTPRouteRule {
	rules := l.forms[form].Spec.Rules
	return rules[slices.IndexFunc(rules, func(r gatewayv1.HTTPRouteRule) bool { return !isSpare(r) })]
}

func (l *lab) now(w *behind) *gatewayv1.HTTPRoute { return l.forms[w.log[w.n]] }

// write is one write of the HTTPRoute, if it changes anything.
func (l *lab) write(w *behind, next *gatewayv1.HTTPRoute) bool {
	next = next.DeepCopy()
	next.Generation = l.now(w).Generation
	if l.id(next) == w.log[w.n] {
		return false
	}
	next.Generation++
	w.n++
	w.log[w.n] = l.id(next)
	return true
}

// ask reports whether the pod has answered.
func (l *lab) ask(w *behind, q question) bool {
	at := slices.IndexFunc(l.questions, func(o question) bool { return o.hash == q.hash && slices.Equal(o.values, q.values) })
	if at < 0 {
		at = len(l.questions)
		l.questions = append(l.questions, q)
	}
	if w.asked != int16(at) {
		w.asked, w.passed = int16(at), 0
	}
	return w.passed == 1<<len(q.values)-1
}

// follow is what the reconciler of Routes does.
func (l *lab) follow(w *behind) {
	want := l.want[w.plan]
	have := byName([]*gatewayv1.HTTPRoute{l.now(w)})
	prepared := fmt.Sprintf("%d prepared", w.plan)
	if first, values := Prepare(have, want, prepared); len(first) > 0 {
		l.write(w, first[0])
		if !l.ask(w, question{prepared, values[want[0].Name]}) {
			return
		}
	}
	second, retained := Retain(have, want)
	if l.write(w, second[0]) {
		w.asked = -1
		return
	}
	if l.ask(w, question{fmt.Sprint(w.plan), []string{""}}) && retained {
		l.write(w, want[0])
	}
}

// answers reports whether a probe of the pod succeeds.
func (l *lab) answers(w *behind, value, hash string) bool {
	rule := l.main(w.log[w.pod])
	for _, r := range l.forms[w.log[w.pod]].Spec.Rules {
		if isSpare(r) && string(r.Matches[0].Headers[0].Value) == value {
			rule = r
			break
		}
	}
	if hashOf(rule.Filters) != hash {
		return false
	}
	for one := range strings.SplitSeq(key(rule), ",") {
		if w.knows&(1<<slices.Index(backendNames, one)) != 0 {
			return true
		}
	}
	return false
}

type event struct {
	name   string
	happen func(w *behind)
}

func (l *lab) events(w *behind) (out []event) {
	can := func(name string, is bool, happen func(w *behind)) {
		if is {
			out = append(out, event{name, happen})
		}
	}
	can("controller", true, l.follow)
	for to := w.sent + 1; to <= w.n; to++ {
		can(fmt.Sprintf("gateway gets backends of write %d", to), w.pod == w.sent, func(w *behind) {
			w.sent = to
			w.knows &= l.names(w.log[to])
		})
	}
	can("gateway gets rules", w.pod < w.sent, func(w *behind) {
		w.pod = w.sent
		copy(w.log[:], w.log[w.pod:w.n+1])
		for i := range w.pod {
			w.log[w.n-i] = 0
		}
		w.n -= w.pod
		w.pod, w.sent = 0, 0
	})
	for i, name := range backendNames {
		can("gateway knows "+name, w.knows&(1<<i) == 0 && l.names(w.log[w.sent])&(1<<i) != 0, func(w *behind) { w.knows |= 1 << i })
	}
	if w.asked >= 0 {
		for i, value := range l.questions[w.asked].values {
			can(fmt.Sprintf("gateway answers probe %d", i), w.passed&(1<<i) == 0 && l.answers(w, value, l.questions[w.asked].hash), func(w *behind) { w.passed |= 1 << i })
		}
	}
	for p := range l.plans {
		can("plan "+rulesOf(l.want[p]), w.changes > 0 && p != int(w.plan), func(w *behind) { w.changes--; w.plan = int8(p) })
	}
	return out
}

// lost says which backend the pod does not know that requests need.
func (l *lab) lost(w *behind) string {
	for one := range strings.SplitSeq(key(l.main(w.log[w.pod])), ",") {
		if w.knows&(1<<slices.Index(backendNames, one)) == 0 {
			return one
		}
	}
	return ""
}

// Whatever plans follow each other while a gateway pod is behind, it knows the backends of its
// rules.
func TestAGatewayThatIsBehindKnowsItsBackends(t *testing.T) {
	a, b, c := all("hello-00001"), all("hello-00002"), all("hello-00003")
	half := func(of plan.Share) plan.Share { of.Percent = 50; return of }
	for name, plans := range map[string][][]plan.Share{
		"two":   {{a}, {b}},
		"three": {{a}, {b}, {c}},
		"split": {{a}, {half(a), half(b)}, {b}},
		"wide":  {{half(a), half(b)}, {half(a), half(b), half(c)}, {c}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &lab{plans: plans, ids: map[string]int16{}}
			for i, p := range plans {
				want := routesTo(t, func(*plan.Input) {}, p...)
				for _, rule := range want[0].Spec.Rules {
					setHash(rule.Filters, fmt.Sprint(i))
				}
				l.want = append(l.want, want)
			}
			first := behind{changes: 4, asked: -1}
			first.log[0] = l.id(l.want[0][0])
			first.knows = l.names(first.log[0])
			type origin struct {
				from behind
				name string
			}
			seen := map[behind]origin{first: {}}
			for todo := []behind{first}; len(todo) > 0; todo = todo[1:] {
				w := todo[0]
				if what := l.lost(&w); what != "" {
					story := []string{"it does not know " + what}
					for w != first {
						var writes []string
						for i := range w.n + 1 {
							writes = append(writes, rulesOf([]*gatewayv1.HTTPRoute{l.forms[w.log[i]]}))
						}
						o := seen[w]
						story = append(story, fmt.Sprintf("%s  [%s]", o.name, strings.Join(writes, " => ")))
						w = o.from
					}
					slices.Reverse(story)
					t.Fatal(strings.Join(story, "\n"))
				}
				for _, e := range l.events(&w) {
					next := w
					e.happen(&next)
					if _, was := seen[next]; !was {
						seen[next] = origin{w, e.name}
						todo = append(todo, next)
					}
				}
			}
			t.Logf("%d worlds", len(seen))
		})
	}
}
