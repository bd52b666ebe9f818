package told

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ebb.dev/ebb/wire"
)

// servers are pages of model servers with requests that run and requests that wait. vllm.txt has
// the names, labels and types of vLLM 0.29 with two engines, as its docs/usage/metrics.md and its
// vllm/v1/metrics/loggers.py have them; llamacpp.txt is what samples/llm answered.
var servers = []struct {
	file, running, waiting string
	runs, waits            float64
}{
	{"testdata/vllm.txt", "vllm:num_requests_running", "vllm:num_requests_waiting", 15, 12},
	{"testdata/llamacpp.txt", "llamacpp:requests_processing", "llamacpp:requests_deferred", 4, 2},
}

func TestModelServersTellWhatRunsAndWhatWaits(t *testing.T) {
	for _, s := range servers {
		page, err := os.ReadFile(s.file)
		if err != nil {
			t.Fatal(err)
		}
		for _, gauge := range []string{s.running, s.waiting} {
			if !strings.Contains(string(page), "\n# TYPE "+gauge+" gauge\n") {
				t.Errorf("%s: %s is no gauge", s.file, gauge)
			}
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
			_, _ = w.Write(page)
		}))
		defer server.Close()
		at, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		port, err := strconv.Atoi(at.Port())
		if err != nil {
			t.Fatal(err)
		}
		b := New([]wire.ToldMetric{{Name: s.running, Port: port, Path: "/metrics"}, {Name: s.waiting, Port: port, Path: "/metrics"}})
		for _, p := range b.pages() {
			b.look(context.Background(), server.Client(), p, t.Errorf)
		}
		told := b.Told(b.values[0].at, 0)
		for place, want := range []float64{s.runs, s.waits} {
			if got, known := told.At(place); !known || got != want {
				t.Errorf("%s: %s is %v, %v, want %v", s.file, b.metrics[place].Name, got, known, want)
			}
		}
	}
}

// What the documents name is what is on these pages.
func TestTheDocumentsNameMetricsThatModelServersHave(t *testing.T) {
	var have []string
	for _, s := range servers {
		have = append(have, s.running, s.waiting)
	}
	for _, file := range []string{"docs/autoscaling.md", "docs/how-to/gpus.md", "samples/llm/README.md", "samples/llm/service.yaml", "test/images/prompts/main.go"} {
		text, err := os.ReadFile("../../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile(`(?:vllm|llamacpp):[a-z_]+`).FindAllString(string(text), -1)
		if len(named) == 0 {
			t.Errorf("%s names none", file)
		}
		for _, name := range named {
			if !slices.Contains(have, name) && name != "vllm:num_requests_waiting_by_reason" {
				t.Errorf("%s names %s", file, name)
			}
		}
	}
}
