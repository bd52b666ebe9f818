// Package coldstart accounts for the time of requests that waited for a pod from zero.
//
// Owns: the histograms ebb_cold_start_seconds and ebb_cold_start_total_seconds, the same under
// OpenTelemetry's names faas.coldstarts and faas.init_duration, the count of those with a pull, and
// the accounts that are not closed yet. Reads: what the chain noted of a request, and from the
// autoscaler when the pod was asked for and scheduled, and whether an image was pulled. Writes:
// nothing else. Never: delays a request; an account is closed seconds after its response began.
package coldstart

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/chain"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/wire"
)

// The phases of a cold start. They follow one another without a gap and sum to its total. A step
// without a timestamp, or out of order because of clock skew, counts as zero; its time goes to the
// next step.
const (
	Decide   = "decide"   // the request came -> the scale-up is written
	Schedule = "schedule" // -> a node is chosen for the pod
	Pull     = "pull"     // -> its containers run: images pulled, sandbox and containers made
	Start    = "start"    // -> the user container answers
	Announce = "announce" // -> the activator knows
	Forward  = "forward"  // -> the response began
)

// Phases lists them in their order.
var Phases = [...]string{Decide, Schedule, Pull, Start, Announce, Forward}

const (
	// settled is how long after the response the autoscaler is asked: by then the kubelet has
	// reported the containers.
	settled = 3 * time.Second
	// maxOpen bounds the accounts that wait for that; more of them are closed at once, with what
	// the activator knows.
	maxOpen = 4096
	// askTimeout bounds one question to the autoscaler.
	askTimeout = time.Second
)

// buckets reach from what a cluster can do at best to what a large image or a full cluster needs.
var buckets = []float64{.001, .005, .01, .02, .05, .1, .2, .3, .5, .75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300}

// faasBuckets are those that OpenTelemetry's conventions for functions ask for.
var faasBuckets = []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}

// Accounts is the book of cold starts.
type Accounts struct {
	phases *prometheus.HistogramVec
	total  *prometheus.HistogramVec
	// faasStarts and faasInit are faas.coldstarts and faas.init_duration: what passes before the
	// container gets the request, which is all but the last phase.
	faasStarts *prometheus.CounterVec
	faasInit   *prometheus.HistogramVec
	pulls      *prometheus.CounterVec
	ask        Asker
	// Told, if set, is called with each account that is closed. It must not block.
	Told func(wire.ColdStarted)
	// Unsplit counts cold starts of which only the activator's own part is known: decide and
	// schedule are in pull.
	Unsplit atomic.Int64

	open chan account
	// shown is when each revision with series of its own had its last cold start. Only close uses
	// it.
	shown map[series]time.Time
}

// series are the labels of a revision's histograms.
type series struct{ namespace, service, revision string }

const (
	// maxShown bounds the revisions with series of their own: each has some 180. The cold starts
	// of further ones are counted for their namespace, with empty names.
	maxShown = 100
	// shownFor is how long after its last cold start a revision keeps its series, when another
	// needs the room.
	shownFor = time.Hour
)

// show returns the labels under which a cold start counts.
func (a *Accounts) show(s series, now time.Time) []string {
	if _, ok := a.shown[s]; !ok && len(a.shown) >= maxShown {
		oldest := s
		for one, at := range a.shown {
			if oldest == s || at.Before(a.shown[oldest]) {
				oldest = one
			}
		}
		if now.Sub(a.shown[oldest]) < shownFor {
			return []string{s.namespace, "", ""}
		}
		delete(a.shown, oldest)
		labels := prometheus.Labels{labelNames[0]: oldest.namespace, labelNames[1]: oldest.service, labelNames[2]: oldest.revision}
		a.phases.DeletePartialMatch(labels)
		a.total.DeletePartialMatch(labels)
		a.faasStarts.DeletePartialMatch(labels)
		a.faasInit.DeletePartialMatch(labels)
		a.pulls.DeletePartialMatch(labels)
	}
	a.shown[s] = now
	return []string{s.namespace, s.service, s.revision}
}

