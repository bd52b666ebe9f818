package plan

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// all gives every tag a rank.
func all(in *Input) map[string]int {
	ranks := map[string]int{}
	for tag := range in.Targets {
		ranks[tag] = 0
	}
	return ranks
}

func compact(t testing.TB, in *Input, ranks map[string]int) *Compact {
	t.Helper()
	p, err := Make(*in)
	if err != nil {
		t.Fatal(err)
	}
	c, err := in.Compact(p, "0b8f-uid", ranks)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func read(t testing.TB, text string) *Plan {
	t.Helper()
	c, err := ParseCompact(text)
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	p, err := c.Plan("ns", "hello", "cluster.local")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Activators need no names of certificates; all else of a plan comes back.
func TestACompactPlanIsThePlan(t *testing.T) {
	for name, change := range map[string]func(*Input){
		"everything":               func(*Input) {},
		"no calls":                 func(in *Input) { in.Async = nil },
		"calls only":               func(in *Input) { in.Async.Preferred, in.Async.Always = false, true },
		"judged":                   func(in *Input) { in.Judged = true },
		"judged, without a header": func(in *Input) { in.Judged, in.TagHeader = true, false },
		"local":                    func(in *Input) { in.AllLocal = true },
		"h2c and TLS":              func(in *Input) { in.Targets[""][0].H2C, in.Targets[""][1].TLS = true, true },
	} {
		t.Run(name, func(t *testing.T) {
			_, in := everything(t)
			change(&in)
			want, err := Make(in)
			if err != nil {
				t.Fatal(err)
			}
			c, err := in.Compact(want, "uid", all(&in))
			if err != nil {
				t.Fatal(err)
			}
			if c.Hash != want.Hash() {
				t.Errorf("the hash is %s, want %s", c.Hash, want.Hash())
			}
			for i := range want.Targets {
				want.Targets[i].TLSSecret = ""
			}
			if got := read(t, c.String()); got.Hash() != want.Hash() {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

// A target whose hosts gateways serve has no hosts here, and is still reached by its header.
func TestATargetApart(t *testing.T) {
	in := base(t, nil)
	in.Targets["v1"] = []Share{{Revision: "b", Percent: 100}}
	in.Targets["v2"] = []Share{{Revision: "c", Percent: 100}}
	said := func() string {
		out := ""
		for _, of := range read(t, compact(t, &in, map[string]int{"": 1, "v1": 0}).String()).Targets {
			out += fmt.Sprintf("%s %s %d; ", of.Hosts[0], of.Visibility, len(of.Rules))
		}
		return out
	}
	if got, want := said(), "hello.ns.example.com external 1; hello.ns local 1; v1-hello.ns.example.com external 1; v1-hello.ns local 1; "; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	in.TagHeader = true
	if got, want := said(), "hello.ns.example.com external 3; hello.ns local 3; v1-hello.ns.example.com external 1; v1-hello.ns local 1; "; got != want {
		t.Errorf("with a header: got %s, want %s", got, want)
	}
	c := compact(t, &in, map[string]int{"": 1, "v1": 0})
	if len(c.Targets) != 3 || c.Targets[0].Rank != 1 || !c.Targets[2].Apart || c.Targets[2].Host != "" {
		t.Errorf("got %s", c)
	}
}

// The sizes that decision 20 states.
func TestHowLongACompactPlanIs(t *testing.T) {
	const uid = "0b8f5a0e-6a3c-4f5e-9d0a-0123456789ab"
	long := func(revisions, tags int) int {
		in := base(t, nil)
		in.TagHeader = tags > 0
		in.Targets[""] = nil
		for i := range revisions {
			percent := int64(6)
			if i == 0 {
				percent = 100 - int64(revisions-1)*6
			}
			in.Targets[""] = append(in.Targets[""], Share{Revision: fmt.Sprintf("hello-%05d", i+1), Percent: percent})
		}
		for i := range tags {
			in.Targets[fmt.Sprintf("t%d", i)] = []Share{{Revision: fmt.Sprintf("hello-%05d", i+1), Percent: 100}}
		}
		p, err := Make(in)
		if err != nil {
			t.Fatal(err)
		}
		c, err := in.Compact(p, uid, all(&in))
		if err != nil {
			t.Fatal(err)
		}
		c.At = time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC).UnixMilli()
		return len(c.String())
	}
	got := fmt.Sprint(long(1, 0), long(2, 2), long(16, 50))
	if want := "164 402 5406"; got != want {
		t.Errorf("%s bytes, and decision 20 says %s", got, want)
	}
}

func TestAPlanThatIsTooLong(t *testing.T) {
	in := base(t, nil)
	for i := range maxCompactTargets {
		in.Targets[fmt.Sprintf("t%d", i)] = in.Targets[""]
	}
	p, err := Make(in)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Compact(p, "uid", all(&in)); !errors.Is(err, ErrTooLong) {
		t.Errorf("one target too many: %v", err)
	}
	if _, err := ParseCompact(`{"uid":"` + strings.Repeat("x", MaxCompact) + `"}`); !errors.Is(err, ErrTooLong) {
		t.Errorf("a long text: %v", err)
	}
}

func TestWhatIsNoCompactPlan(t *testing.T) {
	in := base(t, nil)
	in.Targets["v1"] = in.Targets[""]
	in.Async = &Async{Namespace: "knative-serving", UID: "uid", Always: true}
	good := compact(t, &in, all(&in)).String()
	read(t, good)
	for _, row := range []struct{ behaviour, replace, by, says string }{
		{"nothing", good, "", "EOF"},
		{"no object", good, "[]", "cannot unmarshal"},
		{"two of them", good, good + good, "something stands behind it"},
		{"a field of a later version", `"uid"`, `"mirror":"x","uid"`, `unknown field "mirror"`},
		{"a field of a later version in a target", `"to"`, `"mirror":"x","to"`, `unknown field "mirror"`},
		{"no UID", `"0b8f-uid"`, `""`, `"" is no UID`},
		{"a UID with a line", `"0b8f-uid"`, `"a\r\nb"`, `is no UID`},
		{"no hash", `"hash":"`, `"hash":"x`, "is no hash"},
		{"a courier somewhere", `"knative-serving"`, `"a/b"`, `"a/b" is no namespace`},
		{"a tag that is none", `"tag":"v1"`, `"tag":"v1\r\n"`, "it is no label"},
		{"a tag twice", `"tag":"v1",`, ``, `tag "" stands there twice`},
		{"a name that is none", `"name":"v1-hello"`, `"name":"v1.hello"`, `"v1.hello" is no name`},
		{"a wildcard", `"host":"hello.`, `"host":"*.`, "is no host"},
		{"a rank below all", `"host"`, `"rank":-1,"host"`, "-1 is no rank"},
		{"no revision", `"rev":"a"`, `"rev":""`, `of revision ""`},
		{"less than nothing", `"rev":"a"`, `"rev":"a","pct":-1`, `-1% is no share of revision "a"`},
		{"more than all", `"rev":"a"`, `"rev":"a","pct":101`, `101% is no share of revision "a"`},
		{"a revision twice", `{"rev":"a"}`, `{"rev":"a"},{"rev":"a"}`, `revision "a" stands there twice`},
	} {
		text := strings.Replace(good, row.replace, row.by, 1)
		if _, err := ParseCompact(text); err == nil || !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: got %v, want %q", row.behaviour, err, row.says)
		}
	}
}

func FuzzParseCompact(f *testing.F) {
	_, in := everything(f)
	f.Add(compact(f, &in, all(&in)).String())
	in.Async = nil
	f.Add(compact(f, &in, map[string]int{"blue": 2}).String())
	f.Add(`{"uid":"u","hash":"0123456789abcdef","targets":[{"to":[{"rev":"a","pct":100}]},{"tag":"b","apart":true,"to":null}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCompact(text)
		if err != nil {
			return
		}
		again, err := ParseCompact(c.String())
		if err != nil || !reflect.DeepEqual(c, again) {
			t.Fatalf("%s comes back as %v, %v", c, again, err)
		}
		p, err := c.Plan("ns", "hello", "cluster.local")
		if err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		for i := range p.Targets {
			of := &p.Targets[i]
			r := Request{Host: of.Hosts[0], Path: "/", From: of.Visibility, TLS: true, Fields: fields("")}
			if _, ok := p.Choose(r, 1); !ok {
				t.Errorf("%s: nobody knows %s", c, of.Hosts[0])
			}
		}
	})
}
