package call

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/wire"
)

// asksForIt reports whether the values of the header Prefer ask for an asynchronous response.
func asksForIt(values []string) bool {
	return slices.ContainsFunc(values, func(value string) bool { return slices.ContainsFunc(preferences(value), isRespondAsync) })
}

func TestRespondAsyncIsFoundAmongOtherPreferences(t *testing.T) {
	for value, want := range map[string]bool{
		"respond-async": true, "Respond-Async": true, "wait=10, respond-async": true, "respond-async; foo=bar": true, `respond-async=""`: true,
		"": false, "wait=10": false, "respond-asynchronously": false, `foo="respond-async, x"`: false, `foo="a\", respond-async", bar`: false,
		"return=minimal;respond-async": false,
	} {
		if got := asksForIt([]string{value}); got != want {
			t.Errorf("%q: %v", value, got)
		}
	}
}

func TestTheServiceIsNotAskedToRespondLater(t *testing.T) {
	h := http.Header{"Prefer": {"wait=10, respond-async", "respond-async", "return=minimal"}, "Connection": {"close, X-Once"}, "X-Once": {"a"},
		wire.HeaderAsyncTarget: {"a/b/c/d"}, wire.HeaderAsyncDelivery: {"x"}, wire.HeaderHops: {"3"}, "Authorization": {"Bearer t"}}
	want := http.Header{"Prefer": {"wait=10", "return=minimal"}, "Authorization": {"Bearer t"}}
	if got := KeptRequest(h); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestAKeyMeansOneCallOfOneHostAndSender(t *testing.T) {
	secret, s := []byte("secret"), Service{"ns", "svc"}
	anna := http.Header{"Authorization": {"Bearer anna"}, "X-Request-Id": {"1"}}
	one := KeyedID(secret, s, "host", "key", anna)
	if one != KeyedID(secret, s, "host", "key", http.Header{"Authorization": {"Bearer anna"}, "X-Request-Id": {"2"}}) || !ValidID(one) {
		t.Errorf("the ID %q is not stable", one)
	}
	for what, other := range map[string]string{
		"another secret": KeyedID([]byte("other"), s, "host", "key", anna), "another host": KeyedID(secret, s, "host2", "key", anna),
		"another service": KeyedID(secret, Service{"ns", "svc2"}, "host", "key", anna), "parts moved": KeyedID(secret, s, "hostk", "ey", anna),
		"another sender": KeyedID(secret, s, "host", "key", http.Header{"Authorization": {"Bearer bert"}}), "nobody": KeyedID(secret, s, "host", "key", nil),
		"another session": KeyedID(secret, s, "host", "key", http.Header{"Cookie": {"Bearer anna"}}),
		"two tokens":      KeyedID(secret, s, "host", "key", http.Header{"Authorization": {"Bearer", "anna"}}),
	} {
		if other == one {
			t.Errorf("%s has the same ID", what)
		}
	}
}

func TestOnlyTheCourierGivesTicketsOut(t *testing.T) {
	secret, id := []byte("secret"), NewID()
	good := Ticket(secret, id)
	if got, ok := OfTicket(secret, good); !ok || got != id {
		t.Errorf("%q is of %q, %v", good, got, ok)
	}
	for what, ticket := range map[string]string{"the ID alone": id, "an empty proof": id + ".", "of another call": Ticket(secret, NewID())[:27] + good[27:],
		"of another secret": Ticket([]byte("other"), id), "longer": good + "a", "nothing": ""} {
		if _, ok := OfTicket(secret, ticket); ok {
			t.Errorf("%s is a ticket", what)
		}
	}
}

func TestBackoffIsBoundedAndFollowsRetryAfter(t *testing.T) {
	b := Backoff{time.Second, time.Minute}
	for _, c := range []struct {
		n      int
		asked  time.Duration
		random float64
		want   time.Duration
	}{
		{1, 0, 1, time.Second}, {1, 0, 0, time.Second / 2}, {2, 0, 1, 2 * time.Second}, {7, 0, 1, time.Minute}, {1000, 0, 1, time.Minute},
		{0, 0, 1, time.Second}, {1, 30 * time.Second, 1, 30 * time.Second}, {1, time.Hour, 1, time.Minute},
	} {
		if got := b.After(c.n, c.asked, c.random); got != c.want {
			t.Errorf("after attempt %d, asked for %v: %v, want %v", c.n, c.asked, got, c.want)
		}
	}
}

func TestOnlyWhatMayPassIsTriedAgain(t *testing.T) {
	for status, want := range map[int]bool{200: false, 302: false, 400: false, 404: false, 408: true, 429: true, 500: true, 501: false, 503: true, 508: false} {
		if got := MayRepeat(status); got != want {
			t.Errorf("%d: %v", status, got)
		}
	}
}

func FuzzPrefer(f *testing.F) {
	for _, s := range []string{"respond-async", `a="b\"c,respond-async", respond-async;x`, ",,;=", `"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		kept := WithoutRespondAsync([]string{value})
		if asksForIt(kept) {
			t.Errorf("%q still asks: %q", value, kept)
		}
		if !asksForIt([]string{value}) && len(preferences(value)) != len(preferences(strings.Join(kept, ", "))) {
			t.Errorf("%q lost a preference: %q", value, kept)
		}
	})
}

func FuzzID(f *testing.F) {
	f.Add(NewID())
	f.Add("../../secret")
	f.Fuzz(func(t *testing.T, text string) {
		if ValidID(text) && strings.ContainsAny(text, "./*> \r\n") {
			t.Errorf("%q could be part of another subject", text)
		}
	})
}

func TestEveryByteOfHeadersAndPathIsKept(t *testing.T) {
	var all []byte
	for b := range 256 {
		all = append(all, byte(b))
	}
	for _, value := range []string{"caf\xe9", "caf\u00e9", "\ufffd", string(all[128:]), string(all[1:])} {
		h := http.Header{"X-Name": {value, "plain"}}
		c, err := Decode(Encode(&Call{Service: Service{"ns", "svc"}, ID: NewID(), Host: "h", Method: "GET", Path: "/" + value, Header: h}))
		if err != nil || !reflect.DeepEqual(c.Header, h) || c.Path != "/"+value {
			t.Errorf("%q became %+v, %v", value, c, err)
		}
		r, err := DecodeRecord(Encode(&Record{Header: h}))
		if err != nil || !reflect.DeepEqual(r.Header, h) {
			t.Errorf("%q became %+v, %v", value, r, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	c := &Call{Service: Service{"ns", "svc"}, ID: NewID(), Host: "h", Asked: "a", Method: "POST", Path: "/?a=b", Header: http.Header{"A": {"b"}}}
	f.Add(Encode(c))
	f.Add(`{"id":"x"}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Decode(text)
		if err != nil {
			return
		}
		again, err := Decode(Encode(c))
		if err != nil || !again.Accepted.Equal(c.Accepted) || again.ID != c.ID || again.Path != c.Path {
			t.Errorf("%q: %v, %v", text, again, err)
		}
	})
}
