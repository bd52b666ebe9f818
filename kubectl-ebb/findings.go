package main

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	view "ebb.dev/ebb/api/view/v1alpha1"
)

// oldestMinor is the oldest Kubernetes 1.x that has what Ebb's manifests use: admission policies
// and conditions of webhooks are stable since then.
const oldestMinor = 30

// versionLabel names the version of a component.
const versionLabel = "app.kubernetes.io/version"

// findings makes findings of facts. before is true if Ebb need not be installed yet.
func (x *installation) findings(before bool, now time.Time) []finding {
	j := &checklist{}
	x.checkKubernetes(j)
	if x.resources[names.ServingGroup+"/v1"] == nil {
		if !before {
			j.broken("Ebb", "it is not installed", "Install it as docs/install.md says: kubectl apply --server-side -f ebb-crds.yaml -f ebb.yaml")
		}
		return j.findings
	}
	if before {
		j.warn("Ebb", "it, or Knative Serving, is installed already", "kubectl ebb check")
		return j.findings
	}
	x.checkComponents(j)
	x.checkSettings(j)
	x.checkResting(j)
	x.checkWebhook(j, now)
	x.checkView(j)
	x.checkAgents(j)
	x.checkPlanners(j)
	for _, f := range x.kserve.Findings() {
		j.add(f.About, state(f.State), f.Text, f.Do)
	}
	if len(x.missing) > 0 {
		j.warn("your rights", fmt.Sprintf("in the namespace %q you may not %s", x.namespace, strings.Join(x.missing, ", ")),
			"Ask for the ClusterRole edit, or view, in that namespace.")
	} else {
		j.ok("your rights", fmt.Sprintf("you may create and read Services in the namespace %q", x.namespace))
	}
	return j.findings
}

type checklist struct{ findings []finding }

func (j *checklist) ok(about, text string)         { j.add(about, fine, text, "") }
func (j *checklist) warn(about, text, do string)   { j.add(about, warning, text, do) }
func (j *checklist) broken(about, text, do string) { j.add(about, broken, text, do) }

func (j *checklist) add(about string, s state, text, do string) {
	j.findings = append(j.findings, finding{about, s, text, do})
}

// unread records that something could not be read. It reports whether that is so.
func (j *checklist) unread(about string, err error, absent string) bool {
	switch {
	case err == nil:
		return false
	case apierrors.IsForbidden(err):
		j.add(about, skipped, "you may not read it", "")
	case apierrors.IsNotFound(err):
		j.broken(about, "it is not there", absent)
	default:
		j.broken(about, err.Error(), "")
	}
	return true
}

func (x *installation) checkKubernetes(j *checklist) {
	minor, err := strconv.Atoi(strings.TrimRight(x.version.Minor, "+"))
	if err == nil && x.version.Major == "1" && minor < oldestMinor {
		j.broken("Kubernetes", x.version.GitVersion+" is too old", fmt.Sprintf("Ebb needs 1.%d or newer.", oldestMinor))
	} else {
		j.ok("Kubernetes", x.version.GitVersion)
	}
	group := gatewayapi.GroupVersion.String()
	missing := absent(needed[group], x.resources[group])
	switch {
	case len(missing) == 0:
		j.ok("Gateway API", "gateways, routes and listener sets are served")
	case slices.Equal(missing, []string{"listenersets"}):
		j.warn("Gateway API", "it has no ListenerSets, so Services cannot have certificates of their own", "Install the Gateway API 1.5 or newer, standard channel.")
	default:
		j.broken("Gateway API", "not served: "+strings.Join(missing, ", "), "Install the Gateway API 1.5 or newer, standard channel, and an implementation.")
	}
	for _, group := range []string{names.ServingGroup + "/v1", names.ServingGroup + "/v1beta1", names.AutoscalingInternalGroup + "/v1alpha1", names.NetworkingInternalGroup + "/v1alpha1"} {
		missing := absent(needed[group], x.resources[group])
		if x.resources[names.ServingGroup+"/v1"] != nil && len(missing) > 0 {
			j.broken("definitions", group+" does not serve "+strings.Join(missing, ", "), "Apply config/crd again.")
		}
	}
}

