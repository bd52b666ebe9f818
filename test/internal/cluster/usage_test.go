package cluster

import "testing"

func TestMetricReadsPrometheusText(t *testing.T) {
	text := []byte("# HELP process_cpu_seconds_total x\n# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 1.25\n" +
		"process_resident_memory_bytes 2.9184e+07\n")
	for name, want := range map[string]float64{"process_cpu_seconds_total": 1.25, "process_resident_memory_bytes": 29184000} {
		if got, err := metric(text, name); err != nil || got != want {
			t.Errorf("%s is %v, %v, want %v", name, got, err, want)
		}
	}
	if got, err := metric(text, "process"); err == nil {
		t.Errorf("a missing metric is %v", got)
	}
}

func TestHostOf(t *testing.T) {
	if host, err := HostOf("http://a.b.example"); err != nil || host != "a.b.example" {
		t.Errorf("got %q, %v", host, err)
	}
	for _, bad := range []string{"", "a.b", "http://", "http://[::1"} {
		if host, err := HostOf(bad); err == nil {
			t.Errorf("the host of %q is %q", bad, host)
		}
	}
}
