package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

func network(t testing.TB, keys map[string]string) settings.Network {
	t.Helper()
	s, err := settings.Parse(map[string]map[string]string{settings.NetworkName: keys})
	if err != nil {
		t.Fatal(err)
	}
	return s.Network
}

func base(t testing.TB, keys map[string]string) Input {
	n := network(t, keys)
	return Input{Namespace: "ns", Name: "hello", Domain: "example.com", ClusterDomain: "cluster.local",
		DomainTemplate: n.DomainTemplate, TagTemplate: n.TagTemplate,
		Targets: map[string][]Share{"": {{Revision: "a", Percent: 100}}}}
}

func TestHosts(t *testing.T) {
	const local = "hello.ns hello.ns.svc hello.ns.svc.cluster.local"
	for _, row := range []struct {
		behaviour string
		keys      map[string]string
		change    func(*Input)
		want      string
	}{
		{"public and local", nil, func(*Input) {}, "external hello.ns.example.com; local " + local},
		{"the domain template decides", map[string]string{"domain-template": "{{.Name}}-{{.Namespace}}.{{.Domain}}"},
			func(*Input) {}, "external hello-ns.example.com; local " + local},
		{"labels and annotations count", map[string]string{"domain-template": `{{.Name}}.{{index .Annotations "zone"}}.{{.Labels.team}}.{{.Domain}}`},
			func(in *Input) {
				in.Annotations = map[string]string{"zone": "eu"}
				in.Labels = map[string]string{"team": "a"}
			}, "external hello.eu.a.example.com; local " + local},
		{"the visibility label", nil, func(in *Input) { in.AllLocal = true }, "local " + local},
		{"no public domain", nil, func(in *Input) { in.Domain = "svc.cluster.local" }, "local " + local},
		{"a tag", nil, func(in *Input) { in.Targets["v1"] = in.Targets[""] },
			"external hello.ns.example.com; local " + local + "; external v1-hello.ns.example.com; " +
				"local v1-hello.ns v1-hello.ns.svc v1-hello.ns.svc.cluster.local"},
		{"a private tag", map[string]string{"tag-template": "{{.Name}}-{{.Tag}}"}, func(in *Input) {
			in.Targets["v1"] = in.Targets[""]
			in.Local = map[string]bool{"v1": true}
		}, "external hello.ns.example.com; local " + local + "; local hello-v1.ns hello-v1.ns.svc hello-v1.ns.svc.cluster.local"},
	} {
		t.Run(row.behaviour, func(t *testing.T) {
			in := base(t, row.keys)
			row.change(&in)
			p, err := Make(in)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, target := range p.Targets {
				got = append(got, string(target.Visibility)+" "+strings.Join(target.Hosts, " "))
			}
			if g := strings.Join(got, "; "); g != row.want {
				t.Errorf("\n got %s\nwant %s", g, row.want)
			}
		})
	}
}

func TestSplits(t *testing.T) {
	for _, row := range []struct {
		behaviour string
		shares    []Share
		want      string
	}{
		{"nothing gets nothing", []Share{{Revision: "a", Percent: 100}, {Revision: "b"}}, "a:80=100"},
		{"shares of one revision are one", []Share{{Revision: "a", Percent: 30}, {Revision: "b", Percent: 50}, {Revision: "a", Percent: 20}}, "a:80=50 b:80=50"},
		{"h2c has its own port", []Share{{Revision: "a", Percent: 1, H2C: true}, {Revision: "b", Percent: 99}}, "a:81=1 b:80=99"},
		{"TLS inside, where the revision is as far", []Share{{Revision: "a", Percent: 1, H2C: true, TLS: true}, {Revision: "b", Percent: 99}}, "a:443=1 b:80=99"},
	} {
		in := base(t, nil)
		in.Targets[""] = row.shares
		p, err := Make(in)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, b := range p.Targets[0].Rules[0].Backends {
			got = append(got, fmt.Sprintf("%s:%d=%d", b.Service, b.Port, b.Percent))
		}
		if g := strings.Join(got, " "); g != row.want {
			t.Errorf("%s: got %s, want %s", row.behaviour, g, row.want)
		}
	}
}

