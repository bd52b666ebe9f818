package handover

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/window"
	"ebb.dev/ebb/autoscaler/zero"
	"ebb.dev/ebb/wire"
)

var tokenKey = []byte("0123456789abcdef0123456789abcdef")

type engine struct {
	mutex  sync.Mutex
	left   map[loop.Key]revision.State
	taken  map[loop.Key]revision.State
	behind time.Duration
}

func (e *engine) Export(chosen func(loop.Key) bool) map[loop.Key]revision.State {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	out := map[loop.Key]revision.State{}
	for key, s := range e.left {
		if chosen(key) {
			out[key] = s
			delete(e.left, key)
		}
	}
	return out
}
func (e *engine) Import(states map[loop.Key]revision.State, behind time.Duration) {
	e.taken, e.behind = states, behind
}
func (e *engine) Left() int { e.mutex.Lock(); defer e.mutex.Unlock(); return len(e.left) }

type buckets struct {
	held    []string
	learned string
}

func (b *buckets) Bucket(k loop.Key) string { return "bucket-" + k.Namespace }
func (b *buckets) Held() []string           { return b.held }
func (b *buckets) Learn(bucket, ip string)  { b.learned = bucket + " at " + ip }

func key(namespace string) loop.Key { return loop.Key{Namespace: namespace, Name: "hello-00001"} }

func state() revision.State {
	s := revision.State{UID: "u", At: time.Unix(9, 0).UTC(), Ordered: 3, Zero: zero.State{ActiveSince: time.Unix(5, 0).UTC()},
		Formula: decide.State{Desired: 3, PanicMax: 4}, Adaptive: decide.Adaptive{Phase: 1, Aim: 2}}
	s.Windows[0] = window.Contents{First: 17, Values: []float64{1, 2.5, -1}}
	return s
}

func states(namespaces ...string) map[loop.Key]revision.State {
	all := map[loop.Key]revision.State{}
	for _, namespace := range namespaces {
		all[key(namespace)] = state()
	}
	return all
}

func replica(key []byte, e *engine, b *buckets, now time.Time) *Replica {
	keys := wire.KeysOf(map[string][]byte{wire.TokenSecretKey: key})
	return &Replica{Keys: func() wire.Keys { return keys }, Self: "10.0.0.1", Engine: e, Buckets: b, Clock: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler)}
}

type to struct {
	handler http.Handler
	change  func(*http.Response)
	asked   string
}

func (f *to) RoundTrip(r *http.Request) (*http.Response, error) {
	f.asked = r.URL.Host
	r.RemoteAddr = "10.0.0.2:1234"
	answer := httptest.NewRecorder()
	f.handler.ServeHTTP(answer, r)
	response := answer.Result()
	response.Request = r
	if f.change != nil {
		f.change(response)
	}
	return response, nil
}

func TestTheNextOwnerLearnsWhatTheLastOneKnew(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	from, of := &engine{left: states("a", "b")}, &buckets{}
	old := replica(tokenKey, from, of, now.Add(-90*time.Second))
	into := &engine{}
	next := replica(tokenKey, into, &buckets{}, now)
	next.Self = "10.0.0.2"
	way := &to{handler: old}
	next.Client = &http.Client{Transport: way}
	next.TakeOver(t.Context(), "bucket-a", "10.0.0.1")
	if len(into.taken) != 1 || into.behind != 90*time.Second || way.asked != "10.0.0.1:8080" {
		t.Fatalf("taken %+v, behind %s, from %s", into.taken, into.behind, way.asked)
	}
	if got, want := into.taken[key("a")], state(); !reflect.DeepEqual(got, want) {
		t.Errorf("arrived as %+v", got)
	}
	if len(from.left) != 1 || of.learned != "bucket-a at 10.0.0.2" {
		t.Errorf("left %d, learned %q", len(from.left), of.learned)
	}
}

// slow takes as long to the other replica as back, by the asking one's clock.
type slow struct {
	to
	way time.Duration
	now *time.Time
}

func (f *slow) RoundTrip(r *http.Request) (*http.Response, error) {
	*f.now = f.now.Add(f.way)
	response, err := f.to.RoundTrip(r)
	*f.now = f.now.Add(f.way)
	return response, err
}

func TestTheNetworksTimeIsNoDifferenceOfTheClocks(t *testing.T) {
	for name, behind := range map[string]time.Duration{"clocks that agree": 0, "a clock that is behind": 90 * time.Second, "a clock that is ahead": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1_700_000_000, 0)
			old := replica(tokenKey, &engine{left: states("a")}, &buckets{}, now)
			old.Clock = func() time.Time { return now.Add(-behind) }
			into := &engine{}
			next := replica(tokenKey, into, &buckets{}, now)
			next.Self = "10.0.0.2"
			next.Clock = func() time.Time { return now }
			next.Client = &http.Client{Transport: &slow{to: to{handler: old}, way: 400 * time.Millisecond, now: &now}}
			next.TakeOver(t.Context(), "bucket-a", "10.0.0.1")
			if len(into.taken) != 1 || into.behind != behind {
				t.Errorf("took over %d revisions, times moved by %s, want 1 and %s", len(into.taken), into.behind, behind)
			}
		})
	}
}

