package wire

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	oldKey, newKey = []byte("the old key"), []byte("the new key")
	now            = Keys{Current: newKey, Accepted: [][]byte{newKey, oldKey}}
)

func message(t *testing.T, token string, change func(*http.Request)) *http.Request {
	t.Helper()
	r := httptest.NewRequest("POST", "http://autoscaler:8080/stats?x=1", strings.NewReader("body"))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("body")), nil }
	if err := new(Signer).Sign(r, token); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	return r
}

func TestASignatureIsOfOneSenderAndOneMessage(t *testing.T) {
	token := now.Token("default", "hello-00001")
	part := func(n int, text string) func(*http.Request) {
		return func(r *http.Request) {
			parts := strings.Split(r.Header.Get("Authorization"), " ")
			parts[n] = text
			r.Header.Set("Authorization", strings.Join(parts, " "))
		}
	}
	for behaviour, c := range map[string]struct {
		token  string
		change func(*http.Request)
		body   string
		valid  bool
	}{
		"the message as it was signed": {token, nil, "body", true},
		"signed with the previous key": {Token(oldKey, "default", "hello-00001"), nil, "body", true},
		"another key":                  {Token([]byte("x"), "default", "hello-00001"), nil, "body", false},
		"no key at all":                {Token(nil, "default", "hello-00001"), nil, "body", false},
		"another revision":             {now.Token("default", "hello-00002"), nil, "body", false},
		"another namespace":            {now.Token("other", "hello-00001"), nil, "body", false},
		"another body":                 {token, nil, "bodY", false},
		"another method":               {token, func(r *http.Request) { r.Method = "PUT" }, "body", false},
		"another path":                 {token, func(r *http.Request) { r.URL.Path = "/other" }, "body", false},
		"another query":                {token, func(r *http.Request) { r.URL.RawQuery = "x=2" }, "body", false},
		"another receiver":             {token, func(r *http.Request) { r.Host = "elsewhere:8080" }, "body", false},
		"another time":                 {token, part(1, "1"), "body", false},
		"another nonce":                {token, part(2, strings.Repeat("0", 32)), "body", false},
		"another body's hash":          {token, part(3, strings.Repeat("0", 64)), "body", false},
		"another signature":            {token, part(4, strings.Repeat("0", 64)), "body", false},
		"none":                         {token, part(4, ""), "body", false},
		"a time that is no number":     {token, part(1, "now"), "body", false},
		"a nonce that is too long":     {token, part(2, strings.Repeat("0", 33)), "body", false},
		"no Authorization":             {token, func(r *http.Request) { r.Header.Del("Authorization") }, "body", false},
		"the token of a sender of 0.1": {token, func(r *http.Request) {
			r.Header.Set("Authorization", Bearer(bearerToken(newKey, "default", "hello-00001")))
		}, "body", true},
		"another token of a sender of 0.1": {token, func(r *http.Request) { r.Header.Set("Authorization", Bearer("x")) }, "body", false},
		"an empty token":                   {token, func(r *http.Request) { r.Header.Set("Authorization", "Bearer ") }, "body", false},
	} {
		s, err := ReadSignature(message(t, c.token, c.change))
		if valid := err == nil && s.By(now, "default", "hello-00001") && s.Covers([]byte(c.body)); valid != c.valid {
			t.Errorf("%s: valid is %v", behaviour, valid)
		}
		if err == nil && s.By(Keys{}, "default", "hello-00001") {
			t.Errorf("%s: valid before there is a key", behaviour)
		}
	}
	if text := message(t, token, nil).Header.Get("Authorization"); strings.Contains(text, token) {
		t.Errorf("the token itself is sent: %s", text)
	}
}

func TestAMessageIsTakenOnceAndOnlyNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Guard
		check := func(r *http.Request) error {
			s, err := ReadSignature(r)
			if err != nil || !s.By(now, "default", "hello-00001") {
				t.Fatalf("not signed: %v", err)
			}
			return g.Check(s, http.Header{})
		}
		first := message(t, now.Token("default", "hello-00001"), nil)
		if err := check(first); err != nil {
			t.Errorf("the first time: %v", err)
		}
		for i := range 50 { // for as long as its time is near enough, and longer
			if err := check(first); err == nil {
				t.Fatalf("it was taken again after %d s", i)
			}
			time.Sleep(time.Second)
		}
		if g.Replayed.Load() == 0 || g.OtherClock.Load() == 0 {
			t.Errorf("%d replayed, %d of another time", g.Replayed.Load(), g.OtherClock.Load())
		}
		for i := range 2 * rememberedNonces {
			if !g.note(fmt.Sprint(i), time.Now()) {
				t.Fatalf("message %d looks like an earlier one", i)
			}
		}
		if n := len(g.seen) + len(g.before); n > rememberedNonces {
			t.Errorf("%d messages are remembered", n)
		}
	})
}

// behind is a receiver whose clock is behind the sender's.
type behind struct {
	by       time.Duration
	guard    Guard
	taken    []string
	requests int
	forge    bool // it does not know the key
}