type account struct {
	key           backends.Key
	service       string
	pod, trace    string
	received, end time.Time
	birth         backends.Birth
}

// faasTrigger says what starts the function, in OpenTelemetry's words.
var faasTrigger = prometheus.Labels{"faas_trigger": "http"}

var labelNames = []string{"k8s_namespace_name", "kn_service_name", "kn_revision_name"}

// Asker returns what the autoscaler knows of a pod.
type Asker func(ctx context.Context, key backends.Key, pod string) (wire.Birth, error)

// New returns an empty book that asks the autoscaler by ask.
func New(ask Asker) *Accounts {
	return &Accounts{
		ask: ask,
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "ebb_cold_start_seconds", Buckets: buckets,
			Help: "Time of requests that waited for a pod from zero, by phase; the phases of a request sum to its ebb_cold_start_total_seconds."},
			append(slices.Clone(labelNames), "phase")),
		total: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "ebb_cold_start_total_seconds", Buckets: buckets,
			Help: "Time from the arrival of a request that waited for a pod from zero to the begin of its response."}, labelNames),
		faasStarts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "faas_coldstarts_total", ConstLabels: faasTrigger,
			Help: "Cold starts: requests that waited for a pod from zero."}, labelNames),
		faasInit: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "faas_init_duration_seconds", Buckets: faasBuckets, ConstLabels: faasTrigger,
			Help: "Time from the arrival of a request that waited for a pod from zero until the pod could take it."}, labelNames),
		pulls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ebb_cold_starts_with_pull_total",
			Help: "Cold starts whose node pulled an image for the pod, if its containers started a second or more after it had a node."}, labelNames),
		open: make(chan account, maxOpen), shown: map[series]time.Time{},
	}
}

// Register shows the book to Prometheus.
func (a *Accounts) Register(registry *prometheus.Registry) error {
	for _, c := range []prometheus.Collector{a.phases, a.total, a.faasStarts, a.faasInit, a.pulls, prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "ebb_activator_cold_starts_without_breakdown_total",
		Help: "Cold starts of which the autoscaler could not say when the pod was asked for and scheduled; that time is in phase pull.",
	}, func() float64 { return float64(a.Unsplit.Load()) })} {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("register the account of cold starts: %w", err)
		}
	}
	return nil
}

// Ended implements chain.Handler.Ended. It never blocks.
func (a *Accounts) Ended(x *chain.Exchange, r *forward.Request, result *forward.Result) {
	if x.Birth.Known.IsZero() || result.Status == 0 {
		return
	}
	one := account{key: x.Revision.Key, service: x.Revision.Info().Service, pod: strings.Clone(x.Pod), trace: traceID(r.Header("Traceparent")), received: r.Started,
		end: r.Started.Add(max(result.FirstByte, x.Bound.Sub(r.Started))), birth: x.Birth}
	select {
	case a.open <- one:
	default:
		a.close(one, wire.Birth{})
	}
}

// traceID is the second field of a W3C traceparent, "" if that is none.
func traceID(parent string) string {
	fields := strings.Split(parent, "-")
	if len(fields) < 4 || len(fields[1]) != 32 || strings.Trim(fields[1], "0123456789abcdef") != "" {
		return ""
	}
	return strings.Clone(fields[1])
}

// Run closes accounts until ctx ends, and then those that are still open with what is known.
func (a *Accounts) Run(ctx context.Context) error {
	// Requests that waited together got the same few pods; those are asked for once.
	asked := map[string]wire.Birth{}
	for {
		select {
		case <-ctx.Done():
			for {
				select {
				case one := <-a.open:
					a.close(one, wire.Birth{})
				default:
					return nil
				}
			}
		case one := <-a.open:
			if wait := time.Until(one.end.Add(settled)); wait > 0 {
				clear(asked)
				t := time.NewTimer(wait)
				select {
				case <-ctx.Done():
				case <-t.C:
				}
				t.Stop()
			}
			name := one.key.String() + "/" + one.pod
			told, known := asked[name]
			if !known && ctx.Err() == nil {
				limited, cancel := context.WithTimeout(ctx, askTimeout)
				told, _ = a.ask(limited, one.key, one.pod) // an autoscaler that cannot say is counted by close
				cancel()
				asked[name] = told
			}
			a.close(one, told)
		}
	}
}