func TestWithoutProofNothingIsSaidOrBelieved(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for name, c := range map[string]struct {
		theirs []byte
		change func(*http.Response)
	}{
		"a stranger with another key": {[]byte("another key, another key, another"), nil},
		"a stranger without one":      {nil, nil},
		"a body that was changed":     {tokenKey, func(r *http.Response) { r.Body = io.NopCloser(io.MultiReader(r.Body, strings.NewReader("x"))) }},
		"a proof of another answer": {tokenKey, func(r *http.Response) {
			question, err := wire.ReadSignature(ask("bucket-a", tokenKey))
			if err != nil || !question.By(wire.Keys{Accepted: [][]byte{tokenKey}}, "", wire.AutoscalerSubject) {
				panic("the question is not signed")
			}
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			r.Header.Set(headerProof, question.Answer(body))
		}},
		"an answer without one at all": {tokenKey, func(r *http.Response) { r.Header.Del(headerProof) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				into := &engine{}
				next := replica(tokenKey, into, &buckets{}, now)
				next.Self = "10.0.0.2"
				next.Client = &http.Client{Transport: &to{handler: replica(c.theirs, &engine{left: states("a")}, &buckets{}, now), change: c.change}}
				next.TakeOver(t.Context(), "bucket-a", "10.0.0.1")
				if into.taken != nil {
					t.Errorf("believed %+v", into.taken)
				}
			})
		})
	}
}

// ask is a question to the replica at 10.0.0.1.
func ask(bucket string, key []byte) *http.Request {
	r := httptest.NewRequest("GET", "http://10.0.0.1:8080"+wire.PathHandover+"?bucket="+bucket, nil)
	if err := new(wire.Signer).Sign(r, wire.Token(key, "", wire.AutoscalerSubject)); err != nil {
		panic(err)
	}
	return r
}

func TestWhoMayAsk(t *testing.T) {
	for name, c := range map[string]struct {
		bucket string
		change func(*http.Request)
		held   []string
		status int
	}{
		"the next owner":          {"bucket-a", nil, nil, 200},
		"while it is still owned": {"bucket-a", nil, []string{"bucket-a"}, 409},
		"without a signature":     {"bucket-a", func(r *http.Request) { r.Header.Del("Authorization") }, nil, 401},
		"with that of another bucket's question": {"bucket-a", func(r *http.Request) {
			r.Header.Set("Authorization", ask("bucket-b", tokenKey).Header.Get("Authorization"))
		}, nil, 401},
		"with an activator's": {"bucket-a", func(r *http.Request) {
			if err := new(wire.Signer).Sign(r, wire.Token(tokenKey, "", wire.ActivatorSubject)); err != nil {
				t.Fatal(err)
			}
		}, nil, 401},
		"with another key's": {"bucket-a", func(r *http.Request) {
			r.Header.Set("Authorization", ask("bucket-a", []byte("another")).Header.Get("Authorization"))
		}, nil, 401},
		"a question to another replica, passed on": {"bucket-a", func(r *http.Request) {
			r.Host = "10.0.0.9:8080"
			if err := new(wire.Signer).Sign(r, wire.Token(tokenKey, "", wire.AutoscalerSubject)); err != nil {
				t.Fatal(err)
			}
		}, nil, 401},
		"for no bucket": {"", nil, nil, 400},
		"by POST":       {"bucket-a", func(r *http.Request) { r.Method = "POST" }, nil, 400},
	} {
		r := ask(c.bucket, tokenKey)
		if c.change != nil {
			c.change(r)
		}
		answer := httptest.NewRecorder()
		replica(tokenKey, &engine{left: states("a")}, &buckets{held: c.held}, time.Now()).ServeHTTP(answer, r)
		if answer.Code != c.status {
			t.Errorf("%s: %d, want %d", name, answer.Code, c.status)
		}
		if said := strings.Contains(answer.Body.String(), "hello-00001"); said != (c.status == 200) {
			t.Errorf("%s: said %q", name, answer.Body)
		}
	}
}

// What a neighbour has recorded is worth nothing: the first question was answered, and the states
// are gone.
func TestAQuestionIsAnsweredOnce(t *testing.T) {
	h := replica(tokenKey, &engine{left: states("a", "a2")}, &buckets{}, time.Now())
	question := ask("bucket-a", tokenKey)
	for _, want := range []int{200, 401} {
		answer := httptest.NewRecorder()
		if h.ServeHTTP(answer, question); answer.Code != want {
			t.Errorf("%d, want %d", answer.Code, want)
		}
	}
}

type gone struct{ after *int }

func (g gone) RoundTrip(*http.Request) (*http.Response, error) {
	*g.after++
	return nil, errors.New("connection refused")
}

func TestOneThatIsGoneIsNotWaitedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, began := 0, time.Now()
		next := replica(tokenKey, &engine{}, &buckets{}, began)
		next.Self = "10.0.0.2"
		next.Client = &http.Client{Transport: gone{&asked}}
		next.TakeOver(t.Context(), "bucket-a", "10.0.0.1")
		if time.Since(began) > giveUp || asked < 2 {
			t.Errorf("asked %d times in %s", asked, time.Since(began))
		}
	})
}

func TestAProcessThatStopsWaitsForItsSuccessorAMoment(t *testing.T) {
	for name, c := range map[string]struct {
		left     int
		fetched  time.Duration // 0: never
		min, max time.Duration
	}{
		"with nothing to tell":         {0, 0, 0, notice},
		"until it was asked":           {1, time.Second, time.Second, time.Second + notice},
		"and not for ever if it isn't": {1, 0, linger, linger + notice},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &engine{left: states([]string{"a", "b"}[:c.left]...)}
				h := replica(tokenKey, e, &buckets{}, time.Now())
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				began := time.Now()
				if c.fetched > 0 {
					go func() {
						time.Sleep(c.fetched)
						e.Export(func(loop.Key) bool { return true })
					}()
				}
				if err := h.Linger(ctx); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took < c.min || took > c.max {
					t.Errorf("took %s", took)
				}
			})
		})
	}
}
