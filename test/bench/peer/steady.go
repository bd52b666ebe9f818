package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/follow"
	"ebb.dev/ebb/test/internal/load"
	"ebb.dev/ebb/test/internal/result"
)

// requests of each container under steady load: without them it would have the scheduler's smallest
// share. Elsewhere the containers have none, so that all pods fit a small node.
var requests = cluster.Object{"resources": cluster.Object{"requests": cluster.Object{"cpu": "100m"}}}

// arm is a way to one pod: straight, through the activator, straight with request metrics, or to
// the floor's.
type arm struct {
	name, of, host string
	pods           string // their label
}

// arms makes a Service for each way, with one pod, and the floor's Deployment.
func (v *visit) arms(ctx context.Context) (arms []arm, err error) {
	for _, name := range []string{"direct", "activator"} {
		a, err := v.arm(ctx, name)
		if err != nil {
			return nil, err
		}
		arms = append(arms, a)
	}
	if v.system == ebb {
		// Knative's queue-proxy has request metrics as shipped. Settings reach new pods only.
		restore, err := v.SetConfig(ctx, "config-observability", map[string]string{"request-metrics-protocol": "prometheus"})
		if err != nil {
			return nil, err
		}
		metered, err := arm{}, cluster.Pause(ctx, time.Second) // until the controller knows
		if err == nil {
			metered, err = v.arm(ctx, "metered")
		}
		if err = errors.Join(err, cluster.Undo{restore}.Run()); err != nil {
			return nil, err
		}
		arms = append(arms, metered)
	}
	host := "floor." + v.namespace + ".test"
	if err := v.ApplyPlain(ctx, v.namespace, cluster.Plain{Name: "floor", Image: v.image, Host: host, Replicas: 1, Container: requests}); err != nil {
		return nil, err
	}
	// The floor stands beside the straight way.
	return append(arms, arm{"direct", floor, host, "app=floor"}), v.AwaitAnswer(ctx, "http://"+host)
}

// arm makes a Service with one pod. Its requests pass the activator only if it has that name.
func (v *visit) arm(ctx context.Context, name string) (arm, error) {
	capacity := "0"
	if name == "activator" {
		capacity = "-1"
	}
	url, err := v.ApplyFunction(ctx, v.namespace, cluster.Function{Name: name, Image: v.image, Container: requests, Annotations: map[string]string{
		"autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/max-scale": "1", "autoscaling.knative.dev/target-burst-capacity": capacity}})
	if err != nil {
		return arm{}, err
	}
	if err := v.awaitPath(ctx, name, name != "activator"); err != nil {
		return arm{}, err
	}
	host, err := cluster.HostOf(url)
	return arm{name, v.system, host, "serving.knative.dev/service=" + name}, err
}

// passes is how often steady measures each way in a visit.
const passes = 2

// steady loads each way as fast as it answers, and then at the same rate as the others. At the same
// rate it reads what CPU time each container takes for a request.
func (v *visit) steady(ctx context.Context, arms []arm) error {
	for pass := range passes {
		for _, a := range inTurn(pass, arms...) {
			if err := v.load(ctx, a); err != nil {
				return fmt.Errorf("%s of %s: %w", a.name, a.of, err)
			}
		}
	}
	return nil
}

func (v *visit) load(ctx context.Context, a arm) error {
	s := load.Sockets{Address: v.Gateway, Host: a.host, Path: "/", Connections: v.connections, Lasts: 500 * time.Millisecond}
	if _, err := s.Run(ctx); err != nil { // once for connections and heaps
		return err
	}
	s.Lasts = v.lasts
	closed, err := s.Run(ctx)
	if err != nil {
		return err
	}
	if err := cluster.Pause(ctx, time.Second); err != nil {
		return err
	}
	parts, err := v.partsOf(ctx, a) // the load may have made activators
	if err != nil {
		return err
	}
	before, err := parts.usage()
	if err != nil {
		return err
	}
	s.Rate = v.rate
	paced, err := s.Run(ctx)
	if err != nil {
		return err
	}
	after, err := parts.usage()
	if err != nil {
		return err
	}
	values := map[string]float64{"rps": closed.RPS, "p50_ms": closed.P50 / 1000, "p99_ms": closed.P99 / 1000,
		"rate_p50_ms": paced.P50 / 1000, "rate_p99_ms": paced.P99 / 1000, "failed": float64(closed.Failed + paced.Failed)}
	for part, u := range after {
		values[part+"_cpu_us"] = float64((u.cpu - before[part].cpu).Microseconds()) / float64(paced.Requests)
	}
	named := map[string]float64{}
	for name, value := range values {
		named[a.name+"_"+name] = value
	}
	return v.tell(a.of, named, result.Fields{"rate_reached": paced.RPS, "activators": len(parts["activator"])})
}

// partsOf are the containers that a request of an arm may pass.
func (v *visit) partsOf(ctx context.Context, a arm) (groups, error) {
	parts, err := v.groupsOf(ctx, v.namespace, a.pods, containerOf)
	if err != nil {
		return nil, err
	}
	system, err := v.groupsOf(ctx, cluster.System, "", func(pod *corev1.Pod, _ string) string {
		if pod.Labels["gateway.networking.k8s.io/gateway-name"] == cluster.ExternalGateway {
			return "gateway"
		}
		if pod.Labels["app"] == "activator" {
			return "activator"
		}
		return ""
	})
	if err != nil {
		return nil, err
	}
	for part, list := range system {
		parts[part] = list
	}
	return parts, nil
}

var oneWorker = cluster.Object{"env": []any{cluster.Object{"name": "WORKERS", "value": "1"}}}

// outstanding keeps nine requests in flight where the target is ten. A pod works on one request at
// a time, for six milliseconds, so that more pods would answer more. Ebb can learn a target, too.
func (v *visit) outstanding(ctx context.Context) error {
	ways := []struct{ name, key, value string }{{"nine", "autoscaling.knative.dev/target-utilization-percentage", "100"}}
	if v.system == ebb {
		ways = append(ways, struct{ name, key, value string }{"nine-learned", "autoscaling.ebb.dev/target", "auto"})
	}
	for _, way := range ways {
		name := way.name
		url, err := v.ApplyFunction(ctx, v.namespace, cluster.Function{Name: name, Image: v.image, Container: oneWorker, Annotations: map[string]string{
			"autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/max-scale": "10", "autoscaling.knative.dev/target": "10",
			"autoscaling.knative.dev/window": "10s", way.key: way.value}})
		if err != nil {
			return err
		}
		pods, err := follow.PodsOf(ctx, v.Kube, v.namespace, "serving.knative.dev/service="+name)
		if err != nil {
			return err
		}
		client := v.Client(time.Minute)
		report := load.Loop{Client: client, URL: url + "?size=4&sleep=6", Outstanding: 9, Lasts: v.nine}.Run(ctx)
		client.CloseIdleConnections()
		ready := pods.Ready()
		pods.Stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		values := map[string]float64{name + "_late_rps": report.LateRPS(), name + "_p50_ms": report.Quantile(0.5), name + "_p99_ms": report.Quantile(0.99),
			name + "_pods": float64(ready), name + "_failed": float64(report.Failed)}
		if err := v.tell(v.system, values, result.Fields{"requests": report.Total}); err != nil {
			return err
		}
		if err := v.RemoveFunction(ctx, v.namespace, name); err != nil {
			return err
		}
	}
	return nil
}
