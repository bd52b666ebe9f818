//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// "Where did the time of a cold start go?" The phases that the activators report add up to the
// total, the total matches the time that the client waited, and an exemplar names the pod.
func TestTheAccountOfAColdStartAddsUp(t *testing.T) {
	s := begin(t, 3*time.Minute)
	s.coldStartAddsUp(service{name: "cold"})
}

// A pod without volumes proves who it is, too: only queue-proxy knows when its containers ran.
func TestAPodWithoutVolumesHasTheKeyInItsEnvironment(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.coldStartAddsUp(service{name: "cold", bare: true})
	var pods []corev1.Pod
	s.until("a pod is there", func() (bool, string, error) { // it may have gone to zero again
		reply := probe.Get(s.ctx, s.client(), url)
		found, err := s.Pods(s.ctx, s.namespace, "cold", false)
		pods = found
		return len(pods) > 0, reply.String(), err
	})
	if volumes := pods[0].Spec.Volumes; len(volumes) > 0 || pods[0].Annotations[names.PodKeyAnnotation] == "" {
		t.Errorf("the pod has the volumes %v and the annotations %v", volumes, pods[0].Annotations)
	}
}

// coldStartAddsUp returns the URL of the Service whose cold start it looked at.
func (s *story) coldStartAddsUp(v service) (url string) {
	t := s.T
	t.Helper()
	url = s.readyAtZero(v.name, v.manifest())
	reply := probe.Get(s.ctx, s.client(), url)
	if !reply.OK() {
		t.Fatal(reply)
	}
	phases := []string{"decide", "schedule", "pull", "start", "announce", "forward"}
	var sums map[string]float64
	s.until("the cold start is counted", func() (bool, string, error) {
		text, err := s.activatorMetrics()
		if err != nil {
			return false, err.Error(), nil
		}
		sums = map[string]float64{}
		for _, line := range strings.Split(text, "\n") {
			series, value, _ := strings.Cut(line, "} ")
			if !strings.Contains(series, `k8s_namespace_name="`+s.namespace+`"`) {
				continue
			}
			name, labels, _ := strings.Cut(series, "{")
			number, _, _ := strings.Cut(value, " ")
			n, err := strconv.ParseFloat(number, 64)
			if err != nil {
				return false, "", fmt.Errorf("metric %q: %w", line, err)
			}
			_, phase, _ := strings.Cut(labels, `phase="`)
			switch name {
			case "ebb_cold_start_seconds_sum", "ebb_cold_start_total_seconds_sum", "ebb_cold_start_total_seconds_count":
				sums[name+strings.Trim(phase, `"`)] += n
			case "ebb_cold_start_seconds_bucket":
				if strings.Contains(line, `# {pod="cold-00001-deployment-`) {
					sums["exemplars"]++
				}
			}
		}
		return sums["ebb_cold_start_total_seconds_count"] > 0, fmt.Sprintf("counted so far: %v", sums), nil
	})
	total := sums["ebb_cold_start_total_seconds_sum"]
	sum := 0.0
	for _, phase := range phases {
		seconds, known := sums["ebb_cold_start_seconds_sum"+phase]
		if !known {
			t.Errorf("there is no phase %s", phase)
		}
		sum += seconds
	}
	if math.Abs(sum-total) > 0.05*total {
		t.Errorf("the phases sum to %.3f s, the total is %.3f s: %v", sum, total, sums)
	}
	if count, took := sums["ebb_cold_start_total_seconds_count"], reply.Took.Seconds(); count != 1 || total > took || total < took/10 {
		t.Errorf("%v cold starts of %.3f s in all, the client waited %.3f s for one", count, total, took)
	}
	// How long each phase takes depends on the machine. But the decision, the creation of the pod
	// and the response all take some time.
	made := sums["ebb_cold_start_seconds_sumschedule"] + sums["ebb_cold_start_seconds_sumpull"] + sums["ebb_cold_start_seconds_sumstart"]
	if sums["ebb_cold_start_seconds_sumdecide"] <= 0 || made <= 0 || sums["ebb_cold_start_seconds_sumforward"] <= 0 {
		t.Errorf("a phase took no time: %v", sums)
	}
	if sums["ebb_cold_start_seconds_sumpull"]+sums["ebb_cold_start_seconds_sumstart"] <= 0 {
		t.Errorf("queue-proxy told nothing: %v", sums)
	}
	if sums["exemplars"] == 0 {
		t.Error("no bucket has an exemplar that names the pod")
	}
	return url
}

// activatorMetrics returns the metrics of all activators, in OpenMetrics format.
func (s *story) activatorMetrics() (string, error) {
	pods, err := s.Kube.CoreV1().Pods(cluster.System).List(s.ctx, metav1.ListOptions{LabelSelector: "app=" + s.Program("activator")})
	if err != nil {
		return "", fmt.Errorf("list activators: %w", err)
	}
	var all strings.Builder
	for _, pod := range pods.Items {
		text, err := s.Kube.CoreV1().RESTClient().Get().Namespace(cluster.System).Resource("pods").Name(pod.Name+":9090").SubResource("proxy").Suffix("metrics").
			SetHeader("Accept", "application/openmetrics-text; version=1.0.0").DoRaw(s.ctx)
		if err != nil {
			return "", fmt.Errorf("read the metrics of %s: %w", pod.Name, err)
		}
		all.Write(text)
	}
	return all.String(), nil
}
