package settings

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Warnings names the keys of a ConfigMap that are legal and have no effect.
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

// idle says why a key with its value has no effect, "" if it has one.
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
	switch k.name {
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

// find returns the description of a key as somebody spelled it.
func find(configMap, name string) (key, bool) {
	for _, one := range sections(&Snapshot{}) {
		for _, k := range one.keys {
			if _, ok := k.match(name); ok && one.name == configMap {
				return k, true
			}
		}
	}
	return key{}, false
}
