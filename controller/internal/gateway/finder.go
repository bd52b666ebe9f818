package gateway

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Finder finds gateway pods. It asks the API server, at most once per second and Service: the
// Services are a setting, so there is no informer for them.
type Finder struct {
	kube kubernetes.Interface
	now  func() time.Time

	mu    sync.Mutex
	known map[string]answer
}

type answer struct {
	addresses []string
	err       error
	until     time.Time
}

const addressesKept = time.Second

// NewFinder returns a Finder whose clock is now.
func NewFinder(kube kubernetes.Interface, now func() time.Time) *Finder {
	return &Finder{kube: kube, now: now, known: map[string]answer{}}
}

// Addresses implements ready.Gateways.
func (g *Finder) Addresses(ctx context.Context, service string, port int32) ([]string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := service + ":" + strconv.Itoa(int(port))
	if a, ok := g.known[id]; ok && g.now().Before(a.until) {
		return a.addresses, a.err
	}
	addresses, err := g.find(ctx, service, port)
	if ctx.Err() == nil {
		g.known[id] = answer{addresses, err, g.now().Add(addressesKept)}
	}
	return addresses, err
}

func (g *Finder) find(ctx context.Context, service string, port int32) ([]string, error) {
	namespace, name, _ := strings.Cut(service, "/")
	s, err := g.kube.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("find the gateway behind Service %s (ConfigMap config-gateway names it): %w", service, err)
	}
	portName, found := "", false
	for _, p := range s.Spec.Ports {
		if p.Port == port {
			portName, found = p.Name, true
		}
	}
	if !found {
		return nil, fmt.Errorf("the gateway's Service %s has no port %d", service, port)
	}
	slices, err := g.kube.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
	if err != nil {
		return nil, fmt.Errorf("list the gateway pods of Service %s: %w", service, err)
	}
	var out []string
	for _, slice := range slices.Items {
		for _, p := range slice.Ports {
			if p.Port == nil || p.Name == nil || *p.Name != portName {
				continue
			}
			for _, e := range slice.Endpoints {
				if (e.Conditions.Ready == nil || *e.Conditions.Ready) && len(e.Addresses) > 0 {
					out = append(out, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the gateway's Service %s has no ready pod", service)
	}
	return out, nil
}
