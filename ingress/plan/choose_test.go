package plan

import (
	"fmt"
	"strings"
	"testing"
)

// everything is a plan with all that a choice can depend on, and what it is made of.
func everything(t testing.TB) (*Plan, Input) {
	t.Helper()
	in := base(t, nil)
	in.TagHeader, in.Redirect = true, true
	in.Targets = map[string][]Share{
		"":     {{Revision: "a", Percent: 30}, {Revision: "b", Percent: 70}},
		"blue": {{Revision: "c", Percent: 100}},
		"gone": nil,
	}
	in.Local = map[string]bool{"blue": true, "gone": true}
	in.TLS = map[string]string{"hello.ns.example.com": "certificate"}
	in.Async = &Async{Namespace: "knative-serving", UID: "uid", Preferred: true}
	p, err := Make(in)
	if err != nil {
		t.Fatal(err)
	}
	return p, in
}

// fields reads "Name: value; Name: value".
func fields(text string) func(yield func(name, value string) bool) {
	return func(yield func(name, value string) bool) {
		for _, one := range strings.Split(text, "; ") {
			if name, value, ok := strings.Cut(one, ": "); ok && !yield(name, value) {
				return
			}
		}
	}
}

// said says a choice in words: "b, sets [{Knative-Serving-Default-Route true} ...]".
func said(c Choice, ok bool) string {
	switch {
	case !ok:
		return "404"
	case c.Redirect:
		return "to https"
	case c.Backend == nil:
		return "nobody"
	}
	set := ""
	for _, h := range append(append([]Header(nil), c.Rule.Set...), c.Backend.Set...) {
		set += " " + strings.TrimPrefix(h.Name, "Knative-Serving-") + "=" + h.Value
	}
	return c.Backend.Service + set
}

func TestWhichBackendGetsARequest(t *testing.T) {
	const (
		revisionA = "a Default-Route=true Namespace=ns Revision=a"
		revisionB = "b Default-Route=true Namespace=ns Revision=b"
		tagged    = "c Namespace=ns Revision=c"
		courier   = "courier Ebb-Async-Target=ns/hello/uid/hello.ns.svc.cluster.local"
	)
	p, _ := everything(t)
	for _, row := range []struct {
		behaviour string
		host      string
		path      string
		from      Visibility
		tls       bool
		fields    string
		draw      uint64
		want      string
	}{
		{"the first share", "hello.ns", "/", ClusterLocal, false, "", 29, revisionA},
		{"the second share", "hello.ns", "/", ClusterLocal, false, "", 30, revisionB},
		{"draws begin anew", "hello.ns", "/", ClusterLocal, false, "", 1<<40*100 + 29, revisionA},
		{"the second name of a Service", "hello.ns.svc", "/", ClusterLocal, false, "", 0, revisionA},
		{"its whole name, with a port, capitals and a final dot", "Hello.ns.SVC.cluster.local.:8080", "/", ClusterLocal, false, "", 0, revisionA},
		{"plain HTTP where https is wanted", "hello.ns.example.com", "/a", External, false, "", 0, "to https"},
		{"https", "hello.ns.example.com", "/a", External, true, "", 99, revisionB},
		{"a host of the other gateways", "hello.ns", "/", External, false, "", 0, "404"},
		{"a public host at the local gateways", "hello.ns.example.com", "/", ClusterLocal, true, "", 0, "404"},
		{"a tag without a public host", "blue-hello.ns.example.com", "/", External, false, "", 0, "404"},
		{"an unknown host", "other.ns", "/", ClusterLocal, false, "", 0, "404"},
		{"no host", "", "/", ClusterLocal, false, "", 0, "404"},
		{"a request for the whole server", "hello.ns", "*", ClusterLocal, false, "", 0, "404"},
		{"a tag's host", "blue-hello.ns", "/", ClusterLocal, false, "", 7, "c Tag=blue Namespace=ns Revision=c"},
		{"a tag by its header", "hello.ns", "/", ClusterLocal, false, "knative-serving-tag: blue", 7, tagged},
		{"a tag that there is not", "hello.ns", "/", ClusterLocal, false, "Knative-Serving-Tag: red", 0, revisionA},
		{"values are compared with their case", "hello.ns", "/", ClusterLocal, false, "Knative-Serving-Tag: Blue", 0, revisionA},
		{"two tags are none", "hello.ns", "/", ClusterLocal, false, "Knative-Serving-Tag: blue; Knative-Serving-Tag: blue", 0, revisionA},
		{"a target without a revision", "gone-hello.ns", "/", ClusterLocal, false, "", 0, "nobody"},
		{"a call", "hello.ns", "/", ClusterLocal, false, "Prefer: respond-async", 0, courier},
		{"a call counts before a tag", "hello.ns", "/", ClusterLocal, false, "Knative-Serving-Tag: blue; Prefer: respond-async", 0, courier},
		{"a call with more wishes is none", "hello.ns", "/", ClusterLocal, false, "Prefer: respond-async, wait=5", 0, revisionA},
		{"the result of a call", "hello.ns", "/.ebb/calls/1", ClusterLocal, false, "Knative-Serving-Tag: blue", 0, courier},
		{"the results without an end", "hello.ns", "/.ebb/calls", ClusterLocal, false, "", 0, courier},
		{"a path that begins alike", "hello.ns", "/.ebb/callsigns", ClusterLocal, false, "", 0, revisionA},
	} {
		c, ok := p.Choose(Request{Host: row.host, Path: row.path, From: row.from, TLS: row.tls, Fields: fields(row.fields)}, row.draw)
		if got := said(c, ok); got != row.want {
			t.Errorf("%s: got %s, want %s", row.behaviour, got, row.want)
		}
	}
}

// Each revision of a split gets exactly its percentage of all draws.
func TestSharesOfAllDraws(t *testing.T) {
	in := base(t, nil)
	in.Targets[""] = nil
	want := map[string]int{}
	for i := range 16 {
		share := Share{Revision: fmt.Sprintf("r%02d", i), Percent: int64(i)}
		if i == 0 {
			share.Percent = 0 // gets nothing
		} else {
			want[share.Revision] = i
		}
		in.Targets[""] = append(in.Targets[""], share)
	}
	p, err := Make(in)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for draw := range uint64(120) { // 1 + 2 + ... + 15
		c, ok := p.Choose(Request{Host: "hello.ns", Path: "/", From: ClusterLocal, Fields: fields("")}, draw)
		if !ok || c.Backend == nil {
			t.Fatalf("draw %d reaches nobody", draw)
		}
		got[c.Backend.Service]++
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
