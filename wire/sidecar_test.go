package wire

import (
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/standby"
)

// given reads what every queue-proxy has, and more.
func given(more map[string]string) (*Sidecar, error) {
	return ReadSidecar(func(name string) string {
		if v, ok := more[name]; ok {
			return v
		}
		return map[string]string{"SERVING_NAMESPACE": "ns", "SERVING_REVISION": "rev-00001", EnvPod: "pod"}[name]
	})
}

// again reads what s writes.
func again(s *Sidecar) (*Sidecar, error) {
	env := s.Env()
	return ReadSidecar(func(name string) string {
		for _, one := range env {
			if n, value, _ := strings.Cut(one, "="); n == name {
				return value
			}
		}
		return ""
	})
}

// full differs from NewSidecar in every field.
func full() *Sidecar {
	service := "health"
	return &Sidecar{
		Place: Place{Namespace: "ns", Service: "hello", Configuration: "hello-config", Revision: "hello-00001",
			Pod: "pod", PodUID: "uid", PodIP: netip.MustParseAddr("10.0.0.1"),
			NodeIPs: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}},
		Ports:  Ports{Port: 1, TLSPort: 2, UserPort: 3, DrainPort: 4, StatPort: 5, MetricsPort: 6, ProfilingPort: 7, StandbyPort: 8},
		Limits: Limits{Concurrency: 10, Timeout: time.Minute, ResponseStartTimeout: time.Second, IdleTimeout: time.Hour, Handling: Handling{CutResponses: true}},
		Health: Health{Probes: []Probe{
			{TCPSocket: &ProbeSocket{Port: 9, Host: "localhost"}, InitialDelaySeconds: 1, TimeoutSeconds: 2, PeriodSeconds: 3, SuccessThreshold: 4, FailureThreshold: 5},
			{HTTPGet: &ProbeHTTP{Path: "/", Port: 9, Host: "localhost", Scheme: "HTTPS", HTTPHeaders: []ProbeHeader{{"A", "b"}}}, SuccessThreshold: 1},
		},
			StartupProbes:  []Probe{{GRPC: &ProbeGRPC{Port: 9, Service: &service}, SuccessThreshold: 1}},
			LivenessProbes: map[string]Probe{"user-container": {TCPSocket: &ProbeSocket{Port: 9}, SuccessThreshold: 1}},
			DetectHTTP2:    true},
		Sleep: Sleep{Standby: new(standby.Frozen), BusyFor: time.Minute,
			SleepHook: &standby.Hook{Method: "PUT", Port: 9, Path: "/sleep", Bound: time.Minute},
			WakeHook:  &standby.Hook{Method: "GET", Port: 9, Path: "/wake", Bound: time.Second}},
		Reports: Reports{Activators: "activators:1", Autoscaler: "autoscaler:1", Records: RecordsAll, WarmUp: time.Hour,
			Told: []ToldMetric{{Name: "waiting"}, {Name: "queue", Port: 9, Path: "/metrics"}}},
		Secrets:  Secrets{Key: "key", Token: "token", KeyFile: "/key", DrainToken: "drain"},
		LogLevel: "debug", LogConfig: "{}",
		Observability: Observability{EnableRequestLog: true, EnableProbeRequestLog: true, RequestLogTemplate: "{{.}}",
			RequestMetrics: Export{"grpc", "metrics:1", "10s"}, Tracing: Tracing{"grpc", "traces:1", 0.5}, RuntimeProfiling: true},
		TLS:    SidecarTLS{"1.2", "1.3", "TLS_AES_128_GCM_SHA256", "X25519"},
		RootCA: "PEM", CertDir: "/certs", DrainQuiet: time.Second,
	}
}

// A field without a variable would be lost between controller and queue-proxy.
func TestEveryFieldOfTheSidecarGoesBothWays(t *testing.T) {
	s := full()
	var compare func(path string, a, b reflect.Value)
	compare = func(path string, a, b reflect.Value) {
		if a.Kind() == reflect.Struct && a.Type().PkgPath() == reflect.TypeFor[Sidecar]().PkgPath() {
			for i := range a.NumField() {
				compare(path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
			}
		} else if reflect.DeepEqual(a.Interface(), b.Interface()) {
			t.Errorf("%s: this test does not set it to something unusual", path)
		}
	}
	compare("Sidecar", reflect.ValueOf(*s), reflect.ValueOf(*NewSidecar()))
	got, err := again(s)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, s) {
		t.Errorf("got  %+v\nwant %+v", got, s)
	}
	names := map[string]bool{}
	for _, v := range s.variables() {
		if names[v.name] {
			t.Errorf("%s is there twice", v.name)
		}
		names[v.name] = true
	}
}

// What any environment says, another one says too that is made of it, and it is as short.
func FuzzSidecarRoundTrip(f *testing.F) {
	for _, s := range []*Sidecar{NewSidecar(), full()} {
		f.Add(strings.Join(s.Env(), "\x00"))
	}
	f.Add("SERVING_NAMESPACE=ns\x00SERVING_REVISION=r\x00SERVING_POD=p\x00SERVING_READINESS_PROBE=[{\"httpGet\":{\"httpHeaders\":[]}}]\x00EBB_TOLD_METRICS=[]")
	f.Add("SERVING_NAMESPACE=ns\x00SERVING_REVISION=r\x00SERVING_POD=p\x00CONTAINER_CONCURRENCY=9223372036854775807\x00EBB_LIVENESS_PROBES={}\x00SERVING_POD_IP=::1%a")
	f.Fuzz(func(t *testing.T, environment string) {
		values := map[string]string{}
		for one := range strings.SplitSeq(environment, "\x00") {
			name, value, _ := strings.Cut(one, "=")
			values[name] = value
		}
		s, err := given(values)
		if err != nil {
			for _, line := range strings.Split(err.Error(), "\n") {
				if strings.HasPrefix(line, "environment variable ") {
					return // it names a variable
				}
			}
			t.Fatalf("the error names no variable: %v", err)
		}
		got, err := again(s)
		if err != nil {
			t.Fatalf("what was read is refused when it is written: %v\n%q", err, s.Env())
		}
		if a, b := s.Env(), got.Env(); !slices.Equal(a, b) {
			t.Fatalf("wrote %q, then %q", a, b)
		}
	})
}

