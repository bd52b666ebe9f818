// Package resting keeps what all hosts that rest share (docs/decisions/0020): the common
// HTTPRoutes, and the Service and the EndpointSlices of the activators that follow plans. Each
// replica finds out for itself whether the gateways have the common HTTPRoutes.
//
// Owns: what is above. Reads: settings, the EndpointSlices of the activators, the plans in the
// status of Routes, what policies the cluster can have; gateways and activators, by probes. Writes:
// what it owns; it deletes bridges whose Route is gone. Never: takes away what a host needs that
// rests; decides which hosts rest.
package resting

import (
	"fmt"
	"strings"

	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
)

// twins is how many HTTPRoutes there are for the same hosts. If somebody deletes one, the other
// serves until it is back.
const twins = 2

// common is an HTTPRoute for hosts that have none of their own.
type common struct {
	visibility plan.Visibility
	domain     string // of public hosts
}

// commons lists what there should be for settings, without the twins. There is none while nothing
// may rest.
func commons(s *settings.Snapshot, system, clusterDomain string) (out []common) {
	if hindrance(s, system) != "" {
		return nil
	}
	for _, choice := range s.Domain.Choices {
		if choice.Domain != "svc."+clusterDomain {
			out = append(out, common{plan.External, choice.Domain})
		}
	}
	return append(out, common{plan.ClusterLocal, ""})
}

// covers reports whether the hosts of c have a host among them.
func (c common) covers(v plan.Visibility, host string) bool {
	return v == c.visibility && (c.domain == "" || strings.HasSuffix(host, "."+c.domain))
}

// name is that of the first or second HTTPRoute.
func (c common) name(twin int) string {
	id := string(c.visibility)
	if c.domain != "" {
		id = plan.ShortHash(c.domain)
	}
	return fmt.Sprintf("common-%s-%d", id, twin+1)
}

// route returns what the HTTPRoute is made of.
func (c common) route(system string, twin int) gatewayapi.ToActivators {
	to := gatewayapi.ToActivators{Namespace: system, Name: c.name(twin), Visibility: c.visibility}
	if c.domain != "" {
		to.Hosts = []string{"*." + c.domain}
	}
	return to
}

// probed is a host that nobody has but the common HTTPRoutes.
func (c common) probed() string {
	if c.domain != "" {
		return "ebb-common." + c.domain
	}
	return "ebb-common.ebb.invalid"
}

// gateways are those at which c is.
func (c common) gateways(g settings.Gateway) []settings.GatewayRef {
	if c.visibility == plan.External {
		return g.External
	}
	return g.Local
}

// hindrance says why by the settings nothing may rest, "" if something may.
func hindrance(s *settings.Snapshot, system string) string {
	switch {
	case !s.Gateway.Resting:
		return "resting-routes in config-gateway is Disabled"
	case s.Network.SystemInternalTLS:
		return "system-internal-tls in config-network is Enabled"
	}
	for _, local := range s.Gateway.Local {
		if local.Namespace() != system {
			// An HTTPRoute without a host would take all hosts of others there.
			return fmt.Sprintf("the Gateway %s for hosts inside the cluster is not in Ebb's namespace", local.Gateway)
		}
		for _, external := range s.Gateway.External {
			if external.Gateway == local.Gateway || external.Service == local.Service {
				return fmt.Sprintf("the Gateway %s has external hosts and those inside the cluster", local.Gateway)
			}
		}
	}
	return ""
}
