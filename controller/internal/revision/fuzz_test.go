package revision

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"knative.dev/pkg/apis"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// FuzzWhatIsAdmittedDoesNotEndQueueProxy holds admission and queue-proxy to each other: when
// admission takes a Revision, the queue-proxy of the pod that the controller makes of it can read
// its environment. A pod whose queue-proxy ends is never ready, and nobody told its author why.
//
// spec is a Revision's spec as JSON. The other arguments overwrite the fields that queue-proxy
// reads, because a fuzzer rarely finds them inside of JSON.
func FuzzWhatIsAdmittedDoesNotEndQueueProxy(f *testing.F) {
	files, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		manifest, _, _ := strings.Cut(string(text), "\n---\n")
		rev := &servingv1.Revision{}
		if err := yaml.Unmarshal([]byte(manifest), rev); err != nil {
			f.Fatal(err)
		}
		spec, err := json.Marshal(rev.Spec)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(spec, uint8(i)|128, "https", "/live", "", "named", int32(0), int32(0), int32(2), int32(3), int64(0), int64(1), int64(0), "")
		f.Add(spec, uint8(i), "http", "/", "localhost", "", int32(8080), int32(0), int32(0), int32(1), int64(10), int64(300), int64(0), "cut")
	}
	snapshot, err := settings.Parse(map[string]map[string]string{
		"config-deployment": {"queue-sidecar-image": "dev.local/queue-proxy:1", "shim-image": "dev.local/shim:1"},
		"config-features":   {"multi-container-probing": "enabled"},
	})
	if err != nil {
		f.Fatal(err)
	}
	request := rules.Request[servingv1.Revision]{Config: snapshot.Rules(), Operation: rules.Create}
	f.Fuzz(func(t *testing.T, spec []byte, kind uint8, scheme, path, host, portName string, port, period, timeout, threshold int32,
		concurrency, seconds, idle int64, action string) {
		rev := &servingv1.Revision{}
		if json.Unmarshal(spec, &rev.Spec) != nil {
			return
		}
		rev.Name, rev.Namespace = "hello-00001", "default"
		rev.Annotations = map[string]string{"autoscaling.ebb.dev/standby": "auto"}
		if kind&32 != 0 {
			rev.Annotations["serving.ebb.dev/shim"] = "streaming"
		}
		if action != "" {
			rev.Annotations["serving.ebb.dev/response-timeout-action"] = action
		}
		rev.Spec.ContainerConcurrency, rev.Spec.TimeoutSeconds, rev.Spec.IdleTimeoutSeconds = &concurrency, &seconds, &idle
		number := intstr.FromInt32(port)
		if portName != "" {
			number = intstr.FromString(portName)
		}
		probe := &corev1.Probe{PeriodSeconds: period, TimeoutSeconds: timeout, FailureThreshold: threshold, SuccessThreshold: threshold}
		switch kind % 6 {
		case 0:
			probe = nil // as the spec has it
		case 1:
			probe.HTTPGet = &corev1.HTTPGetAction{Scheme: corev1.URIScheme(scheme), Path: path, Host: host, Port: number}
		case 2:
			probe.TCPSocket = &corev1.TCPSocketAction{Host: host, Port: number}
		case 3:
			probe.GRPC = &corev1.GRPCAction{Port: port, Service: &path}
		case 4:
			probe.Exec = &corev1.ExecAction{Command: []string{path}}
		}
		for i := range rev.Spec.Containers {
			c := &rev.Spec.Containers[i]
			switch {
			case probe == nil:
			case kind&128 != 0:
				c.LivenessProbe = probe.DeepCopy()
			case kind&64 != 0:
				c.StartupProbe = probe.DeepCopy()
			default:
				c.ReadinessProbe = probe.DeepCopy()
			}
		}
		rev.SetDefaults(request)
		if rev.Validate(request).Filter(apis.ErrorLevel) != nil {
			return
		}
		d, err := MakeDeployment(rev, 1, Inputs{Settings: snapshot, SystemNamespace: "knative-serving", ClusterDomain: "cluster.local"})
		if err != nil {
			t.Fatalf("admission took what the controller makes no pod of: %v", err)
		}
		environment := map[string]string{wire.EnvPod: "pod", wire.EnvPodIP: "10.0.0.1"} // what the kubelet fills in
		for _, c := range d.Spec.Template.Spec.Containers {
			for _, e := range c.Env {
				if c.Name == sidecarName && e.ValueFrom == nil {
					environment[e.Name] = e.Value
				}
			}
		}
		if environment["SERVING_REVISION"] != rev.Name {
			t.Fatalf("the pod has no queue-proxy, or it does not know its revision: %v", environment)
		}
		if _, err := wire.ReadSidecar(func(name string) string { return environment[name] }); err != nil {
			t.Errorf("admission took what ends queue-proxy: %v", err)
		}
	})
}
