package digest

import (
	"crypto/tls"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Transport returns the transport to registries. The variables TAG_TO_DIGEST_TLS_MIN_VERSION, _MAX_VERSION (1.2, 1.3) and
// _CIPHER_SUITES (a list with commas) configure its TLS. Values that are not known leave Go's default.
func Transport(env func(string) string) http.RoundTripper {
	t := remote.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{
		MinVersion:   version(env("TAG_TO_DIGEST_TLS_MIN_VERSION"), tls.VersionTLS12),
		MaxVersion:   version(env("TAG_TO_DIGEST_TLS_MAX_VERSION"), 0),
		CipherSuites: suites(env("TAG_TO_DIGEST_TLS_CIPHER_SUITES")),
	}
	// There are many registries, and each gets few requests.
	t.MaxIdleConnsPerHost = 4
	return t
}

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
