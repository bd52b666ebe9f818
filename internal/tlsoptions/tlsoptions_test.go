package tlsoptions

import (
	"crypto/tls"
	"strings"
	"testing"
)

func TestSettings(t *testing.T) {
	for _, c := range []struct {
		name  string
		env   map[string]string
		want  *tls.Config
		fault string
	}{
		{name: "nothing set", want: &tls.Config{MinVersion: tls.VersionTLS13}},
		{name: "an older minimum", env: map[string]string{"X_MIN_VERSION": "1.2"}, want: &tls.Config{MinVersion: tls.VersionTLS12}},
		{name: "only 1.2", env: map[string]string{"X_MIN_VERSION": "1.2", "X_MAX_VERSION": "1.2"}, want: &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12}},
		{name: "suites and curves", env: map[string]string{"X_CIPHER_SUITES": "TLS_AES_128_GCM_SHA256, TLS_AES_256_GCM_SHA384", "X_CURVE_PREFERENCES": "X25519,CurveP256"},
			want: &tls.Config{MinVersion: tls.VersionTLS13, CipherSuites: []uint16{tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384},
				CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256}}},
		{name: "too old", env: map[string]string{"X_MIN_VERSION": "1.1"}, fault: "X_MIN_VERSION"},
		{name: "no version", env: map[string]string{"X_MAX_VERSION": "new"}, fault: "X_MAX_VERSION"},
		{name: "less than the minimum", env: map[string]string{"X_MAX_VERSION": "1.2"}, fault: "X_MAX_VERSION"},
		{name: "no suite", env: map[string]string{"X_CIPHER_SUITES": "ROT13"}, fault: "X_CIPHER_SUITES"},
		{name: "no curve", env: map[string]string{"X_CURVE_PREFERENCES": "Circle"}, fault: "X_CURVE_PREFERENCES"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got tls.Config
			err := Settings{c.env["X_MIN_VERSION"], c.env["X_MAX_VERSION"], c.env["X_CIPHER_SUITES"], c.env["X_CURVE_PREFERENCES"]}.Apply(&got, "X_")
			switch {
			case c.fault != "":
				if err == nil || !strings.Contains(err.Error(), c.fault) {
					t.Fatalf("got error %v, want one that names %s", err, c.fault)
				}
				return
			case err != nil:
				t.Fatal(err)
			}
			if got.MinVersion != c.want.MinVersion || got.MaxVersion != c.want.MaxVersion || len(got.CipherSuites) != len(c.want.CipherSuites) ||
				len(got.CurvePreferences) != len(c.want.CurvePreferences) {
				t.Errorf("got %x %x %v %v", got.MinVersion, got.MaxVersion, got.CipherSuites, got.CurvePreferences)
			}
		})
	}
}