func absent(want, have []string) (missing []string) {
	for _, name := range want {
		if !slices.Contains(have, name) {
			missing = append(missing, name)
		}
	}
	return missing
}

func (x *installation) checkComponents(j *checklist) {
	versions := map[string][]string{}
	for _, c := range x.parts {
		if j.unread(c.name, c.err, "Apply config/core again.") {
			continue
		}
		d := c.deployment
		version := cmp.Or(d.Labels[versionLabel], "unknown")
		versions[version] = append(versions[version], c.name)
		want, have := int32(1), d.Status.AvailableReplicas
		if d.Spec.Replicas != nil {
			want = *d.Spec.Replicas
		}
		look := "kubectl describe pods -n " + names.SystemNamespace + " -l app=" + c.name
		switch {
		case want == 0:
			j.broken(c.name, "it is scaled to zero", "kubectl scale deployment -n "+names.SystemNamespace+" "+c.name+" --replicas=1")
		case have == 0:
			j.broken(c.name, fmt.Sprintf("none of %s is available", pods(want)), look)
		case have < want:
			j.warn(c.name, fmt.Sprintf("%d of %s available", have, pods(want)), look)
		default:
			j.ok(c.name, pods(have)+", version "+version)
		}
	}
	if len(versions) > 1 {
		var each []string
		for version, of := range versions {
			each = append(each, strings.Join(of, ", ")+" "+version)
		}
		slices.Sort(each)
		j.warn("versions", "components differ: "+strings.Join(each, "; "), "An update may be under way. Otherwise apply config again.")
	}
}

func (x *installation) checkSettings(j *checklist) {
	if j.unread("settings", x.setErr, "") {
		return
	}
	for _, g := range x.gateways {
		about := "gateway " + g.name
		if j.unread(about, g.err, "Create it, or name the one you have in the ConfigMap config-gateway.") {
			continue
		}
		c := meta.FindStatusCondition(g.Status.Conditions, string(gatewayapi.GatewayConditionProgrammed))
		switch {
		case c == nil:
			j.broken(about, "nobody has looked at it: no implementation has the class "+string(g.Spec.GatewayClassName), "Install an implementation, or name another class in the Gateway.")
		case c.Status != "True":
			j.broken(about, "it is not programmed: "+cmp.Or(c.Message, c.Reason), "kubectl describe gateway -n "+g.Namespace+" "+g.Name)
		case len(g.Status.Addresses) == 0:
			j.warn(about, "it has no address", "Its Service may be waiting for a load balancer.")
		default:
			j.ok(about, "programmed, at "+g.Status.Addresses[0].Value)
		}
	}
	x.checkStreams(j)
	if mount := x.settings.Defaults.AutomountServiceAccountToken; mount == nil || *mount {
		j.add("cold starts", fine, "pods mount the token of their service account, which takes about 300 ms of each start",
			"If few programs call Kubernetes' API, set automount-service-account-token: \"false\" in the ConfigMap config-defaults.")
	}
	const cluster = "cluster.local" // only compared with
	domain := x.settings.Domain.Lookup(nil, cluster)
	switch {
	case domain == "svc."+cluster:
		j.warn("domain", "none is set, so Services can be reached only inside the cluster", "Set one in the ConfigMap config-domain.")
	case strings.HasSuffix(domain, "example.com"):
		j.warn("domain", domain+" is not a domain that anybody can use", "Set yours in the ConfigMap config-domain.")
	default:
		j.ok("domain", domain)
	}
}

func (x *installation) checkStreams(j *checklist) {
	about := "streams"
	if x.streams == nil || j.unread(about, x.streamErr, "") {
		return
	}
	longest, rest := time.Duration(x.settings.Defaults.MaxTimeoutSeconds)*time.Second, x.streams.Spec.Timeout.HTTP.StreamIdleTimeout.Duration
	if rest > 0 && longest >= rest {
		j.warn(about, fmt.Sprintf("Envoy Gateway ends one on which nothing happens for %s, and max-revision-timeout-seconds allows %s", rest, longest),
			"Set streamIdleTimeout of the ClientTrafficPolicy ebb in "+names.SystemNamespace+" higher, or max-revision-timeout-seconds in the ConfigMap config-defaults lower.")
	} else {
		j.ok(about, "those at rest end later than any timeout of a revision")
	}
}

