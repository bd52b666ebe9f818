package process

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/act"
	"ebb.dev/ebb/autoscaler/internal/ingest"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/nodes"
	"ebb.dev/ebb/autoscaler/internal/spec"
	"ebb.dev/ebb/autoscaler/internal/startup"
	"ebb.dev/ebb/autoscaler/internal/tend"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

var tokens = []byte("0123456789abcdef0123456789abcdef")

// steady is an autoscaler with one revision, all of whose load an activator tells of once a second:
// twenty requests, for which three pods of ten are right.
type steady struct {
	t      *testing.T
	stats  *ingest.Server
	engine *loop.Engine
	source *spec.Source
	said   *bytes.Buffer // in the log

	mutex  sync.Mutex
	scales []int32
}

func (s *steady) Act(o loop.Order) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if o.Scale {
		s.scales = append(s.scales, o.Replicas)
	}
}

func (s *steady) written() []int32 {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return slices.Compact(slices.Clone(s.scales))
}

// play runs a test in virtual time.
func play(t *testing.T, annotations map[string]string, script func(s *steady)) {
	synctest.Test(t, func(t *testing.T) {
		pa := podAutoscaler(revisionName, 3)
		pa.Spec.ContainerConcurrency = 10
		pa.Annotations = map[string]string{names.TargetBurstCapacityAnnotation: "-1"} // nobody but activators says anything
		for key, value := range annotations {
			pa.Annotations[names.AutoscalingGroup+"/"+key] = value
		}
		s := &steady{t: t, said: &bytes.Buffer{}}
		clock := loop.Monotonic()
		s.source = &spec.Source{Get: func(_, name string) *v1alpha1.PodAutoscaler {
			if name != revisionName {
				return nil
			}
			return pa
		}, Settings: settings.NewStore(nil), Owns: func(loop.Key) bool { return true }, Log: slog.New(slog.NewTextHandler(s.said, nil))}
		s.engine = loop.New(loop.Options{Shards: 2, Clock: clock, Pods: sleepy(3), Actor: s, Source: s.source, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		s.stats = &ingest.Server{Keys: func() wire.Keys { return wire.Keys{Current: tokens, Accepted: [][]byte{tokens}} }, Reporter: s.engine, Clock: clock}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.engine.Run(ctx); close(done) }()
		s.engine.Changed(loop.Key{Namespace: "default", Name: revisionName})
		synctest.Wait()
		script(s)
		cancel()
		<-done
	})
}

// post returns the status and, if it is not of a success, what was said.
func (s *steady) post(token string, body []byte) (int, string) {
	request := httptest.NewRequest(http.MethodPost, wire.PathStats, bytes.NewReader(body))
	request.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	if token != "" {
		if err := new(wire.Signer).Sign(request, token); err != nil {
			s.t.Fatal(err)
		}
	}
	answer := httptest.NewRecorder()
	s.stats.ServeHTTP(answer, request)
	synctest.Wait()
	return answer.Code, strings.TrimSpace(answer.Body.String())
}

// regular is the activator's report of a second, n times.
func (s *steady) regular(n int, load float64) {
	for range n {
		time.Sleep(time.Second)
		status, said := s.post(activatorToken(), stats(revisionName, wire.Stat{PodName: "activator-1", AverageConcurrent: load, Requests: load, Timestamp: time.Now().UnixMilli()}))
		if status != http.StatusNoContent {
			s.t.Errorf("a regular report was answered with %d %s", status, said)
		}
	}
}

// refused are the refusals by reason, as the metrics say them.
func (s *steady) refused() map[string]int64 {
	all := map[string]int64{}
	for _, c := range counts(s.stats, s.engine, &act.Writer{}, &tend.Tender{}, &startup.Booster{}, &nodes.Watcher{}, 0) {
		if c.Name == "ebb_autoscaler_stats_refused_total" && c.Value > 0 {
			all[c.Reason] = c.Value
		}
	}
	return all
}

func activatorToken() string { return wire.Token(tokens, "", wire.ActivatorSubject) }

func stats(name string, all ...wire.Stat) []byte {
	var messages []wire.StatMessage
	for _, one := range all {
		messages = append(messages, wire.StatMessage{Namespace: "default", Revision: name, Stat: one})
	}
	return wire.EncodeStats(messages)
}

// nobody decides for anything; nothing has room.
type nobody struct{}

func (nobody) Owns(loop.Key) bool         { return false }
func (nobody) Owner(loop.Key) string      { return "" }
func (nobody) Report([]loop.Sample) error { return loop.ErrBusy }

// Whatever comes besides what is true is refused, counted by its reason, told to its sender where
// it can do something about it, and moves no scale.
func TestWhatIsNoStatIsCountedByItsReasonAndScalesNothing(t *testing.T) {
	huge := func(s wire.Stat) wire.Stat {
		s.PodName, s.AverageConcurrent, s.Queued = "activator-1", 1e6, 1e6
		return s
	}
	now := func() int64 { return time.Now().UnixMilli() }
	for _, c := range []struct {
		behaviour string
		token     string
		body      func() []byte
		change    func(*ingest.Server)
		status    int
		refused   map[string]int64
	}{
		{"without a token", "", func() []byte { return stats(revisionName, huge(wire.Stat{})) }, nil, 401, map[string]int64{"unauthorized": 1}},
		{"with a token that was made up", "0123456789abcdef", func() []byte { return stats(revisionName, huge(wire.Stat{})) }, nil, 401, map[string]int64{"forged": 1}},
		{"with a token of another key", wire.Token([]byte("another"), "", wire.ActivatorSubject), func() []byte { return stats(revisionName, huge(wire.Stat{})) }, nil, 401, map[string]int64{"forged": 1}},
		{"with the token of another revision", wire.Token(tokens, "default", "other-00001"), func() []byte { return stats(revisionName, huge(wire.Stat{})) }, nil, 401, map[string]int64{"forged": 1}},
		{"no stats", activatorToken(), func() []byte { return []byte("GET / HTTP/1.1") }, nil, 400, map[string]int64{"malformed": 1}},
		{"too much", activatorToken(), func() []byte { return make([]byte, wire.MaxStatsBytes+1) }, nil, 413, map[string]int64{"malformed": 1}},
		{"no load", activatorToken(), func() []byte {
			return stats(revisionName, wire.Stat{PodName: "activator-1", AverageConcurrent: math.NaN()}, wire.Stat{PodName: "activator-1", AverageConcurrent: -20},
				wire.Stat{PodName: "activator-1", AverageConcurrent: math.Inf(1)}, wire.Stat{PodName: "activator-1", Requests: 1e300},
				wire.Stat{PodName: "activator-1", Queued: math.NaN()}, wire.Stat{PodName: "activator-1", AverageProxiedConcurrent: -1e6})
		}, nil, 204, map[string]int64{"invalid_value": 6}},
		{"a reporter without a name", activatorToken(), func() []byte { return stats(revisionName, wire.Stat{AverageConcurrent: 1e6}) }, nil, 204, map[string]int64{"invalid_value": 1}},
		{"the same again", activatorToken(), func() []byte {
			return stats(revisionName, wire.Stat{PodName: "activator-1", AverageConcurrent: 20, Requests: 20, Timestamp: now()})
		}, nil, 204, map[string]int64{"duplicate": 1}},
		{"what was true some seconds ago", activatorToken(), func() []byte { return stats(revisionName, huge(wire.Stat{Timestamp: now() - 5000})) }, nil, 204, map[string]int64{"late": 1}},
		{"of a revision that there is not", activatorToken(), func() []byte { return stats("unheard-of", huge(wire.Stat{})) }, nil, 204, map[string]int64{"unknown-revision": 1}},
		{"from more than there can be", activatorToken(), func() []byte {
			var all []wire.Stat
			for i := range 600 {
				all = append(all, wire.Stat{PodName: fmt.Sprint("activator-", i)})
			}
			return stats(revisionName, all[2:]...)
		}, nil, 204, map[string]int64{"too-many-reporters": 598 - 511}},
		{"while nobody decides for it", activatorToken(), func() []byte { return stats(revisionName, huge(wire.Stat{})) }, func(s *ingest.Server) { s.Owners = nobody{} }, 503, map[string]int64{"no-owner": 1}},
		{"while there is no room", activatorToken(), func() []byte { return stats(revisionName, huge(wire.Stat{})) }, func(s *ingest.Server) { s.Reporter = nobody{} }, 503, map[string]int64{"busy": 1}},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			play(t, nil, func(s *steady) {
				s.regular(70, 20)
				owners, reporter := s.stats.Owners, s.stats.Reporter
				if c.change != nil {
					c.change(s.stats)
				}
				status, said := s.post(c.token, c.body())
				s.stats.Owners, s.stats.Reporter = owners, reporter
				if status != c.status || (said == "") != (status == http.StatusNoContent) {
					t.Errorf("answered with %d %q, want %d and why", status, said, c.status)
				}
				if got := s.refused(); fmt.Sprint(got) != fmt.Sprint(c.refused) {
					t.Errorf("counted %v, want %v", got, c.refused)
				}
				s.regular(70, 20)
				if got := s.written(); len(got) > 1 || len(got) == 1 && got[0] != 3 {
					t.Errorf("scaled to %v, want 3 all the time", got)
				}
			})
		})
	}
}

// Bounds that contradict each other: the maximum holds, each of the others is counted and told,
// whatever the load.
func TestContradictoryBoundsNeverScaleAboveTheMaximum(t *testing.T) {
	play(t, map[string]string{"min-scale": "9", "initial-scale": "8", "activation-scale": "7", "max-scale": "5"}, func(s *steady) {
		for _, load := range []float64{0, 20, 1000, 0} {
			s.regular(70, load)
		}
		if got := s.written(); len(got) == 0 || slices.Max(got) != 5 || slices.Min(got) < 3 {
			s.t.Errorf("scaled to %v, want 5 and nothing above", got)
		}
		if got := s.source.Ignored.Load(); got != 3 {
			s.t.Errorf("%d counted as ignored, want 3", got)
		}
		for _, want := range []string{"min-scale=", "initial-scale=", "activation-scale=", "above the maximum of 5, which is used"} {
			if !strings.Contains(s.said.String(), want) {
				s.t.Errorf("the log does not say %q: %s", want, s.said)
			}
		}
	})
}
