package digest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Transport returns the transport to registries. The variables TAG_TO_DIGEST_TLS_MIN_VERSION,
// _MAX_VERSION (1.2, 1.3) and _CIPHER_SUITES (a list with commas) configure its TLS. Values that
// are not known leave Go's default.
func Transport(env func(string) string) http.RoundTripper {
	t := remote.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second, Control: onlyRemote}).DialContext
	t.TLSClientConfig = &tls.Config{
		MinVersion:   version(env("TAG_TO_DIGEST_TLS_MIN_VERSION"), tls.VersionTLS12),
		MaxVersion:   version(env("TAG_TO_DIGEST_TLS_MAX_VERSION"), 0),
		CipherSuites: suites(env("TAG_TO_DIGEST_TLS_CIPHER_SUITES")),
	}
	// There are many registries, and each gets few requests.
	t.MaxIdleConnsPerHost = 4
	return t
}

var errAddress = errors.New("the registry's address is of this host or link, where no registry is asked")

// onlyRemote refuses to connect to addresses that are the controller's own or its node's: loopback,
// and link-local ones, where clouds serve the credentials of a node. It sees the address that is
// dialled, whatever name or redirect led there.
func onlyRemote(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dial %s: %w", address, err)
	}
	ip := to.Addr().Unmap()
	if ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip == cloudIPv6 {
		return errAddress
	}
	return nil
}

// cloudIPv6 is where a cloud serves credentials over IPv6; it is not link-local.
var cloudIPv6 = netip.MustParseAddr("fd00:ec2::254")

func version(text string, otherwise uint16) uint16 {
	switch text {
	case "1.2":
		return tls.VersionTLS12
	case "1.3":
		return tls.VersionTLS13
	}
	return otherwise
}

func suites(text string) []uint16 {
	var ids []uint16
	for _, name := range strings.Split(text, ",") {
		i := slices.IndexFunc(tls.CipherSuites(), func(s *tls.CipherSuite) bool { return s.Name == strings.TrimSpace(name) })
		if i >= 0 {
			ids = append(ids, tls.CipherSuites()[i].ID)
		}
	}
	return ids
}
