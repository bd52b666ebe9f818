package component

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// with is the environment of a pod, with some variables changed.
func with(change map[string]string) func(string) string {
	return func(name string) string {
		if text, ok := change[name]; ok {
			return text
		}
		return map[string]string{"SYSTEM_NAMESPACE": "knative-serving", "POD_NAME": "some-pod"}[name]
	}
}

func TestPortsAreTheUsualOnesOrThoseOfTheEnvironment(t *testing.T) {
	c := New("some", with(nil), io.Discard)
	if c.Ports != (Ports{9090, 8008, 8080}) || c.Address(c.Ports.Metrics) != ":9090" || c.Env.Err() != nil {
		t.Errorf("got %+v %v", c.Ports, c.Env.Err())
	}
	c = New("some", with(map[string]string{"EBB_METRICS_PORT": "9093", "EBB_PPROF_PORT": "8009", "EBB_HEALTH_PORT": "8081", "EBB_LISTEN_IP": "::1"}), io.Discard)
	if c.Ports != (Ports{9093, 8009, 8081}) || c.Address(c.Ports.Metrics) != "[::1]:9093" || c.Env.Err() != nil {
		t.Errorf("got %+v %v", c.Ports, c.Env.Err())
	}
}

// What is wrong stops a component before it asks the API server for anything.
func TestAComponentSaysAllThatIsWrongWithItsEnvironment(t *testing.T) {
	wrong := map[string]string{"SYSTEM_NAMESPACE": "", "POD_NAME": "", "EBB_LISTEN_IP": "localhost", "EBB_METRICS_PORT": "0", "EBB_PPROF_PORT": "65536", "EBB_HEALTH_PORT": "http"}
	c := New("some", with(wrong), io.Discard)
	c.Env.Needed("OF_ITS_OWN", "What for.")
	err := c.Start(t.Context())
	if err == nil || c.Kube != nil {
		t.Fatalf("it has started: %v", err)
	}
	for name := range wrong {
		if !strings.Contains(err.Error(), "environment "+name) {
			t.Errorf("%s is not named in %q", name, err)
		}
	}
	if !strings.Contains(err.Error(), "OF_ITS_OWN") {
		t.Errorf("its own variable is not named in %q", err)
	}
}

func TestTheAutoscalerIsItsServiceOrWhatTheEnvironmentSays(t *testing.T) {
	c := New("some", with(nil), io.Discard)
	c.ClusterDomain = "example.org"
	if got := c.Autoscaler(); got != "autoscaler.knative-serving.svc.example.org.:8080" {
		t.Error(got)
	}
	if got := New("some", with(map[string]string{"EBB_AUTOSCALER": "127.0.0.1:1"}), io.Discard).Autoscaler(); got != "127.0.0.1:1" {
		t.Error(got)
	}
}

// A component that runs shows its metrics, follows the level of its log, and has its Secrets.
func TestAComponentRuns(t *testing.T) {
	_, config := apiservertest.Start(t)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	keys := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "knative-serving", Name: wire.TokenSecret},
		Data: map[string][]byte{wire.TokenSecretKey: bytes.Repeat([]byte("k"), 32)}}
	logging := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "knative-serving", Name: "config-logging"}, Data: map[string]string{"loglevel.some": "debug"}}
	if _, err := kube.CoreV1().Secrets(keys.Namespace).Create(t.Context(), keys, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().ConfigMaps(logging.Namespace).Create(t.Context(), logging, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	err = clientcmd.WriteToFile(clientcmdapi.Config{CurrentContext: "c", Contexts: map[string]*clientcmdapi.Context{"c": {Cluster: "c"}},
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: config.Host}}}, file)
	if err != nil {
		t.Fatal(err)
	}
	// An address of the loopback of its own, because the ports are fixed.
	ip := fmt.Sprintf("127.78.%d.%d", os.Getpid()>>8&255, max(1, os.Getpid()&255))
	var log bytes.Buffer
	c := New("some", with(map[string]string{"KUBECONFIG": file, "EBB_LISTEN_IP": ip}), &log)
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	signed, err := c.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	eventually.True(t, "it has the keys", func() bool { return signed().Token("", wire.ActivatorSubject) != "" })
	eventually.True(t, "its metrics are there", func() bool { return get("http://"+ip+":9090/metrics", "ebb_build_info") })
	if get("http://"+ip+":9090/", "") {
		t.Error("another path than /metrics is answered")
	}
	eventually.True(t, "the level is debug", func() bool { return c.level.Level().String() == "DEBUG" })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	c.Log.Debug("a word")
	lines := bytes.Split(bytes.TrimSpace(log.Bytes()), []byte("\n"))
	var line map[string]string
	if err := json.Unmarshal(lines[len(lines)-1], &line); err != nil || line["component"] != "some" || line["message"] != "a word" {
		t.Errorf("the log is %q: %v", log.String(), err)
	}
}

func get(url, contains string) bool {
	response, err := http.Get(url)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode == http.StatusOK && strings.Contains(string(text), contains)
}