func (x *installation) checkWebhook(j *checklist, now time.Time) {
	about := "webhook's certificate"
	if !j.unread(about, x.hooksErr, "") {
		expires, err := x.certificateEnd()
		switch {
		case err != nil:
			j.broken(about, err.Error(), "Look at the log of the webhook.")
		case expires.Before(now):
			j.broken(about, "it expired "+expires.UTC().Format(time.DateTime), "The webhook replaces it when it runs. Look at its log.")
		case expires.Before(now.Add(soon)):
			j.warn(about, "it expires "+expires.UTC().Format(time.DateTime), "The webhook replaces it when it runs. Look at its log.")
		default:
			j.ok(about, "valid until "+expires.UTC().Format(time.DateOnly))
		}
	}
	about = "admission"
	switch err := x.dryRunErr; {
	case apierrors.IsForbidden(err):
		j.add(about, skipped, fmt.Sprintf("you may not create Services in the namespace %q", x.namespace), "")
	case err != nil:
		j.broken(about, "a Service was not taken: "+err.Error(), "If the webhook runs, the API server cannot reach it: look for a NetworkPolicy or a firewall.")
	case x.dryRun.Annotations[names.CreatorAnnotation] == "":
		j.broken(about, "a Service was taken without its defaults", "The MutatingWebhookConfiguration is missing: look at the log of the webhook.")
	default:
		j.ok(about, "a dry run of a Service was taken")
	}
}

func (x *installation) checkView(j *checklist) {
	about := "API " + view.Group
	switch err := x.viewErr; {
	case err == nil:
		j.ok(about, "an autoscaler answers it")
	case apierrors.IsForbidden(err):
		j.add(about, skipped, "you may not read it", "")
	case apierrors.IsNotFound(err):
		j.broken(about, "it is not there", "Apply config/core/autoscaler.yaml again.")
	default:
		j.broken(about, "it does not answer: "+err.Error(), "kubectl describe apiservice "+view.Version+"."+view.Group)
	}
}

// certificateEnd returns when the authority ends that API servers know the webhook by.
func (x *installation) certificateEnd() (end time.Time, err error) {
	for _, h := range x.hooks {
		for _, w := range h.Webhooks {
			block, _ := pem.Decode(w.ClientConfig.CABundle)
			if block == nil {
				return end, fmt.Errorf("%s has no authority", h.Name)
			}
			certificate, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return end, fmt.Errorf("%s: %w", h.Name, err)
			}
			if end.IsZero() || certificate.NotAfter.Before(end) {
				end = certificate.NotAfter
			}
		}
	}
	if end.IsZero() {
		return end, fmt.Errorf("the webhook is not registered")
	}
	return end, nil
}

func (x *installation) checkAgents(j *checklist) {
	about := "node agents"
	if x.settings != nil && x.settings.Autoscaler.Standby == "off" {
		j.add(about, skipped, "standby is off, so none is needed", "")
		return
	}
	if j.unread(about, x.agentsErr, "Apply config/core/node-agent.yaml. Without it pods sleep warm: awake, but out of service.") {
		return
	}
	status := x.agents.Status
	if status.NumberAvailable < status.DesiredNumberScheduled {
		j.warn(about, fmt.Sprintf("%d of %d are available", status.NumberAvailable, status.DesiredNumberScheduled), "Pods of the other nodes sleep warm. kubectl describe pods -n "+names.SystemNamespace+" -l app=node-agent")
	} else {
		j.ok(about, fmt.Sprintf("%d of %d nodes", status.NumberAvailable, status.DesiredNumberScheduled))
	}
	if j.unread("swap", x.nodesErr, "") {
		return
	}
	without := 0
	for _, n := range x.nodes {
		if s := n.Status.NodeInfo.Swap; s == nil || s.Capacity == nil || *s.Capacity == 0 {
			without++
		}
	}
	if without > 0 {
		j.warn("swap", fmt.Sprintf("%d of %d nodes have none, so pods there keep their memory when they sleep", without, len(x.nodes)), "Add zram: see docs/standby.md.")
	} else {
		j.ok("swap", fmt.Sprintf("%d of %d nodes", len(x.nodes), len(x.nodes)))
	}
}
