package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/udp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/wire"
)

// The test program is the command when this is set: its process can be ended without its farewell,
// in which an activator stays for 40 s.
const runVariable = "EBB_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(runVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// cluster is an API server of its own with what the manifests install, and the file that leads to
// it.
func cluster(t *testing.T) (kubeconfig string) {
	t.Helper()
	_, config := apiservertest.Start(t)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	key := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "knative-serving", Name: wire.TokenSecret}}
	if _, err := kube.CoreV1().Secrets(key.Namespace).Create(t.Context(), key, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	err = clientcmd.WriteToFile(clientcmdapi.Config{CurrentContext: "c", Contexts: map[string]*clientcmdapi.Context{"c": {Cluster: "c"}},
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: config.Host}}}, kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// launch starts the command with the environment of the Deployment, at an address of the loopback
// of its own, because the ports are fixed. ended is closed when it ends by itself.
func launch(t *testing.T, gateway string) (ip string, ended <-chan struct{}) {
	t.Helper()
	ip = fmt.Sprintf("127.77.%d.%d", os.Getpid()>>8&255, max(1, os.Getpid()&255))
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), runVariable+"=1", "KUBECONFIG="+cluster(t), "SYSTEM_NAMESPACE=knative-serving", "POD_NAME=ebb-0",
		"POD_IP="+ip, "LISTEN_IP="+ip, "COAP_ADDRESS="+ip+":5683", "COAP_GATEWAY="+gateway)
	command.Stdout, command.Stderr = t.Output(), t.Output()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		command.Wait()
	}()
	t.Cleanup(func() {
		command.Process.Kill()
		<-done
	})
	return ip, done
}

func TestAllComponentsRunInOneProcess(t *testing.T) {
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host) }))
	defer gateway.Close()
	ip, ended := launch(t, gateway.Listener.Addr().String())
	await := func(what, url, contains string) {
		t.Helper()
		var last string
		for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
			request, err := http.NewRequest(http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("User-Agent", wire.AgentKubelet+"test")
			response, err := http.DefaultClient.Do(request)
			select {
			case <-ended:
				t.Fatalf("the process ended before %s", what)
			default:
			}
			if err != nil {
				last = err.Error()
				continue
			}
			body, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if last = fmt.Sprintf("%d %.200s", response.StatusCode, body); response.StatusCode == http.StatusOK && strings.Contains(string(body), contains) {
				return
			}
		}
		t.Errorf("%s: %s", what, last)
	}
	at := func(port int) string { return fmt.Sprintf("http://%s:%d", ip, port) }
	await("the activator's health", at(wire.PortHTTP1)+wire.PathHealth, "")
	await("the controller's health", at(8081)+"/health", "")
	await("the webhook's health", at(8082)+"/health", "")
	await("the activator's metrics", at(wire.PortMetrics)+wire.PathMetrics, "ebb_activator_")
	await("the autoscaler's metrics", at(9091)+wire.PathMetrics, "ebb_autoscaler_")
	await("the controller's metrics", at(9092)+wire.PathMetrics, "kn_workqueue")
	await("the webhook's metrics", at(9093)+wire.PathMetrics, "ebb_")
	await("the CoAP entry's metrics", at(9094)+wire.PathMetrics, "ebb_coap_peers")

	client, err := udp.Dial(ip + ":5683")
	if err != nil {
		t.Fatal(err)
	}
	within, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	answer, err := client.Get(within, "/", message.Option{ID: message.URIHost, Value: []byte("hello.example.com")})
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := answer.ReadBody(); answer.Code() != codes.Content || string(body) != "hello.example.com" {
		t.Errorf("CoAP: %v %q", answer.Code(), body)
	}
	client.Close()
}

func TestAWrongEnvironmentIsSaid(t *testing.T) {
	env := func(name string) string {
		return map[string]string{"SYSTEM_NAMESPACE": "knative-serving", "COAPS_ADDRESS": "127.0.0.1:0", "COAP_GATEWAY": "nowhere"}[name]
	}
	if err := serveCoAP(t.Context(), env, io.Discard); err == nil || !strings.Contains(err.Error(), "COAP_GATEWAY") {
		t.Errorf("got %v", err)
	}
}

func TestNoTwoComponentsHaveTheSamePort(t *testing.T) {
	taken := map[int]string{wire.PortHTTP1: "requests", wire.PortH2C: "requests", wire.PortTLS: "requests", wire.PortAnnounce: "announcements",
		wire.PortStats: "stats", wire.PortView: "API"}
	for _, component := range []string{"activator", "autoscaler", "controller", "webhook", "coap"} {
		ports, err := telemetry.ReadPorts(with(component, func(string) string { return "" }))
		if err != nil {
			t.Fatal(err)
		}
		uses := map[int]string{ports.Metrics: "metrics"}
		if component != "coap" {
			uses[ports.Profiling] = "profiles"
		}
		if component == "controller" || component == "webhook" {
			uses[ports.Health] = "health"
		}
		for port, use := range uses {
			if other := taken[port]; other != "" {
				t.Errorf("port %d is for the %s of %s and for %s", port, use, component, other)
			}
			taken[port] = use + " of " + component
		}
	}
}