func (b *behind) RoundTrip(r *http.Request) (*http.Response, error) {
	b.requests++
	answer := httptest.NewRecorder()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	s, err := ReadSignature(r)
	switch {
	case err != nil || !s.By(now, "default", "hello-00001") || !s.Covers(body):
		answer.WriteHeader(http.StatusUnauthorized)
	default:
		s.time = s.time.Add(b.by) // as if this clock were behind
		err := b.guard.Check(s, answer.Header())
		if err != nil {
			// The header says this process's time; make it that of the clock that is behind.
			clock := fmt.Sprint(time.Now().Add(-b.by).UnixMilli())
			s.time = s.time.Add(-b.by)
			answer.Header().Set(HeaderClock, clock+" "+s.mac(s.token, "clock", clock))
			if b.forge {
				answer.Header().Set(HeaderClock, clock+" "+strings.Repeat("0", 64))
			}
			answer.WriteHeader(http.StatusUnauthorized)
			break
		}
		b.taken = append(b.taken, string(body))
	}
	response := answer.Result()
	response.Request = r
	return response, nil
}

// A node's clock that is 10 minutes off costs one more request, and no load.
func TestASenderFollowsTheReceiversClock(t *testing.T) {
	for _, off := range []time.Duration{10 * time.Minute, -10 * time.Minute, 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			receiver, signer := &behind{by: off}, &Signer{}
			send := func() int {
				r, err := http.NewRequestWithContext(t.Context(), "POST", "http://autoscaler:8080/stats", bytes.NewReader([]byte("load")))
				if err != nil {
					t.Fatal(err)
				}
				response, err := signer.Do(&http.Client{Transport: receiver}, r, now.Token("default", "hello-00001"))
				if err != nil {
					t.Fatal(err)
				}
				response.Body.Close()
				return response.StatusCode
			}
			for range 3 {
				if status := send(); status != 200 {
					t.Errorf("%s off: answered %d", off, status)
				}
				time.Sleep(time.Second)
			}
			if len(receiver.taken) != 3 || receiver.taken[0] != "load" || receiver.requests != 4 || receiver.guard.OtherClock.Load() != 1 {
				t.Errorf("%s off: %q taken by %d requests, %d of another time", off, receiver.taken, receiver.requests, receiver.guard.OtherClock.Load())
			}
			// Nobody else can make a sender sign for another time.
			receiver.by, receiver.forge = 2*off, true
			before := signer.ahead.Load()
			if status := send(); status != 401 || signer.ahead.Load() != before {
				t.Errorf("a forged clock: answered %d, and the sender's clock moved by %d", status, signer.ahead.Load()-before)
			}
		})
	}
}

// Receivers on several nodes have several clocks, and are asked at once with one Signer.
func TestASenderFollowsTheClockOfEachReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token, signer := now.Token("default", "hello-00001"), &Signer{}
		send := func(to *behind, meanwhile func()) int {
			r, err := http.NewRequestWithContext(t.Context(), "POST", "http://activator:8014/reach", bytes.NewReader([]byte("pods")))
			if err != nil {
				t.Fatal(err)
			}
			body, bodies := r.GetBody, 0
			r.GetBody = func() (io.ReadCloser, error) {
				if bodies++; bodies == 2 { // it is sent again
					meanwhile()
				}
				return body()
			}
			response, err := signer.Do(&http.Client{Transport: to}, r, token)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			return response.StatusCode
		}
		ahead, late := &behind{by: -10 * time.Minute}, &behind{by: 10 * time.Minute}
		status := send(ahead, func() {
			if got := send(late, func() {}); got != 200 {
				t.Errorf("the other one answered %d", got)
			}
		})
		if status != 200 || ahead.requests != 2 || late.requests != 2 {
			t.Errorf("answered %d; %d and %d requests", status, ahead.requests, late.requests)
		}
	})
}

func TestAnAnswerIsToOneQuestion(t *testing.T) {
	question, other := message(t, now.Token("", AutoscalerSubject), nil), message(t, now.Token("", AutoscalerSubject), nil)
	s, err := ReadSignature(question)
	if err != nil || !s.By(now, "", AutoscalerSubject) {
		t.Fatal(err)
	}
	mac, token := s.Answer([]byte("answer")), now.Token("", AutoscalerSubject)
	for behaviour, c := range map[string]struct {
		request     *http.Request
		token, body string
		want        bool
	}{
		"the answer":            {question, token, "answer", true},
		"to another question":   {other, token, "answer", false},
		"with another body":     {question, token, "changed", false},
		"with another key":      {question, "x", "answer", false},
		"before there is a key": {question, "", "answer", false},
	} {
		if got := Answers(&http.Response{Request: c.request}, c.token, mac, []byte(c.body)); got != c.want {
			t.Errorf("%s: %v", behaviour, got)
		}
	}
}

func FuzzReadSignature(f *testing.F) {
	f.Add("Ebb-HMAC 1 00000000000000000000000000000000 " + strings.Repeat("0", 64) + " x")
	f.Add("Bearer x")
	f.Fuzz(func(t *testing.T, header string) {
		r := httptest.NewRequest("POST", "/stats", nil)
		r.Header["Authorization"] = []string{header}
		if s, err := ReadSignature(r); err == nil && s.By(now, "default", "hello-00001") {
			t.Errorf("%q is valid", header)
		}
	})
}
