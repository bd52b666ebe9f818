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
	"syscall"
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

	"ebb.dev/ebb/internal/component"
	"ebb.dev/ebb/internal/testing/process"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/eventually"
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
func cluster(t *testing.T) (kubeconfig string, kube kubernetes.Interface) {
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
	return kubeconfig, kube
}

// edge is the command, with the environment of the Deployment, at an address of the loopback of its
// own, because the ports are fixed.
type edge struct {
	*testing.T
	ip      string
	kube    kubernetes.Interface
	process *process.Process
}

func launch(t *testing.T, gateway string) *edge {
	t.Helper()
	ip := fmt.Sprintf("127.77.%d.%d", os.Getpid()>>8&255, max(1, os.Getpid()&255))
	kubeconfig, kube := cluster(t)
	p, err := process.Start(exec.Command(os.Args[0]), runVariable+"=1", "KUBECONFIG="+kubeconfig, "SYSTEM_NAMESPACE=knative-serving", "POD_NAME=ebb-0",
		"POD_IP="+ip, "EBB_LISTEN_IP="+ip, "EBB_COAP_ADDRESS="+ip+":5683", "EBB_COAP_GATEWAY="+gateway)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Log(p.Output())
		}
	})
	return &edge{t, ip, kube, p}
}

// ask sends a GET as a kubelet does. It returns "" and why if the answer is not 200.
func (e *edge) ask(url string) (body, why string) {
	e.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		e.Fatal(err)
	}
	request.Header.Set("User-Agent", wire.AgentKubelet+"test")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err.Error()
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		return "", fmt.Sprintf("%s %.200s", response.Status, text)
	}
	return string(text), ""
}

func (e *edge) until(what string, done func() (bool, string)) {
	e.Helper()
	eventually.Seen(e, what, func() (string, bool) {
		if !e.process.Alive() {
			e.Fatalf("the process ended before %s", what)
		}
		ok, last := done()
		return last, ok
	})
}

func (e *edge) await(what, url, contains string) {
	e.Helper()
	e.until(what, func() (bool, string) {
		body, why := e.ask(url)
		return why == "" && strings.Contains(body, contains), fmt.Sprintf("%s %.200s", why, body)
	})
}

func TestAllComponentsRunInOneProcess(t *testing.T) {
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host) }))
	defer gateway.Close()
	e := launch(t, gateway.Listener.Addr().String())
	await := func(what, url, contains string) { t.Helper(); e.await(what, url, contains) }
	at := func(port int) string { return fmt.Sprintf("http://%s:%d", e.ip, port) }
	await("the activator's health", at(wire.PortHTTP1)+wire.PathHealth, "")
	await("the controller's health", at(8081)+"/health", "")
	await("the webhook's health", at(8082)+"/health", "")
	await("the activator's metrics", at(wire.PortMetrics)+wire.PathMetrics, "ebb_activator_")
	await("the autoscaler's metrics", at(9091)+wire.PathMetrics, "ebb_autoscaler_")
	await("the controller's metrics", at(9092)+wire.PathMetrics, "kn_workqueue")
	await("the webhook's metrics", at(9093)+wire.PathMetrics, "ebb_")
	await("the CoAP entry's metrics", at(9094)+wire.PathMetrics, "ebb_coap_peers")

	client, err := udp.Dial(e.ip + ":5683")
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

// The activator stays for 40 s, and would hold up those who are to lead next.
func TestTheLeadIsFreeWhileTheActivatorFinishes(t *testing.T) {
	e := launch(t, "127.0.0.1:1")
	health := map[string]string{}
	for name, port := range map[string]int{"activator": wire.PortHTTP1, "autoscaler": wire.PortStats, "controller": 8081} {
		health[name] = fmt.Sprintf("http://%s:%d/health", e.ip, port)
	}
	e.await("the activator runs", health["activator"], "")
	e.await("the controller runs", health["controller"], "")
	if err := e.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	e.until("autoscaler and controller end", func() (bool, string) {
		for _, name := range []string{"autoscaler", "controller"} {
			if _, why := e.ask(health[name]); !strings.Contains(why, "connection refused") {
				return false, name + ": " + why
			}
		}
		return true, ""
	})
	if _, why := e.ask(health["activator"]); strings.Contains(why, "connection refused") {
		t.Error("the activator takes no request: " + why)
	}
}

// Autoscaler and controller begin again; the process goes on.
func TestOtherBucketsRestartOnlyWhoHasThem(t *testing.T) {
	e := launch(t, "127.0.0.1:1")
	held := func(names ...string) {
		t.Helper()
		e.until(strings.Join(names, " and ")+" are held", func() (bool, string) {
			for _, name := range names {
				l, err := e.kube.CoordinationV1().Leases("knative-serving").Get(t.Context(), name, metav1.GetOptions{})
				if err != nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
					return false, fmt.Sprint(name, " is free: ", err)
				}
			}
			return true, ""
		})
	}
	held("controller.00-of-01", "autoscaler-bucket-00-of-01")
	two := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "knative-serving", Name: "config-leader-election"}, Data: map[string]string{"buckets": "2"}}
	if _, err := e.kube.CoreV1().ConfigMaps(two.Namespace).Create(t.Context(), two, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	held("controller.00-of-02", "controller.01-of-02", "autoscaler-bucket-00-of-02", "autoscaler-bucket-01-of-02")
	e.await("the controller runs", fmt.Sprintf("http://%s:8081/health", e.ip), "")
	e.await("the autoscaler has its metrics", fmt.Sprintf("http://%s:9091%s", e.ip, wire.PathMetrics), "ebb_autoscaler_")
}

func TestAWrongEnvironmentIsSaid(t *testing.T) {
	env := func(name string) string {
		return map[string]string{"SYSTEM_NAMESPACE": "knative-serving", "EBB_COAPS_ADDRESS": "127.0.0.1:0", "EBB_COAP_GATEWAY": "nowhere"}[name]
	}
	if err := serveCoAP(t.Context(), env, io.Discard); err == nil || !strings.Contains(err.Error(), "EBB_COAP_GATEWAY") {
		t.Errorf("got %v", err)
	}
}

func TestNoTwoComponentsHaveTheSamePort(t *testing.T) {
	taken := map[int]string{wire.PortHTTP1: "requests", wire.PortH2C: "requests", wire.PortTLS: "requests", wire.PortAnnounce: "announcements",
		wire.PortStats: "stats", wire.PortView: "API"}
	for _, name := range []string{"activator", "autoscaler", "controller", "webhook", "coap"} {
		ports := component.New(name, with(name, func(string) string { return "" }), io.Discard).Ports
		uses := map[int]string{ports.Metrics: "metrics"}
		if name != "coap" {
			uses[ports.Profiling] = "profiles"
		}
		if name == "controller" || name == "webhook" {
			uses[ports.Health] = "health"
		}
		for port, use := range uses {
			if other := taken[port]; other != "" {
				t.Errorf("port %d is for the %s of %s and for %s", port, use, name, other)
			}
			taken[port] = use + " of " + name
		}
	}
}
