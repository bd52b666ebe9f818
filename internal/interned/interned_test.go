package interned

import (
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

type object struct {
	Name   string
	Long   string
	Labels map[string]string
	Inner  []inner
	Next   *object
	Bytes  []byte
	Any    map[string]any
	At     time.Time
	hidden string
}

type inner struct{ Reason string }

func example() *object {
	fresh := func(s string) string { return string([]byte(s)) }
	return &object{Name: fresh("hello"), Long: strings.Repeat("x", 200), Labels: map[string]string{fresh("a key"): fresh("hello"), "": ""}, Inner: []inner{{fresh("Deploying")}},
		Next: &object{Name: fresh("hello")}, Bytes: []byte("hello"), Any: map[string]any{"a": "b"}, At: time.Unix(1, 0), hidden: fresh("hello")}
}

func TestObjectsReadTheSameAndShareTheirStrings(t *testing.T) {
	one, two := example(), example()
	Object(example()) // maps are remembered that come twice
	Object(one)
	Object(two)
	if diff := cmp.Diff(example(), one, cmp.AllowUnexported(object{})); diff != "" {
		t.Errorf("it is another object: %s", diff)
	}
	same := func(what, a, b string) {
		if unsafe.StringData(a) != unsafe.StringData(b) {
			t.Errorf("two copies of %s", what)
		}
	}
	same("a field", one.Name, two.Name)
	same("a field and another object's", one.Name, two.Next.Name)
	same("a value", one.Name, two.Labels["a key"])
	same("a field in a list", one.Inner[0].Reason, two.Inner[0].Reason)
	for a := range one.Labels {
		for b := range two.Labels {
			if a == b && a != "" {
				same("a key", a, b)
			}
		}
	}
	if reflect.ValueOf(one.Labels).Pointer() != reflect.ValueOf(two.Labels).Pointer() {
		t.Error("two copies of a map")
	}
	Object((*object)(nil))
	Object(nil)
}

func TestFewMapsAreRemembered(t *testing.T) {
	of := func(key, value string) map[string]string {
		o := &object{Labels: map[string]string{key: value}}
		Object(o)
		return o.Labels
	}
	for i := range 6 * maxMaps {
		if m := of("number", strconv.Itoa(i/2)); len(m) != 1 || m["number"] != strconv.Itoa(i/2) {
			t.Fatalf("%d became %v", i/2, m)
		}
	}
	long := strings.Repeat("x", 1<<10)
	if m := of("a", long); m["a"] != long {
		t.Error("a long value is another")
	}
	for range 2 {
		of("a\x00b", "c")
	}
	// Nothing in a text makes two maps equal.
	if m := of("a\x00b", "c"); m["a\x00b"] != "c" {
		t.Errorf("it became %v", m)
	}
	if m := of("a", "b\x00c"); m["a"] != "b\x00c" {
		t.Errorf("it became %v", m)
	}
	if len(known) > maxMaps {
		t.Errorf("%d maps are remembered", len(known))
	}
}

func TestEqualValuesAreOne(t *testing.T) {
	var few Few[*inner]
	first := few.Same(&inner{"0"})
	for i := range 100 {
		if v := few.Same(&inner{strconv.Itoa(i % 10)}); v.Reason != strconv.Itoa(i%10) || i%10 == 0 && v != first {
			t.Fatalf("%d became %p %+v, the first was %p", i, v, v, first)
		}
	}
	for i := range 100 { // more than are known
		if v := few.Same(&inner{strconv.Itoa(i)}); v.Reason != strconv.Itoa(i) {
			t.Fatalf("%d became %+v", i, v)
		}
	}
}

func TestEqualListsAreOneWhileSomebodyHasThem(t *testing.T) {
	var lists Lists[object]
	first := lists.Same([]object{*example()})
	if second := lists.Same([]object{*example()}); &second[0] != &first[0] || second[0].Next.Name != "hello" {
		t.Error("there are two equal lists")
	}
	if other := lists.Same([]object{*example(), *example()}); len(other) != 2 || &other[0] == &first[0] {
		t.Errorf("another list became %+v", other)
	}
	if again := lists.Same(first); &again[0] != &first[0] {
		t.Error("what is shared became another")
	}
	if none := lists.Same(nil); none != nil {
		t.Errorf("none became %+v", none)
	}
	runtime.KeepAlive(first)
	for i := range 20 * maxMaps { // nobody keeps these
		if l := lists.Same([]object{{Name: strconv.Itoa(i)}}); l[0].Name != strconv.Itoa(i) {
			t.Fatalf("%d became %+v", i, l)
		}
		if i%maxMaps == 0 {
			runtime.GC()
		}
	}
	if n := len(lists.known); n > 6*maxMaps {
		t.Errorf("%d lists are known that nobody has", n)
	}
}

// Informers show their first objects twice to who trims them, and what is shared has readers by
// then. A list that reads the same as JSON does not take its place.
func TestASharedListStaysTheSharedOne(t *testing.T) {
	type element struct {
		Name  string
		Empty []string `json:",omitempty"`
	}
	var lists Lists[element]
	one, other := lists.Same([]element{{Name: "a"}}), lists.Same([]element{{Name: "a", Empty: []string{}}})
	if one[0].Empty != nil || other[0].Empty == nil {
		t.Error("one list became the other")
	}
	read := make(chan bool)
	go func() { read <- one[0].Name == "a" }()
	if again := lists.Same(one); &again[0] != &one[0] {
		t.Error("what is shared became another")
	}
	if next := lists.Same([]element{{Name: "a"}}); !<-read || &next[0] != &one[0] {
		t.Error("a list of the same JSON took the place of the shared one")
	}
	runtime.KeepAlive(other)
}