func TestTagHeaderRouting(t *testing.T) {
	in := base(t, nil)
	in.TagHeader = true
	in.Targets["blue"] = []Share{{Revision: "b", Percent: 100}}
	p, err := Make(in)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, target := range p.Targets {
		if target.Visibility != External {
			continue
		}
		for _, r := range target.Rules {
			got = append(got, fmt.Sprintf("%s match=%v set=%v to=%s", target.Name, r.Match, r.Set, r.Backends[0].Service))
		}
	}
	want := []string{
		"hello match=&{Knative-Serving-Tag blue} set=[] to=b",
		"hello match=<nil> set=[{Knative-Serving-Default-Route true}] to=a",
		"blue-hello match=<nil> set=[{Knative-Serving-Tag blue}] to=b",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A sender can neither pass a request by a tag for one of the split, nor the other way round.
func TestAJudgeIsToldWhichRequestsCameByATag(t *testing.T) {
	for _, byHeader := range []bool{false, true} {
		in := base(t, nil)
		in.Judged, in.TagHeader = true, byHeader
		in.Targets["blue"] = []Share{{Revision: "b", Percent: 100}}
		in.Async = &Async{Namespace: "knative-serving", UID: "u"}
		p, err := Make(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range p.Targets {
			for _, r := range target.Rules {
				if r.Path != "" {
					continue // to the courier
				}
				// What a pod gets of a client that sets both headers.
				got := map[string]string{wire.HeaderTag: "blue", wire.HeaderDefaultRoute: "true"}
				for _, h := range r.Set {
					got[h.Name] = h.Value
				}
				for _, name := range r.Remove {
					delete(got, name)
				}
				byTag := got[wire.HeaderTag] != "" && got[wire.HeaderDefaultRoute] != "true"
				if want := target.Tag != "" || r.Match != nil; byTag != want {
					t.Errorf("tags by header %v, %s, match %v: the pod sees %v", byHeader, target.Hosts[0], r.Match, got)
				}
				if !slices.Contains(r.Remove, wire.HeaderAsyncTarget) {
					t.Errorf("%s: %v are removed", target.Hosts[0], r.Remove)
				}
			}
		}
	}
}

func TestWhatNoGatewayCanDoIsSaid(t *testing.T) {
	for _, row := range []struct {
		behaviour string
		keys      map[string]string
		change    func(*Input)
		config    bool // a ConfigError: the settings are at fault
		says      string
	}{
		{"a label with a character that hosts cannot have", map[string]string{"domain-template": "{{.Name}}.{{.Labels.owner}}.{{.Domain}}"},
			func(in *Input) { in.Labels = map[string]string{"owner": "A_b"} }, true, "not a host name"},
		{"a label that is missing", map[string]string{"domain-template": "{{.Name}}.{{.Labels.owner}}.{{.Domain}}"},
			func(*Input) {}, true, "not a host name"},
		{"a tag too long for a label", nil, func(in *Input) { in.Targets[strings.Repeat("x", 60)] = nil }, true, "at most 63"},
		{"two tags in one name", map[string]string{"tag-template": "{{.Name}}-tag"},
			func(in *Input) { in.Targets["a"], in.Targets["b"] = nil, nil }, true, "both tag"},
		{"two targets with one public host", map[string]string{"domain-template": "{{.Namespace}}.{{.Domain}}"},
			func(in *Input) { in.Targets["a"] = nil }, true, `both target "hello" and target "a-hello" of Route "hello" have the host "ns.example.com"`},
		{"two targets with one public host by an annotation", map[string]string{"domain-template": `{{or .Annotations.host .Name}}.{{.Domain}}`},
			func(in *Input) { in.Targets["a"], in.Annotations = nil, map[string]string{"host": "shop"} }, true, `have the host "shop.example.com"`},
		{"a public host that is another target's inside the cluster", map[string]string{"domain-template": "a-hello.{{.Namespace}}.svc.cluster.local"},
			func(in *Input) { in.Targets["a"], in.Local = nil, map[string]bool{"a": true} }, true, `both target "hello" and target "a-hello"`},
		{"a public host that is the target's inside the cluster", map[string]string{"domain-template": "{{.Name}}.{{.Namespace}}.svc.{{.Domain}}"},
			func(in *Input) { in.Domain = "cluster.local" }, true, "its host inside the cluster"},
		{"more revisions than one rule holds", nil, func(in *Input) {
			for i := range 17 {
				in.Targets[""] = append(in.Targets[""], Share{Revision: fmt.Sprintf("r%d", i), Percent: 1})
			}
		}, false, "at most 16"},
	} {
		in := base(t, row.keys)
		row.change(&in)
		_, err := Make(in)
		if err == nil || !strings.Contains(err.Error(), row.says) || errors.As(err, new(*ConfigError)) != row.config {
			t.Errorf("%s: got %v, want %q (settings at fault: %v)", row.behaviour, err, row.says, row.config)
		}
	}
}

func TestHashTellsPlansApart(t *testing.T) {
	in := base(t, nil)
	one, _ := Make(in)
	same, _ := Make(base(t, nil))
	in.Targets = map[string][]Share{"": {{Revision: "a", Percent: 99}, {Revision: "b", Percent: 1}}}
	other, _ := Make(in)
	if one.Hash() != same.Hash() || one.Hash() == other.Hash() || len(one.Hash()) != 16 {
		t.Errorf("hashes %s %s %s", one.Hash(), same.Hash(), other.Hash())
	}
}

func FuzzMake(f *testing.F) {
	templates := []string{"{{.Name}}.{{.Namespace}}.{{.Domain}}", "{{.Namespace}}.{{.Domain}}", "{{.Name}}.{{.Domain}}"}
	f.Add("hello", "ns", "blue", "example.com", "rev", int64(50), uint(0))
	f.Add("hello", "ns", "blue", "example.com", "rev", int64(50), uint(1))
	f.Add("hello", "ns", "blue", "ns.svc.cluster.local", "rev", int64(50), uint(2))
	f.Fuzz(func(t *testing.T, name, namespace, tag, domain, revision string, percent int64, template uint) {
		in := base(t, map[string]string{"domain-template": templates[template%uint(len(templates))]})
		in.Name, in.Namespace, in.Domain = name, namespace, domain
		in.Targets = map[string][]Share{"": {{Revision: revision, Percent: percent}}, tag: {{Revision: revision, Percent: 100, H2C: true}}}
		p, err := Make(in)
		if err != nil {
			return
		}
		again, _ := Make(in)
		if p.Hash() != again.Hash() {
			t.Fatal("the same input made two plans")
		}
		seen := map[string]bool{}
		for _, target := range p.Targets {
			for _, host := range target.Hosts {
				if seen[host] {
					t.Fatalf("two targets have host %q", host)
				}
				seen[host] = true
			}
			if target.Visibility == External && !hostName.MatchString(target.Hosts[0]) {
				t.Fatalf("%q is no host", target.Hosts[0])
			}
		}
	})
}
