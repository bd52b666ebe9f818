package resting

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/ingress/ready"
	"ebb.dev/ebb/settings"
)

// lookEach is how often it is found out whether gateway pods or kinds of policies came.
const lookEach = 10 * time.Second

// Seen tells which common HTTPRoutes the gateways have.
type Seen struct {
	settings              *settings.Store
	system, clusterDomain string
	finder                *gateway.Finder
	prober                *ready.Prober
	dynamic               dynamic.Interface
	changed               []func() // not changed once it runs
	again                 chan struct{}

	mu sync.Mutex
	// live has the common HTTPRoutes that every gateway pod was seen to have, pods those that were
	// asked.
	live map[common]bool
	pods map[common]string
	// policies says which kind of policies keeps all hosts from resting. While it is not known, no
	// host comes to rest, and those that rest go on.
	policies string
	known    bool
}

// NewSeen returns what tells which common HTTPRoutes the gateways have, while it runs.
func NewSeen(mgr *reconcile.Manager) *Seen {
	s := &Seen{settings: mgr.Settings, system: mgr.SystemNamespace, clusterDomain: mgr.ClusterDomain, finder: gateway.NewFinder(mgr.Kube, mgr.Now),
		dynamic: mgr.Dynamic, again: make(chan struct{}, 1),
		live: map[common]bool{}, pods: map[common]string{}}
	s.prober = ready.New(s.finder, func(types.NamespacedName) { s.lookAgain() })
	if mgr.ToGateways != nil {
		s.prober.Through(mgr.ToGateways)
	}
	return s
}

// Wildcard returns the hosts of the common HTTPRoute that a host is led by, "" if these are all
// hosts of the Gateways.
func (s *Seen) Wildcard(v plan.Visibility, host string) string {
	longest := ""
	for _, c := range commons(s.settings.Load(), s.system, s.clusterDomain) {
		if c.covers(v, host) && len(c.domain) > len(longest) {
			longest = c.domain
		}
	}
	if longest == "" {
		return ""
	}
	return "*." + longest
}

// Tell has f called when an answer changes.
func (s *Seen) Tell(f func()) { s.changed = append(s.changed, f) }

func (s *Seen) lookAgain() {
	select {
	case s.again <- struct{}{}:
	default:
	}
}

// Hindrance says why nothing may rest, "" if something may.
func (s *Seen) Hindrance() string {
	if why := hindrance(s.settings.Load(), s.system); why != "" {
		return why
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.policies
}

// Covers reports whether every gateway pod leads a host to activators that has no HTTPRoute of its
// own.
func (s *Seen) Covers(v plan.Visibility, host string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c, live := range s.live {
		if s.known && live && c.covers(v, host) {
			return true
		}
	}
	return false
}

// all reports whether the gateways have all common HTTPRoutes that there should be.
func (s *Seen) all(wanted []common) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(wanted, func(c common) bool { return !s.live[c] })
}

// Run finds it out until ctx ends.
func (s *Seen) Run(ctx context.Context) {
	var probes sync.WaitGroup
	probes.Go(func() { s.prober.Run(ctx) })
	defer probes.Wait()
	ticker := time.NewTicker(lookEach)
	defer ticker.Stop()
	for due := true; ; {
		_, replaced := s.settings.Current()
		s.look(ctx, due)
		due = false
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			due = true
		case <-replaced:
			due = true
		case <-s.again:
		}
	}
}

// look probes what there should be. If due is set, it looks for new gateway pods and policies, too.
func (s *Seen) look(ctx context.Context, due bool) {
	snapshot := s.settings.Load()
	wanted := map[common]bool{}
	for _, c := range commons(snapshot, s.system, s.clusterDomain) {
		wanted[c] = true
	}
	changed := false
	if due && len(wanted) > 0 {
		why, err := s.policiesThere(ctx)
		s.mu.Lock()
		if err == nil {
			changed, s.policies, s.known = s.policies != why || !s.known, why, true
		}
		s.mu.Unlock()
	}
	for c := range wanted {
		changed = s.ask(ctx, snapshot.Gateway, c, due) || changed
	}
	s.mu.Lock()
	for c, live := range s.live {
		if !wanted[c] {
			changed = changed || live
			delete(s.live, c)
			delete(s.pods, c)
			s.prober.Forget(types.NamespacedName{Name: c.name(0)})
		}
	}
	s.mu.Unlock()
	if changed {
		for _, f := range s.changed {
			f()
		}
	}
}

// ask probes one common HTTPRoute, and reports whether the answer is another one than before.
func (s *Seen) ask(ctx context.Context, g settings.Gateway, c common, due bool) bool {
	_, hash := c.route(s.system, 0).HTTPRoute(g, gatewayapi.Meta{})
	want := ready.Want{Hash: hash}
	for _, on := range c.gateways(g) {
		want.Probes = append(want.Probes, ready.Probe{Service: on.Service, Port: gateway.HTTP, Host: c.probed()})
	}
	key := types.NamespacedName{Name: c.name(0)}
	if due {
		pods := s.addresses(ctx, want)
		s.mu.Lock()
		other := s.pods[c] != pods
		s.pods[c] = pods
		s.mu.Unlock()
		if other {
			s.prober.Forget(key)
		}
	}
	live, _ := s.prober.Check(key, want)
	s.mu.Lock()
	defer s.mu.Unlock()
	other := s.live[c] != live
	s.live[c] = live
	return other
}

func (s *Seen) addresses(ctx context.Context, want ready.Want) string {
	var out []string
	for _, p := range want.Probes {
		addresses, err := s.finder.Addresses(ctx, p.Service, p.Port)
		if err != nil {
			return err.Error()
		}
		out = append(out, p.Service)
		out = append(out, addresses...)
	}
	return strings.Join(out, " ")
}

// policyLabel is on the definitions of policies of the Gateway API.
const policyLabel = "gateway.networking.k8s.io/policy"

// Policies that target no HTTPRoutes.
var toServices = map[string]bool{
	"backendtlspolicies.gateway.networking.k8s.io":        true,
	"xbackendtrafficpolicies.gateway.networking.x-k8s.io": true,
}

// withoutLabel are definitions of policies that do not have the label. Who has one of Envoy
// Gateway's has all.
var withoutLabel = []string{"securitypolicies.gateway.envoyproxy.io"}

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// policiesThere says which policies there may be that target HTTPRoutes, "" if none. One of a host
// that has no HTTPRoute would have no effect, and nobody would see it.
func (s *Seen) policiesThere(ctx context.Context) (string, error) {
	list, err := s.dynamic.Resource(definitions).List(ctx, metav1.ListOptions{LabelSelector: policyLabel})
	if err != nil {
		return "", fmt.Errorf("find out which policies the cluster has: %w", err)
	}
	for i := range list.Items {
		if name := list.Items[i].GetName(); !toServices[name] {
			return "the cluster has policies that HTTPRoutes can have: " + name, nil
		}
	}
	for _, name := range withoutLabel {
		_, err := s.dynamic.Resource(definitions).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return "the cluster has policies that HTTPRoutes can have: " + name, nil
		} else if !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("find out which policies the cluster has: %w", err)
		}
	}
	return "", nil
}
