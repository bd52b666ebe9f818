package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
)

// visit is one installation of a system, and what was measured of it.
type visit struct {
	*bench
	*cluster.Cluster
	system    string
	round     int
	namespace string
}

func (v *visit) run(ctx context.Context) (err error) {
	if v.Cluster, err = cluster.Connect(ctx); err != nil {
		return err
	}
	var undo cluster.Undo
	defer func() { err = errors.Join(err, undo.Run()) }()
	if err := v.clear(ctx); err != nil {
		return err
	}
	restore, err := v.SetConfig(ctx, "config-autoscaler", map[string]string{"scale-to-zero-grace-period": "6s"})
	if err != nil {
		return err
	}
	undo = append(undo, restore)
	var remove func(context.Context) error
	if v.namespace, remove, err = v.Namespace(ctx, "peer"); err != nil {
		return err
	}
	undo = append(undo, remove)
	if err := v.rest(ctx, "idle"); err != nil {
		return err
	}
	sleepers, err := v.sleepers(ctx)
	if err != nil {
		return err
	}
	arms, err := v.arms(ctx)
	if err != nil {
		return err
	}
	if err := v.awaitGone(ctx, v.namespace, sleeping); err != nil {
		return err
	}
	if err := v.rest(ctx, "with_services"); err != nil {
		return err
	}
	if err := v.steady(ctx, arms); err != nil {
		return err
	}
	if err := v.outstanding(ctx); err != nil {
		return err
	}
	return v.colds(ctx, sleepers)
}

// tell prints figures of a system or of the floor, with what else a reader wants to know of them,
// and keeps them for the summary.
func (v *visit) tell(of string, values map[string]float64, more result.Fields) error {
	line := result.Fields{"of": of, "visit": v.system, "round": v.round}
	maps.Copy(line, more)
	for name, value := range values {
		line[name] = value
		v.figures.add(name, of, value)
	}
	return v.out.Line(line)
}

// clear removes the Services that came with the installation, and waits until their pods are gone.
func (v *visit) clear(ctx context.Context) error {
	list, err := v.Dynamic.Resource(cluster.Services).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list Services: %w", err)
	}
	for _, service := range list.Items {
		if err := v.Dynamic.Resource(cluster.Services).Namespace(service.GetNamespace()).Delete(ctx, service.GetName(), metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete Service %s: %w", service.GetName(), err)
		}
	}
	return v.awaitGone(ctx, "", "serving.knative.dev/revision")
}

// awaitGone waits until there is no pod with a label.
func (v *visit) awaitGone(ctx context.Context, namespace, selector string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	return cluster.Until(ctx, func() (bool, string, error) {
		list, err := v.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return false, err.Error(), nil
		}
		return len(list.Items) == 0, fmt.Sprintf("%d pods with the label %s", len(list.Items), selector), nil
	})
}

// awaitPath waits until the gateway sends the requests of a Service straight to its pods, or all of
// them to the activators. In both systems the Service of Kubernetes with the name of the revision
// leads there.
func (v *visit) awaitPath(ctx context.Context, service string, straight bool) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := cluster.Until(ctx, func() (bool, string, error) {
		pods, err := v.Pods(ctx, v.namespace, service, false)
		if err != nil {
			return false, err.Error(), nil
		}
		own := map[string]bool{}
		for _, pod := range pods {
			own[pod.Status.PodIP] = true
		}
		list, err := v.Kube.DiscoveryV1().EndpointSlices(v.namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service + "-00001"})
		if err != nil {
			return false, err.Error(), nil
		}
		right, others := 0, 0
		for _, slice := range list.Items {
			for _, endpoint := range slice.Endpoints {
				for _, address := range endpoint.Addresses {
					if own[address] == straight {
						right++
					} else {
						others++
					}
				}
			}
		}
		return right > 0 && others == 0, fmt.Sprintf("%d addresses of pods or activators as wanted, and %d others", right, others), nil
	}); err != nil {
		return fmt.Errorf("requests of %s do not take the way that they should: %w", service, err)
	}
	return cluster.Pause(ctx, 2*time.Second) // until the gateway knows
}

// rest reads the memory of a system and the CPU time that it uses without requests, and of
// queue-proxy where there are pods.
func (v *visit) rest(ctx context.Context, when string) error {
	ready, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := v.AwaitComponents(ready); err != nil {
		return err
	}
	if err := cluster.Pause(ctx, v.settle); err != nil {
		return err
	}
	system, err := v.groupsOf(ctx, cluster.System, "", component)
	if err != nil {
		return err
	}
	pods, err := v.groupsOf(ctx, v.namespace, "serving.knative.dev/service in (direct, activator)", containerOf)
	if err != nil {
		return err
	}
	before, err := system.usage()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := cluster.Pause(ctx, v.settle); err != nil {
		return err
	}
	after, err := system.usage()
	if err != nil {
		return err
	}
	seconds := time.Since(began).Seconds()
	values := map[string]float64{}
	add := func(name string, value float64) { values["rest_"+when+"_"+name] += value }
	for part, u := range after {
		anon, millicores := u.anon/(1<<20), 1000*(u.cpu-before[part].cpu).Seconds()/seconds
		add(part+"_anon_mib", anon)
		sum := "others"
		if slices.Contains(cluster.Components, part) {
			sum = "components"
		}
		add(sum+"_anon_mib", anon)
		add(sum+"_millicores", millicores)
	}
	inPods, err := pods.usage()
	if err != nil {
		return err
	}
	if n := len(pods["queue_proxy"]); n > 0 {
		values["queue_proxy_anon_mib"] = inPods["queue_proxy"].anon / (1 << 20) / float64(n)
	}
	return v.tell(v.system, values, nil)
}

// component is the name of a system's program, from the label that both systems give. Gateways, and
// what stands in for a plugin of Knative's, are none.
func component(pod *corev1.Pod, _ string) string {
	app := pod.Labels["app"]
	if app == "standin" {
		return ""
	}
	return strings.ReplaceAll(app, "-", "_")
}

// containerOf tells the containers of a pod apart. Both systems call the sidecar queue-proxy.
func containerOf(_ *corev1.Pod, container string) string {
	if container == "queue-proxy" {
		return "queue_proxy"
	}
	return "container"
}
