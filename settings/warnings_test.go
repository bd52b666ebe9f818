package settings

import (
	"strings"
	"testing"
)

func TestAKeyWithoutEffectIsAnsweredWithAWarning(t *testing.T) {
	for _, c := range []struct{ configMap, key, value, warns string }{
		{NetworkName, "ingress-class", "kourier.ingress.networking.knative.dev", "config-gateway"},
		{NetworkName, "ingress.class", "kourier.ingress.networking.knative.dev", "config-gateway"},
		{NetworkName, "ingress-class", "istio.ingress.networking.knative.dev", ""},
		{NetworkName, "certificate-class", "mine", "cert-manager"},
		{NetworkName, "certificate-class", "cert-manager.certificate.networking.knative.dev", ""},
		{NetworkName, "mesh-compatibility-mode", "enabled", ""},
		{NetworkName, "system-internal-tls-allow-serve-mode", "true", "over TLS"},
		{NetworkName, "domainTemplate", "{{.Name}}.{{.Domain}}", ""},
		{NetworkName, "doamin-template", "{{.Name}}.{{.Domain}}", "no such key"},
		{NetworkName, "_example", "anything", ""},
		{LeaderElectionName, "map-lease-prefix.controller", "x", ""},
		{LeaderElectionName, "map-lease-prefix.autoscaler", "x", ""},
		{LeaderElectionName, "map-lease-prefix.controller.knative.dev.serving.pkg.reconciler.route.reconciler", "x", "share"},
		{LoggingName, "loglevel.controller", "debug", ""},
		{LoggingName, "loglevel.", "debug", "no such key"},
		{DomainName, "example.com", "", ""},
		{TracingName, "backend", "zipkin", "tracing-endpoint"},
		{FeaturesName, "kubernetes.podspec-affinity", "Enabled", ""},
		{FeaturesName, "kubernetes.podspec-afinity", "Enabled", "no such key"},
		{"config-of-somebody-else", "x", "y", ""},
	} {
		got := strings.Join(Warnings(c.configMap, map[string]string{c.key: c.value}), "; ")
		if c.warns == "" && got != "" || c.warns != "" && (!strings.Contains(got, c.warns) || !strings.Contains(got, c.key) || !strings.Contains(got, c.configMap)) {
			t.Errorf("%s, %s=%s: %q, want something about %q", c.configMap, c.key, c.value, got, c.warns)
		}
	}
	for _, one := range sections(&Snapshot{}) {
		for _, k := range one.keys {
			name := strings.NewReplacer("<component>", "controller", "<domain>", "example.com").Replace(k.name)
			if got := Warnings(one.name, map[string]string{name: k.Default}); len(got) > 0 && k.name != "system-internal-tls-allow-serve-mode" {
				t.Errorf("%s at its default: %v", name, got)
			}
		}
	}
}
