//go:build edge

package edge

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	piondtls "github.com/pion/dtls/v3"
	"github.com/plgd-dev/go-coap/v3/dtls"
	"github.com/plgd-dev/go-coap/v3/message"
	"github.com/plgd-dev/go-coap/v3/message/codes"
	"github.com/plgd-dev/go-coap/v3/message/pool"
	"github.com/plgd-dev/go-coap/v3/net/blockwise"
	"github.com/plgd-dev/go-coap/v3/options"
	"github.com/plgd-dev/go-coap/v3/udp/client"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

const identity, key = "edge-test", "0123456789abcdef"

// world is the cluster, a namespace, and where CoAP goes.
type world struct {
	*testing.T
	ctx       context.Context
	cluster   *cluster.Cluster
	namespace string
	coap      string
}

func begin(t *testing.T) *world {
	t.Helper()
	ctx, c, namespace := cluster.Begin(t, "edge", 8*time.Minute)
	service, err := c.Kube.CoreV1().Services(cluster.System).Get(ctx, "coap", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("%v: start the cluster with `make up PROFILE=edge`", err)
	}
	restore, err := c.SetConfig(ctx, "config-autoscaler", map[string]string{"stable-window": "6s", "scale-to-zero-grace-period": "6s"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := restore(context.Background()); err != nil {
			t.Error(err)
		}
	})
	patch := fmt.Sprintf(`{"stringData":{%q:%q}}`, identity, key)
	if _, err := c.Kube.CoreV1().Secrets(cluster.System).Patch(ctx, "coap-keys", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	return &world{T: t, ctx: ctx, cluster: c, namespace: namespace, coap: net.JoinHostPort(service.Spec.ClusterIP, "5684")}
}

// sample makes the Service of a sample and returns its host.
func (w *world) sample(name string) string {
	w.Helper()
	text, err := os.ReadFile(filepath.Join("../../samples", name, "service.yaml"))
	if err != nil {
		w.Fatal(err)
	}
	if err := w.cluster.Apply(w.ctx, w.namespace, string(text)); err != nil {
		w.Fatal(err)
	}
	url, err := w.cluster.AwaitReady(w.ctx, w.namespace, name)
	if err != nil {
		w.Fatal(err)
	}
	host, err := cluster.HostOf(url)
	if err != nil {
		w.Fatal(err)
	}
	return host
}

// dial makes a connection with a key. Its first request shakes hands.
func (w *world) dial(secret string) (*client.Conn, error) {
	return dtls.Dial(w.coap, dtls.NewDTLSClientOptions(
		piondtls.WithPSK(func([]byte) ([]byte, error) { return []byte(secret), nil }),
		piondtls.WithPSKIdentityHint([]byte(identity)),
		piondtls.WithCipherSuites(piondtls.TLS_PSK_WITH_AES_128_CCM_8)),
		options.WithContext(w.ctx), options.WithBlockwise(true, blockwise.SZX1024, time.Minute))
}

// connect dials until the entry knows the key.
func (w *world) connect() *client.Conn {
	w.Helper()
	var c *client.Conn
	err := cluster.Until(w.ctx, func() (bool, string, error) {
		var err error
		if c, err = w.dial(key); err != nil {
			return false, err.Error(), nil
		}
		if err = w.ask(c); err != nil {
			c.Close()
			return false, err.Error(), nil
		}
		return true, "", nil
	})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { c.Close() })
	return c
}

// ask sends a request for a host that no service has.
func (w *world) ask(c *client.Conn) error {
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()
	_, err := c.Get(ctx, "/", host("nobody.example.com"))
	return err
}

func host(name string) message.Option {
	return message.Option{ID: message.URIHost, Value: []byte(name)}
}

// "May a sensor that speaks CoAP call a service that sleeps?"
func TestACoAPRequestWakesAServiceFromZero(t *testing.T) {
	w := begin(t)
	hello := w.sample("hello-go")
	if err := w.cluster.AwaitNoPods(w.ctx, w.namespace, "hello-go"); err != nil {
		t.Fatal(err)
	}
	c := w.connect()
	answer, err := c.Get(w.ctx, "/", host(hello))
	if err != nil {
		t.Fatal(err)
	}
	if body, err := answer.ReadBody(); err != nil || answer.Code() != codes.Content || string(body) != "Hello Go!\n" {
		t.Errorf("%v %q %v", answer.Code(), body, err)
	}
	if answer, err := c.Get(w.ctx, "/", host("nobody.example.com")); err != nil || answer.Code() != codes.NotFound {
		t.Errorf("a host that no service has: %v %v", answer, err)
	}
	// HTTP goes on beside it.
	http := w.cluster.Client(time.Minute)
	defer http.CloseIdleConnections()
	if reply := probe.Get(w.ctx, http, "http://"+hello); reply.Body != "Hello Go!\n" {
		t.Errorf("HTTP: %v", reply)
	}
}

func TestAnObserverGetsTheEventsOfAStream(t *testing.T) {
	w := begin(t)
	events := w.sample("events")
	c := w.connect()
	got := make(chan string, 32)
	observation, err := c.Observe(w.ctx, "/events", func(m *pool.Message) {
		body, _ := m.ReadBody()
		got <- string(bytes.TrimSpace(body))
	}, host(events), message.Option{ID: message.URIQuery, Value: []byte("to=4")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = observation.Cancel(w.ctx) }()
	next := 1
	for next <= 4 {
		select {
		case text := <-got:
			if text == "" {
				continue // it observes, and no event came yet
			}
			if text != strconv.Itoa(next) {
				t.Fatalf("event %q, want %d", text, next)
			}
			next++
		case <-w.ctx.Done():
			t.Fatalf("no event %d", next)
		}
	}
}

func TestAWrongKeyGetsNoConnection(t *testing.T) {
	w := begin(t)
	w.connect() // the entry knows the key
	c, err := w.dial(strings.ToUpper(key))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := w.ask(c); err == nil {
		t.Error("a wrong key got an answer")
	}
}
