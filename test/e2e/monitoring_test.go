//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/internal/testing/promtool"
	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// mayBeEmpty are queries of panels that need not have an answer.
var mayBeEmpty = map[string]string{
	`sum by (alertname) (ALERTS{alertname=~"Ebb.*",alertstate="firing"})`: "no alert fires while all is well",
}

// Every query of every panel and every rule has an answer while requests come: from zero, to a pod,
// by requests per second, to a pod that may sleep, and to one whose rollouts are judged. The
// Prometheus is real, and reads what config/monitoring says.
func TestEveryPanelAndRuleHasAnAnswer(t *testing.T) {
	s := begin(t, 6*time.Minute)
	if _, err := s.Kube.CoreV1().Services("monitoring").Get(s.ctx, "prometheus", metav1.GetOptions{}); apierrors.IsNotFound(err) {
		if ci, _ := strconv.ParseBool(os.Getenv("CI")); ci {
			t.Fatal("the cluster has no Prometheus: make up MONITORING=1")
		}
		t.Skip("the cluster has no Prometheus: make up MONITORING=1")
	}
	client := s.client()
	s.apply(service{name: "rate", annotations: map[string]string{"autoscaling.knative.dev/metric": "rps", "autoscaling.knative.dev/target": "100"}}.manifest())
	s.apply(service{name: "sleeper", annotations: map[string]string{"autoscaling.ebb.dev/standby": "1"}}.manifest())
	s.apply(guarded("judged", "1m", nil))
	cold := s.ready("cold", service{name: "cold"}.manifest())
	for _, name := range []string{"rate", "sleeper"} {
		url, err := s.AwaitReady(s.ctx, s.namespace, name)
		if err != nil {
			t.Fatal(err)
		}
		load := probe.Start(client, url, 100*time.Millisecond)
		defer func() {
			if err := load.Stop().Err(100); err != nil {
				t.Errorf("%s: %v", url, err)
			}
		}()
	}
	// Until the same activator has counted two: a rate needs an increase between two looks.
	counted := fmt.Sprintf(`increase(ebb_cold_start_total_seconds_count{k8s_namespace_name="%s"}[5m]) > 0`, s.namespace)
	for {
		s.awaitZero("cold")
		if n, err := s.prometheus(counted); err != nil {
			t.Fatal(err)
		} else if n > 0 {
			break
		}
		if reply := probe.Get(s.ctx, client, cold); !reply.OK() {
			t.Fatal(reply)
		}
	}
	empty := map[string]bool{}
	for _, query := range s.panels() {
		empty[query] = true
	}
	for query := range s.rules() {
		empty[query] = true
	}
	t.Logf("%d queries", len(empty))
	s.until("every query has an answer", func() (bool, string, error) {
		for query := range empty {
			n, err := s.prometheus(query)
			if err != nil {
				return false, "", fmt.Errorf("%s: %w", query, err)
			}
			if n > 0 || mayBeEmpty[query] != "" {
				delete(empty, query)
			}
		}
		return len(empty) == 0, fmt.Sprintf("%d are empty:\n%s", len(empty), strings.Join(slices.Sorted(maps.Keys(empty)), "\n")), nil
	})
	for query, evaluation := range s.rules() {
		if evaluation.Health != "ok" {
			t.Errorf("rule %s: %s %s", query, evaluation.Health, evaluation.LastError)
		}
	}
	s.promtoolTakesEveryAnswer()
}

// panels are the queries of all dashboards, for this test's services.
func (s *story) panels() (all []string) {
	s.Helper()
	files, err := filepath.Glob("../../config/monitoring/dashboards/*.json")
	if err != nil || len(files) != 3 {
		s.Fatalf("dashboards: %v, %v", files, err)
	}
	variables := strings.NewReplacer("$namespace", s.namespace, "$service", ".*", "$__rate_interval", "1m")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			s.Fatal(err)
		}
		var dashboard struct {
			Panels []struct{ Targets []struct{ Expr string } }
		}
		if err := json.Unmarshal(text, &dashboard); err != nil {
			s.Fatalf("%s: %v", file, err)
		}
		for _, panel := range dashboard.Panels {
			for _, target := range panel.Targets {
				all = append(all, variables.Replace(target.Expr))
			}
		}
	}
	return all
}

