package digest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

var errAddress = errors.New("the registry's address, or one that it leads to, is one where no registry is asked")

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

// notLocal refuses addresses that are the controller's own or its node's: loopback, link-local, and
// those where clouds serve the credentials of a node.
func notLocal(_ context.Context, ip netip.Addr) error {
	ip = embedded(ip)
	if ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || ip.IsMulticast() ||
		thisNetwork.Contains(ip) || slices.Contains(clouds, ip.WithZone("")) {
		return errAddress
	}
	return nil
}

// services knows the addresses of the cluster's Services.
type services struct {
	kube kubernetes.Interface
	// server is the address of the Service of the API server.
	server string

	mu     sync.Mutex
	ranges []netip.Prefix
	read   time.Time
}

// notAService also refuses the addresses of Services.
func (s *services) notAService(ctx context.Context, ip netip.Addr) error {
	if err := notLocal(ctx, ip); err != nil {
		return err
	}
	ranges, err := s.list(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(embedded(ip)) }) {
		return errAddress
	}
	return nil
}

// public also refuses private addresses.
func (s *services) public(ctx context.Context, ip netip.Addr) error {
	if ip := embedded(ip); ip.IsPrivate() || shared.Contains(ip) {
		return errAddress
	}
	return s.notAService(ctx, ip)
}

// rangesAge is the time after which the ranges are read again; an operator may add one.
const rangesAge = 10 * time.Minute

// list returns the ranges of the Services' addresses. A Kubernetes before 1.33 does not tell them.
func (s *services) list(ctx context.Context) ([]netip.Prefix, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ranges != nil && time.Since(s.read) < rangesAge {
		return s.ranges, nil
	}
	ranges := []netip.Prefix{}
	if server, err := netip.ParseAddr(s.server); err == nil {
		ranges = append(ranges, netip.PrefixFrom(server.Unmap(), server.Unmap().BitLen()))
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	have, err := s.kube.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
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
