// Package egress decides which addresses a component may connect to on behalf of a tenant, who may
// name any host. It judges the address that is dialled, whatever name or redirect led there.
//
// Owns: nothing. Reads: the ranges of the cluster's Services. Writes: nothing. Never: resolves a
// name.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// ErrAddress is returned for an address that may not be connected to.
var ErrAddress = errors.New("the address may not be connected to on behalf of a tenant")

// A Rule decides whether an address may be connected to.
type Rule func(context.Context, netip.Addr) error

// Control applies the rule to the address that is dialled. It is the ControlContext of a
// net.Dialer.
func (allowed Rule) Control(ctx context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dial %s: %w", address, err)
	}
	return allowed(ctx, to.Addr())
}

// Except returns a rule that also allows the networks that the operator named, unless they are
// those of NotLocal.
func (allowed Rule) Except(networks func() []netip.Prefix) Rule {
	return func(ctx context.Context, ip netip.Addr) error {
		if slices.ContainsFunc(networks(), func(p netip.Prefix) bool { return p.Contains(embedded(ip)) }) {
			return NotLocal(ctx, ip)
		}
		return allowed(ctx, ip)
	}
}

// Where clouds serve the credentials of a node, besides link-local addresses.
var clouds = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"), netip.MustParseAddr("100.100.100.200"),
	netip.MustParseAddr("192.0.0.192"), netip.MustParseAddr("168.63.129.16"),
}

var (
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8")
	shared      = netip.MustParsePrefix("100.64.0.0/10") // behind a provider's NAT; clouds use it for pods
	nat64       = netip.MustParsePrefix("64:ff9b::/96")  // an IPv4 address, reached over IPv6
)

// embedded returns the IPv4 address that an IPv6 address stands for.
func embedded(ip netip.Addr) netip.Addr {
	if nat64.Contains(ip) {
		b := ip.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return ip.Unmap()
}

// NotLocal refuses addresses that are the process's own or its node's: loopback, link-local, and
// those where clouds serve the credentials of a node.
func NotLocal(_ context.Context, ip netip.Addr) error {
	ip = embedded(ip)
	if ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || ip.IsMulticast() ||
		thisNetwork.Contains(ip) || slices.Contains(clouds, ip.WithZone("")) {
		return ErrAddress
	}
	return nil
}

// Services knows the addresses of the cluster's Services.
type Services struct {
	Kube kubernetes.Interface
	// Server is the address of the Service of the API server.
	Server string

	mu     sync.Mutex
	ranges []netip.Prefix
	read   time.Time
}

// NotAService also refuses the addresses of Services.
func (s *Services) NotAService(ctx context.Context, ip netip.Addr) error {
	if err := NotLocal(ctx, ip); err != nil {
		return err
	}
	ranges, err := s.list(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(embedded(ip)) }) {
		return ErrAddress
	}
	return nil
}

// Public also refuses private addresses.
func (s *Services) Public(ctx context.Context, ip netip.Addr) error {
	if ip := embedded(ip); ip.IsPrivate() || shared.Contains(ip) {
		return ErrAddress
	}
	return s.NotAService(ctx, ip)
}

// rangesAge is the time after which the ranges are read again; an operator may add one.
const rangesAge = 10 * time.Minute

// list returns the ranges of the Services' addresses. A Kubernetes before 1.33 does not tell them.
func (s *Services) list(ctx context.Context) ([]netip.Prefix, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ranges != nil && time.Since(s.read) < rangesAge {
		return s.ranges, nil
	}
	ranges := []netip.Prefix{}
	if server, err := netip.ParseAddr(s.Server); err == nil {
		ranges = append(ranges, netip.PrefixFrom(server.Unmap(), server.Unmap().BitLen()))
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	have, err := s.Kube.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("list the ranges of Services: %w", err)
	}
	if err == nil {
		for _, one := range have.Items {
			for _, text := range one.Spec.CIDRs {
				if p, err := netip.ParsePrefix(text); err == nil {
					ranges = append(ranges, p)
				}
			}
		}
	}
	s.ranges, s.read = ranges, time.Now()
	return ranges, nil
}
