//go:build e2e

package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	view "ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/faults"
)

// asynchronous is the manifest of a Service that takes requests with Prefer: respond-async.
func asynchronous(name, more string) string {
	return strings.Replace(service{name: name}.manifest(), "  name: "+name+"\n",
		"  name: "+name+"\n  annotations: {serving.ebb.dev/async: allowed"+more+"}\n", 1)
}

// later asks for an asynchronous response and returns the URL of its result.
func (s *story) later(url string, headers ...string) string {
	s.Helper()
	var location string
	s.until("a call is accepted", func() (bool, string, error) {
		r, err := http.NewRequestWithContext(s.ctx, http.MethodPost, url, strings.NewReader("hello"))
		if err != nil {
			return false, "", err
		}
		r.Header.Set("Prefer", "respond-async")
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		response, err := s.client().Do(r)
		if err != nil {
			return false, err.Error(), nil
		}
		defer response.Body.Close()
		location = response.Header.Get("Location")
		return response.StatusCode == http.StatusAccepted, response.Status, nil
	})
	return url + location
}

// ended waits until a call has ended and returns what its record says.
func (s *story) ended(at string) (record string) {
	s.Helper()
	s.until("the call ends", func() (bool, string, error) {
		r, err := http.NewRequestWithContext(s.ctx, http.MethodGet, at+"/record", nil)
		if err != nil {
			return false, "", err
		}
		response, err := s.client().Do(r)
		if err != nil {
			return false, err.Error(), nil
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		record = string(text)
		return strings.Contains(record, `"state":"completed"`) || strings.Contains(record, `"state":"dead"`), record, err
	})
	return record
}

// "May I send work to a service that sleeps, and come back for the result?"
func TestACallOfAServiceAtZeroIsAcceptedAtOnceAndDelivered(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.readyAtZero("later", asynchronous("later", ""))
	began := time.Now()
	at := s.later(url)
	t.Logf("accepted after %v", time.Since(began))
	if record := s.ended(at); !strings.Contains(record, `"status":200`) {
		t.Error(record)
	}
	// "And where was it?" Cold or warm is known once the kubelet has told of the pod.
	run := s.plugin()
	s.until("its record tells of the pod and of the cold start", func() (bool, string, error) {
		out, ok := run("calls", "later", "-o", "json")
		var calls []view.Call
		if err := json.Unmarshal([]byte(out), &calls); !ok || err != nil || len(calls) != 1 {
			return false, out, nil
		}
		c := calls[0]
		return strings.Contains(at, "/"+c.ID+".") && c.ID != "" && strings.HasPrefix(c.Pod, "later-00001-deployment-") && c.Status == 200 && c.Attempt == 1 &&
			c.ColdMs > 0 && c.WaitedMs >= c.ColdMs/2, out, nil
	})
}

// "What if the courier is killed?" Its container is; its calls are on its disk.
func TestAKilledCourierKeepsItsCalls(t *testing.T) {
	s := beginAlone(t, 4*time.Minute)
	url := s.readyAtZero("kept", asynchronous("kept", ""))
	var calls []string
	for range 20 {
		calls = append(calls, s.later(url))
	}
	if err := (faults.Set{Cluster: s.Cluster}).KillCourier(s.ctx); err != nil {
		t.Fatal(err)
	}
	for _, at := range calls {
		if record := s.ended(at); !strings.Contains(record, `"status":200`) {
			t.Error(record)
		}
	}
}

// "Can a tenant have the courier call what only the courier reaches?" No: its callback is given up,
// and its result is there all the same.
func TestACallbackToAServiceOfTheClusterIsGivenUp(t *testing.T) {
	s := begin(t, 3*time.Minute)
	url := s.ready("caller", asynchronous("caller", `, serving.ebb.dev/async-callback-hosts: "*"`))
	api, err := s.Kube.CoreV1().Services("default").Get(s.ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	at := s.later(url, "Ebb-Callback", "https://"+api.Spec.ClusterIP+"/")
	if record := s.ended(at); !strings.Contains(record, `"status":200`) {
		t.Error(record)
	}
	s.until("the callback is given up", func() (bool, string, error) {
		text, err := s.Kube.CoreV1().Pods(cluster.System).GetLogs("courier-0", &corev1.PodLogOptions{}).DoRaw(s.ctx)
		return strings.Contains(string(text), "a callback is given up") && strings.Contains(string(text), s.namespace+"/caller"), "", err
	})
}

// "May a program that knows nothing of this be called by cron, and all of its requests be kept?"
func TestAServiceWithAScheduleIsCalledAndOneThatIsAlwaysAsynchronousIsKept(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url := s.ready("report", strings.Replace(service{name: "report"}.manifest(), "\nmetadata:\n  name: report\n", `
metadata:
  name: report
  annotations:
    serving.ebb.dev/async: always
    serving.ebb.dev/schedules: |
      - name: each-minute
        cron: "* * * * *"
        path: /send
        headers: {Content-Type: application/json}
        body: '{}'
`, 1))
	var at string
	s.until("a request without any header is accepted", func() (bool, string, error) {
		response, err := s.client().Get(url + "/mine")
		if err != nil {
			return false, err.Error(), nil
		}
		response.Body.Close()
		at = response.Header.Get("Location")
		return response.StatusCode == http.StatusAccepted, response.Status, nil
	})
	if record := s.ended(url + at); !strings.Contains(record, `"status":200`) || !strings.Contains(record, `"path":"/mine"`) {
		t.Error(record)
	}
	run := s.plugin()
	s.until("the schedule has called it", func() (bool, string, error) {
		out, ok := run("calls", "report")
		return ok && containsAll(out, []string{"POST /send", "GET /mine"}), out, nil
	})
}