// What the controller can set arrives as it was set.
func FuzzSidecarArrives(f *testing.F) {
	f.Add("a", "b=c", "\n", int64(1), int64(300), uint16(8080), true, false)
	f.Add("", "\x00", "{\"", int64(math.MaxInt64), int64(-1), uint16(0), false, true)
	f.Fuzz(func(t *testing.T, a, b, c string, m, n int64, port uint16, x, y bool) {
		for _, s := range []*string{&a, &b, &c} {
			*s = strings.ToValidUTF8(*s, "")
		}
		s := NewSidecar()
		s.Namespace, s.Revision, s.Pod = "ns", "rev", "pod"
		s.Service, s.Configuration, s.Activators, s.KeyFile, s.RootCA = a, b, c, a+b, b+c
		s.Port, s.UserPort, s.StatPort = int(port), int(port/2), int(port/3)
		s.Concurrency, s.Timeout, s.IdleTimeout = Slots(m), Seconds(n), Seconds(m)
		s.CutResponses, s.DetectHTTP2 = x, y
		s.Observability = Observability{EnableRequestLog: x, RequestLogTemplate: a, Tracing: Tracing{Protocol: b, Endpoint: c, SamplingRate: float64(port)}}
		s.DrainQuiet = max(time.Duration(m), 0)
		if a != "" {
			s.Told = []ToldMetric{{Name: a, Port: int(port), Path: "/" + b}}
			s.LivenessProbes = map[string]Probe{a: {TCPSocket: &ProbeSocket{Port: ProbePort(max(port, 1)), Host: c}, SuccessThreshold: 1}}
			s.Probes = []Probe{{HTTPGet: &ProbeHTTP{Port: ProbePort(max(port, 1)), Path: b, Host: c, Scheme: "HTTP", HTTPHeaders: []ProbeHeader{{a, b}}}, SuccessThreshold: 1}}
		}
		got, err := again(s)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, s) {
			t.Errorf("got  %+v\nwant %+v", got, s)
		}
	})
}

func TestEveryWrongVariableIsNamed(t *testing.T) {
	wrong := map[string]string{
		EnvPod: "", "USER_PORT": "http", "REVISION_TIMEOUT_SECONDS": "-1", "EBB_DRAIN_QUIET": "soon", EnvPodIP: "here",
		"ENABLE_HTTP2_AUTO_DETECTION": "perhaps", "SERVING_READINESS_PROBE": "{", "OBSERVABILITY_CONFIG": "{",
	}
	_, err := given(wrong)
	if err == nil {
		t.Fatal("it was taken")
	}
	for name := range wrong {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in: %v", name, err)
		}
	}
	if _, err := given(nil); err != nil {
		t.Errorf("what every queue-proxy has is refused: %v", err)
	}
}

// Admission does not bound every number, so what is too large is bounded here instead of refused.
func TestLargeNumbersAreBounded(t *testing.T) {
	most := fmt.Sprint(math.MaxInt64)
	c, err := given(map[string]string{
		"CONTAINER_CONCURRENCY": most, "REVISION_TIMEOUT_SECONDS": most, "REVISION_IDLE_TIMEOUT_SECONDS": most,
		"REVISION_RESPONSE_START_TIMEOUT_SECONDS": most,
	})
	if err != nil {
		t.Fatal(err)
	}
	long := (1 << 30) * time.Second
	if want := (Limits{Concurrency: 1 << 20, Timeout: long, ResponseStartTimeout: long, IdleTimeout: long}); c.Limits != want {
		t.Errorf("got %+v, want %+v", c.Limits, want)
	}
	if Slots(-1) != 0 || Seconds(math.MinInt64) != 0 {
		t.Error("a negative number is not 0")
	}
}

func TestWhatIsNotSetHasADefault(t *testing.T) {
	s, err := given(nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.Port != 8012 || s.UserPort != 8080 || s.Limits != (Limits{}) || s.DrainQuiet != 5*time.Second || len(s.Probes)+len(s.StartupProbes) != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestNumbersOutOfRangeAreRefused(t *testing.T) {
	for name, values := range map[string][]string{
		"USER_PORT":                {"-1", "65536", "8080x", "99999999999999999999"},
		"QUEUE_SERVING_PORT":       {"65536"},
		"CONTAINER_CONCURRENCY":    {"-1", "1.5", "9223372036854775808"},
		"REVISION_TIMEOUT_SECONDS": {"-1", "1s"},
		"EBB_DRAIN_QUIET":          {"-1s", "5"},
		"SERVING_READINESS_PROBE": {`{"httpGet":{"port":65536}}`, `{"httpGet":{"port":"http"}}`, `{"httpGet":{"scheme":"ftp"}}`,
			`{"httpGet":{},"tcpSocket":{}}`},
		"RESPONSE_TIMEOUT_ACTION": {"stop"},
		"EBB_TOLD_METRICS":        {"{", `[{"name":""}]`, `[{"name":"a","port":65536,"path":"/"}]`, `[{"name":"a","port":1}]`, `[{},{},{},{},{}]`},
	} {
		for _, value := range values {
			if _, err := given(map[string]string{name: value}); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s=%s: error %v does not name it", name, value, err)
			}
		}
	}
}
