package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

// sleeping is the label of the pods of sleepers.
const sleeping = "ebb.dev/bench=sleeper"

// sleepers applies Services that go to zero as early as allowed, and returns their URLs.
func (v *visit) sleepers(ctx context.Context) (urls []string, err error) {
	names := make([]string, v.services)
	for i := range names {
		names[i] = fmt.Sprintf("sleeper-%02d", i)
		if err := v.Apply(ctx, v.namespace, fmt.Sprintf(`
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: %s}
spec:
  template:
    metadata: {labels: {ebb.dev/bench: sleeper}, annotations: {autoscaling.knative.dev/window: 6s, autoscaling.knative.dev/max-scale: "1"}}
    spec: {containers: [{image: %q}]}
`, names[i], v.image)); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for _, name := range names {
		url, err := v.AwaitReady(ctx, v.namespace, name)
		if err != nil {
			return nil, err
		}
		urls = append(urls, url)
	}
	return urls, nil
}

// start is one start from zero.
type start struct{ answered, began float64 } // milliseconds until the answer, and until the process began

// colds sends requests to Services that are at zero. Each is another Service, so that none waits
// until its last pod has ended. The floor takes turns: its Deployment is scaled to one pod, and
// asked until it answers.
func (v *visit) colds(ctx context.Context, urls []string) error {
	host := "cold." + v.namespace + ".test"
	if err := v.ApplyPlain(ctx, v.namespace, cluster.Plain{Name: "cold", Image: v.image, Host: host}); err != nil {
		return err
	}
	of := map[string][]start{}
	failed := 0
	for i, url := range urls[:v.cold] {
		for _, what := range inTurn(i, v.system, floor) {
			if err := cluster.Pause(ctx, 2*time.Second); err != nil {
				return err
			}
			began, reply := time.Now(), probe.Reply{}
			if what == floor {
				var err error
				if reply, err = v.plainStart(ctx, "http://"+host); err != nil {
					return err
				}
			} else {
				client := v.Client(2 * time.Minute)
				reply = probe.Get(ctx, client, url) // the floor asks until it succeeds
				client.CloseIdleConnections()
			}
			if !reply.OK() {
				failed++
				if err := v.tell(what, nil, result.Fields{"cold": i + 1, "failure": reply.String()}); err != nil {
					return err
				}
				continue
			}
			s, err := startOf(began, reply)
			if err != nil {
				return err
			}
			of[what] = append(of[what], s)
			if err := v.tell(what, nil, result.Fields{"cold": i + 1, "answered_ms": s.answered, "process_began_ms": s.began}); err != nil {
				return err
			}
			if what == floor {
				if err := errors.Join(v.ScalePlain(ctx, v.namespace, "cold", 0), v.awaitGone(ctx, v.namespace, "app=cold")); err != nil {
					return err
				}
			}
		}
	}
	for _, what := range []string{v.system, floor} {
		var answered, began []float64
		for _, s := range of[what] {
			answered, began = append(answered, s.answered), append(began, s.began)
		}
		values := map[string]float64{"cold_ms": result.Median(answered), "cold_most_ms": result.Quantile(answered, 1), "cold_process_began_ms": result.Median(began)}
		if what == v.system {
			values["cold_failed"] = float64(failed)
		}
		if err := v.tell(what, values, nil); err != nil {
			return err
		}
	}
	return nil
}

// plainStart scales the floor to one pod, and returns its first answer.
func (v *visit) plainStart(ctx context.Context, url string) (probe.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	client := v.Client(time.Minute)
	defer client.CloseIdleConnections()
	if err := v.ScalePlain(ctx, v.namespace, "cold", 1); err != nil {
		return probe.Reply{}, err
	}
	for {
		reply := probe.Get(ctx, client, url)
		if reply.OK() {
			return reply, nil
		}
		if err := cluster.Pause(ctx, 10*time.Millisecond); err != nil {
			return reply, fmt.Errorf("the floor does not answer: %s: %w", reply, err)
		}
	}
}

// startOf reads the times of a start. The image tells when its process began.
func startOf(began time.Time, reply probe.Reply) (start, error) {
	nanoseconds, err := strconv.ParseInt(reply.Header.Get("X-Process-Start"), 10, 64)
	if err != nil {
		return start{}, fmt.Errorf("the image did not say when its process started: %w", err)
	}
	process := time.Unix(0, nanoseconds)
	if process.Before(began) {
		return start{}, fmt.Errorf("the process is %s older than the request: it was no start from zero", began.Sub(process))
	}
	return start{result.Milliseconds(reply.Sent.Add(reply.Took).Sub(began)), result.Milliseconds(process.Sub(began))}, nil
}

// inTurn lets the last one begin every second time.
func inTurn[T any](i int, all ...T) []T {
	order := slices.Clone(all)
	if i%2 == 1 {
		slices.Reverse(order)
	}
	return order
}
