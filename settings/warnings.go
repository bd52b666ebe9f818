package settings

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Warnings says what of the content of the ConfigMap name is legal and has no effect, so that
// nobody waits for one.
func Warnings(name string, data map[string]string) []string {
	if !Known(name) {
		return nil
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if why := idle(name, key, strings.TrimSpace(data[key])); key != "_example" && why != "" {
			all = append(all, fmt.Sprintf("ConfigMap %s: key %q has no effect: %s", name, key, why))
		}
	}
	return all
}

// idle says why a key with its value has no effect, "" if it has.
func idle(configMap, key, value string) string {
	k, known := find(configMap, key)
	switch {
	case configMap == TracingName:
		return "the ConfigMap is deprecated; set tracing-protocol, tracing-endpoint and tracing-sampling-rate of " + ObservabilityName
	case !known:
		return "Ebb knows no such key; docs/settings.md lists all"
	case configMap != NetworkName && configMap != LeaderElectionName:
		return ""
	}
	switch k.Name {
	case "ingress-class":
		if value != k.Default {
			return fmt.Sprintf("Ebb writes HTTPRoutes for the Gateways of %s and leaves no Route to another implementation, so %q names none", GatewayName, value)
		}
	case "certificate-class":
		if value != k.Default {
			return fmt.Sprintf("certificates are made by cert-manager, as %s says, so %q names nobody", CertManagerName, value)
		}
	case "system-internal-tls-allow-serve-mode":
		return "while system-internal-tls is Enabled gateways reach every revision over TLS, with the activator in the path or without"
	case "map-lease-prefix.<component>":
		if key != "map-lease-prefix.controller" && key != "map-lease-prefix.autoscaler" {
			return "the leases are map-lease-prefix.controller's and map-lease-prefix.autoscaler's; all reconcilers of a component share them"
		}
	}
	return ""
}

// find is the description of a key as somebody spelled it.
func find(configMap, key string) (Key, bool) {
	for _, k := range keys {
		if k.ConfigMap != configMap {
			continue
		}
		before, after, isPattern := strings.Cut(k.Name, "<")
		_, after, _ = strings.Cut(after, ">")
		switch {
		case k.Name == key, slices.Contains(k.Legacy, key):
			return k, true
		case isPattern && len(key) > len(before)+len(after) && strings.HasPrefix(key, before) && strings.HasSuffix(key, after):
			return k, true
		}
	}
	return Key{}, false
}
