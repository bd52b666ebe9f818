package stat

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/wire"
)

// Source is the gate, as a reporter sees it.
type Source interface {
	ClosePeriod(now time.Time) wire.Stat
	Pressure() <-chan struct{}
	PressureNow(now time.Time) wire.Stat
	// Rising says that the load is more than what PressureNow or ClosePeriod last said.
	Rising() bool
	// Judged is what a judge of rollouts counts, as it is now.
	Judged() wire.Judged
}

// Reporter closes a period each second, answers scrapes with the last one, and pushes under
// pressure.
type Reporter struct {
	Source     Source
	Namespace  string
	Revision   string
	Token      func() string // of the revision; "" while there is none
	Autoscaler string        // host:port; "" pushes nothing
	Logf       func(format string, args ...any)
	// Asleep is how deeply the pod sleeps, and why it was not frozen, as wire.Stat has them; nil
	// for a pod that never sleeps.
	Asleep func() (depth uint8, failure string)
	// Busy says why the pod is not to sleep; nil for one that says nothing.
	Busy func(now time.Time) wire.Busy
	// Hold is for how long nothing is to be pushed now; nil for a pod that never sleeps.
	Hold func() time.Duration
	// Told is what the container tells of its load; nil for one that tells nothing.
	Told func(now time.Time) wire.Told

	signer wire.Signer
	last   atomic.Pointer[[]byte] // the last period's report, encoded
}

const (
	period      = time.Second
	pushSpacing = 100 * time.Millisecond // at most ten pushes a second
	pushTimeout = 2 * time.Second
)

// ServeHTTP answers the scrape (contract section 4.6). A judge of rollouts compares what pods of
// two revisions counted at the same moment, so it gets the counts of now beside the last report.
func (r *Reporter) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path != wire.PathMetrics {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", "application/protobuf")
	var data []byte
	if last := r.last.Load(); last != nil {
		data = *last
	} else {
		data = r.complete(r.Source.PressureNow(time.Now())).Append(nil)
	}
	if req.URL.RawQuery == wire.QueryJudged {
		judged := r.Source.Judged()
		if req.Header.Get(wire.HeaderSenders) == "" {
			judged.Senders, judged.Tagged = [wire.SenderDrawers]wire.Sender{}, wire.Sender{}
		}
		data = judged.Append(slices.Clip(data)) // others write the last report at the same time
	}
	w.Write(data)
}

func (r *Reporter) complete(s wire.Stat) wire.Stat {
	if r.Asleep != nil {
		s.Asleep, s.FreezeFailure = r.Asleep()
	}
	if r.Busy != nil {
		s.Busy = r.Busy(time.Now())
	}
	if r.Told != nil {
		s.Told = r.Told(time.Now())
	}
	return s
}

// encode leaves out how requests ended if that is too much beside a long name of the pod. What is
// judged has room of its own, because nobody asks for it who does not know it.
func encode(s wire.Stat) []byte {
	data := s.Append(nil)
	if len(data) > wire.MaxStatBytes {
		s.Ended = nil
		data = s.Append(data[:0])
	}
	return data
}

// Run closes the periods until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	return run.Every(ctx, period, func(now time.Time) error {
		data := encode(r.complete(r.Source.ClosePeriod(now)))
		r.last.Store(&data)
		return nil
	})
}

// Push tells the autoscaler of pressure until ctx ends. A push that fails is not repeated: the next
// one, or the scrape, says more.
func (r *Reporter) Push(ctx context.Context) error {
	transport := &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 30 * time.Second}
	client := &http.Client{Transport: transport, Timeout: pushTimeout}
	defer transport.CloseIdleConnections()
	rising := false
	for {
		if !rising {
			select {
			case <-ctx.Done():
				return nil
			case <-r.Source.Pressure():
			}
		}
		if r.Autoscaler == "" {
			continue
		}
		if r.Hold != nil && !wait(ctx, r.Hold()) {
			return nil
		}
		if err := r.push(ctx, client); err != nil && ctx.Err() == nil {
			r.Logf("push load to the autoscaler: %v", err)
		}
		if !wait(ctx, pushSpacing) {
			return nil
		}
		rising = r.Source.Rising()
	}
}

// wait reports false if ctx ended before.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func (r *Reporter) push(ctx context.Context, client *http.Client) error {
	stat := r.complete(r.Source.PressureNow(time.Now()))
	stat.OutOfTurn = true
	body := wire.EncodeStats([]wire.StatMessage{{Namespace: r.Namespace, Revision: r.Revision, Stat: stat}})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.Autoscaler+wire.PathStats, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/protobuf")
	resp, err := r.signer.Do(client, req, r.Token())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, 4096))
	if resp.StatusCode != http.StatusNoContent && resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", r.Autoscaler, resp.Status)
	}
	return nil
}
