// Package tlsoptions reads the four TLS settings that operators may set for a server: versions,
// suites and curves.
//
// Owns: their spelling. Reads: text. Writes: a tls.Config. Never: allows less than TLS 1.2; without
// settings TLS 1.3 is the minimum.
package tlsoptions

import (
	"crypto/tls"
	"fmt"
	"strings"
)

// Settings are the texts, "" for what is not set. The lists are separated by commas.
type Settings struct{ MinVersion, MaxVersion, CipherSuites, CurvePreferences string }

var curves = map[string]tls.CurveID{
	"CurveP256": tls.CurveP256, "CurveP384": tls.CurveP384, "CurveP521": tls.CurveP521, "X25519": tls.X25519,
	"X25519MLKEM768": tls.X25519MLKEM768,
}

// Apply sets them in cfg. An error names the variable, which begins with prefix, such as
// "ACTIVATOR_TLS_".
func (s Settings) Apply(cfg *tls.Config, prefix string) error {
	cfg.MinVersion = tls.VersionTLS13
	var err error
	if s.MinVersion != "" {
		if cfg.MinVersion, err = version(s.MinVersion); err != nil {
			return fmt.Errorf("%sMIN_VERSION: %w", prefix, err)
		}
	}
	if s.MaxVersion != "" {
		if cfg.MaxVersion, err = version(s.MaxVersion); err != nil {
			return fmt.Errorf("%sMAX_VERSION: %w", prefix, err)
		}
		if cfg.MaxVersion < cfg.MinVersion {
			return fmt.Errorf("%sMAX_VERSION: %s is less than the minimum", prefix, s.MaxVersion)
		}
	}
	for name := range list(s.CipherSuites) {
		id, ok := suite(name)
		if !ok {
			return fmt.Errorf("%sCIPHER_SUITES: no suite is named %q", prefix, name)
		}
		cfg.CipherSuites = append(cfg.CipherSuites, id)
	}
	for name := range list(s.CurvePreferences) {
		id, ok := curves[name]
		if !ok {
			return fmt.Errorf("%sCURVE_PREFERENCES: no curve is named %q", prefix, name)
		}
		cfg.CurvePreferences = append(cfg.CurvePreferences, id)
	}
	return nil
}

func version(text string) (uint16, error) {
	switch text {
	case "1.2":
		return tls.VersionTLS12, nil
	case "1.3":
		return tls.VersionTLS13, nil
	}
	return 0, fmt.Errorf("%q is neither 1.2 nor 1.3", text)
}

func suite(name string) (uint16, bool) {
	for _, s := range tls.CipherSuites() {
		if s.Name == name {
			return s.ID, true
		}
	}
	return 0, false
}

func list(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" && !yield(part) {
				return
			}
		}
	}
}