// close puts one account into the book.
func (a *Accounts) close(one account, told wire.Birth) {
	if told.Asked.IsZero() || told.Scheduled.IsZero() {
		a.Unsplit.Add(1)
	}
	exemplar := prometheus.Labels{}
	if len(one.pod) <= 63 { // a longer one would not fit beside the trace
		exemplar["pod"] = one.pod
	}
	if one.trace != "" {
		exemplar["trace_id"] = one.trace
	}
	labels := a.show(series{one.key.Namespace, one.service, one.key.Name}, time.Now())
	seconds := Split(one.received, one.birth, told, one.end)
	a.tell(one, seconds, told)
	pulls := a.pulls.WithLabelValues(labels...) // a rate needs the zero before the first
	if told.Pulled {
		pulls.Inc()
	}
	init := 0.0
	for i, seconds := range seconds {
		if Phases[i] != Forward {
			init += seconds
		}
		a.phases.WithLabelValues(append(labels, Phases[i])...).(prometheus.ExemplarObserver).ObserveWithExemplar(seconds, exemplar)
	}
	a.faasStarts.WithLabelValues(labels...).Inc()
	a.faasInit.WithLabelValues(labels...).Observe(init)
	a.total.WithLabelValues(labels...).(prometheus.ExemplarObserver).ObserveWithExemplar(one.end.Sub(one.received).Seconds(), exemplar)
}

func (a *Accounts) tell(one account, seconds [len(Phases)]float64, told wire.Birth) {
	if a.Told == nil {
		return
	}
	c := wire.ColdStarted{Namespace: one.key.Namespace, Revision: one.key.Name, At: one.received, Pod: one.pod, Trace: one.trace,
		Complete: !told.Asked.IsZero() && !told.Scheduled.IsZero(), Pulled: told.Pulled}
	for i, s := range seconds {
		c.Phases = append(c.Phases, wire.Phase{Name: Phases[i], Took: time.Duration(s * float64(time.Second))})
	}
	a.Told(c)
}

// Split returns the seconds of each of Phases.
func Split(received time.Time, birth backends.Birth, told wire.Birth, end time.Time) [len(Phases)]float64 {
	known := clamp(birth.Known, received, end)
	started, answered := known, known
	if !birth.Started.IsZero() && !birth.Answered.IsZero() {
		started, answered = birth.Started, birth.Answered
		if told.Started.After(started) {
			// In a pod of an earlier release the sidecar runs first; another container's image may
			// have been pulled after that.
			started = told.Started
		}
	}
	var seconds [len(Phases)]float64
	from := received
	for i, to := range [...]time.Time{told.Asked, told.Scheduled, started, answered, known} {
		to = clamp(to, from, known)
		seconds[i] = to.Sub(from).Seconds()
		from = to
	}
	seconds[len(seconds)-1] = end.Sub(from).Seconds()
	return seconds
}

func clamp(t, low, high time.Time) time.Time {
	switch {
	case t.Before(low):
		return low
	case t.After(high):
		return high
	}
	return t
}

// Ask returns a function that asks the autoscaler at host:port, with the activators' token under
// keys.
func Ask(autoscaler string, keys func() wire.Keys) Asker {
	var signer wire.Signer
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}}
	return func(ctx context.Context, key backends.Key, pod string) (wire.Birth, error) {
		url := "http://" + autoscaler + wire.PathBirths + key.Namespace + "/" + key.Name + "/" + pod
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return wire.Birth{}, fmt.Errorf("ask for %s: %w", url, err)
		}
		response, err := signer.Do(client, request, keys().Token("", wire.ActivatorSubject))
		if err != nil {
			return wire.Birth{}, fmt.Errorf("ask for the birth of pod %s: %w", pod, err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return wire.Birth{}, fmt.Errorf("ask for %s: it answered %s", url, response.Status)
		}
		return wire.DecodeBirth(response.Body)
	}
}