type evaluation struct{ Health, LastError string }

// metricName matches the metrics in an alert's expression.
var metricName = regexp.MustCompile(`\b(?:(?:ebb|kn)_|service:)[a-z0-9_:]+|\bup\b`)

// rules are queries that Prometheus' rules need an answer to: what a rule records, and each metric
// that an alert reads, because an alert itself must be empty.
func (s *story) rules() map[string]evaluation {
	s.Helper()
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct {
					evaluation
					Name, Query, Type string
				}
			}
		}
	}
	if err := s.askPrometheus("rules", nil, &answer); err != nil {
		s.Fatal(err)
	}
	all := map[string]evaluation{}
	for _, group := range answer.Data.Groups {
		for _, rule := range group.Rules {
			if rule.Type == "recording" {
				all[rule.Name] = rule.evaluation
				continue
			}
			for _, name := range metricName.FindAllString(rule.Query, -1) {
				if !strings.HasSuffix(name, "_name") { // a label
					all[name] = rule.evaluation
				}
			}
		}
	}
	if len(answer.Data.Groups) != 3 || len(all) < 40 {
		s.Fatalf("Prometheus has %d groups of rules, with %d names", len(answer.Data.Groups), len(all))
	}
	return all
}

// prometheus returns the number of series that a query has now.
func (s *story) prometheus(query string) (int, error) {
	var answer struct{ Data struct{ Result []any } }
	err := s.askPrometheus("query", map[string]string{"query": query}, &answer)
	return len(answer.Data.Result), err
}

func (s *story) askPrometheus(path string, parameters map[string]string, into any) error {
	request := s.Kube.CoreV1().RESTClient().Get().Namespace("monitoring").Resource("services").Name("prometheus:9090").SubResource("proxy").Suffix("api/v1/" + path)
	for key, value := range parameters {
		request = request.Param(key, value)
	}
	text, err := request.DoRaw(s.ctx)
	if err != nil {
		return fmt.Errorf("ask Prometheus: %w: %s", err, text)
	}
	return json.Unmarshal(text, into)
}

// contractNames are names of the contract that promtool objects to: gauges that end in _count.
var contractNames = []string{"kn_revision_pods_count", "kn_revision_pods_not_ready_count", "kn_revision_pods_pending_count", "kn_revision_pods_terminating_count"}

func (s *story) promtoolTakesEveryAnswer() {
	s.Helper()
	for _, program := range append([]string{"node-agent"}, s.Programs...) {
		pods, err := s.Kube.CoreV1().Pods(cluster.System).List(s.ctx, metav1.ListOptions{LabelSelector: "app=" + program})
		if err != nil || len(pods.Items) == 0 {
			s.Fatalf("pods of %s: %d, %v", program, len(pods.Items), err)
		}
		asked := 0
		for _, container := range pods.Items[0].Spec.Containers {
			for _, port := range container.Ports {
				if name, _, _ := strings.Cut(port.Name, "-"); name == "metrics" {
					s.promtoolTakes(fmt.Sprint(pods.Items[0].Name, ":", port.ContainerPort))
					asked++
				}
			}
		}
		if asked == 0 {
			s.Errorf("%s names no port of metrics", pods.Items[0].Name)
		}
	}
}

// promtoolTakes asks a port of a pod, "pod:port".
func (s *story) promtoolTakes(pod string) {
	s.Helper()
	text, err := s.Kube.CoreV1().RESTClient().Get().Namespace(cluster.System).Resource("pods").Name(pod).SubResource("proxy").Suffix("metrics").DoRaw(s.ctx)
	if err != nil {
		s.Fatalf("read metrics of %s: %v", pod, err)
	}
	for _, objection := range promtool.Objections(s.T, text) {
		if name, _, _ := strings.Cut(objection, " "); !slices.Contains(contractNames, name) {
			s.Errorf("%s: promtool: %s", pod, objection)
		}
	}
}
