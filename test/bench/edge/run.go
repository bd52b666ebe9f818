package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"ebb.dev/ebb/api/client/versioned"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/internal/testing/process"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/wire"
)

const (
	system = "knative-serving"
	ip     = "127.78.0.1" // of the process: its ports are fixed
	coap   = ip + ":5683"
)

func (b *bench) run(ctx context.Context) error {
	_, config, stop := apiservertest.Serve()
	defer stop()
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := install(ctx, kube); err != nil {
		return err
	}
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "Hello, world!") }))
	defer gateway.Close()
	p, err := b.start(ctx, config, gateway.Listener.Addr().String())
	if err != nil {
		return err
	}
	defer p.Stop()
	if err := until(ctx, "the process is ready", func() bool { return healthy(ctx) }); err != nil {
		return err
	}
	idle, err := b.memory(ctx, p.Process.Pid, "idle")
	if err != nil {
		return err
	}
	if err := b.create(ctx, config); err != nil {
		return err
	}
	full, err := b.memory(ctx, p.Process.Pid, "services")
	if err != nil {
		return err
	}
	rps, p50, p99, failed, err := b.load(ctx)
	if err != nil {
		return err
	}
	after, err := b.memory(ctx, p.Process.Pid, "after CoAP")
	if err != nil {
		return err
	}
	return b.out.Summary(result.Fields{"anon_mib_idle": idle, "anon_mib_" + strconv.Itoa(b.services): full, "anon_mib_after_coap": after,
		"coap_rps": rps, "coap_p50_ms": p50, "coap_p99_ms": p99, "coap_failed": failed, "coap_clients": b.clients})
}

// install makes what the manifests install and the process needs.
func install(ctx context.Context, kube kubernetes.Interface) error {
	key := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: wire.TokenSecret}}
	if _, err := kube.CoreV1().Secrets(system).Create(ctx, key, metav1.CreateOptions{}); err != nil {
		return err
	}
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "config-autoscaler"},
		Data: map[string]string{"allow-zero-initial-scale": "true", "initial-scale": "0"}}
	_, err := kube.CoreV1().ConfigMaps(system).Create(ctx, settings, metav1.CreateOptions{})
	return err
}

// start runs the process with the settings of config/edge for the garbage collector.
func (b *bench) start(ctx context.Context, config *rest.Config, gateway string) (*process.Process, error) {
	dir, err := os.MkdirTemp("", "bench-edge")
	if err != nil {
		return nil, err
	}
	binary := b.binary
	if binary == "" {
		binary = filepath.Join(dir, "ebb")
		if err := process.Build(ctx, dir, "cmd/ebb"); err != nil {
			return nil, err
		}
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, fmt.Appendf(nil, "apiVersion: v1\nkind: Config\nclusters: [{name: x, cluster: {server: %q}}]\ncontexts: [{name: x, context: {cluster: x}}]\ncurrent-context: x\n", config.Host), 0o600); err != nil {
		return nil, err
	}
	return process.Start(exec.CommandContext(ctx, binary), "KUBECONFIG="+kubeconfig, "SYSTEM_NAMESPACE="+system, "POD_NAME=ebb-bench", "POD_IP="+ip, "EBB_LISTEN_IP="+ip,
		"EBB_COAP_ADDRESS="+coap, "EBB_COAP_GATEWAY="+gateway, "EBB_AUTOSCALER="+ip+":8080", "GOGC=50", "GOMEMLIMIT=160MiB")
}

// create makes the services, and waits until each has what it has at zero.
func (b *bench) create(ctx context.Context, config *rest.Config) error {
	ebb, err := versioned.NewForConfig(config)
	if err != nil {
		return err
	}
	for i := range b.services {
		service := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: fmt.Sprintf("service-%d", i)}}
		service.Spec.Template.Spec.Containers = []corev1.Container{{Image: "dev.local/bench:1"}}
		if _, err := ebb.ServingV1().Services("bench").Create(ctx, service, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return until(ctx, "each service has a PodAutoscaler", func() bool {
		list, err := ebb.AutoscalingV1alpha1().PodAutoscalers("bench").List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == b.services
	})
}

// memory reads RssAnon in MiB when it has settled.
func (b *bench) memory(ctx context.Context, pid int, when string) (float64, error) {
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(b.settle):
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "RssAnon:")
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		return 0, err
	}
	return kib / 1024, b.out.Line(result.Fields{"when": when, "anon_mib": kib / 1024})
}

func healthy(ctx context.Context) bool {
	for _, url := range []string{"http://" + ip + ":8012" + wire.PathHealth, "http://" + ip + ":8081/readiness", "http://" + ip + ":8080/healthz"} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false
		}
		request.Header.Set("User-Agent", wire.AgentKubelet+"bench")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return false
		}
	}
	return true
}

func until(ctx context.Context, what string, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for !is() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("not in time: %s", what)
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}
