package migrate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/settings"
)

// States of a finding.
const (
	OK      = "ok"
	Warning = "warning"
	Broken  = "broken"
)

// Finding is the result of one check.
type Finding struct {
	About string `json:"about"`
	State string `json:"state"`
	Text  string `json:"text"`
	// Do says what to do.
	Do string `json:"do,omitempty"`
}

// oldestMinor is the oldest Kubernetes 1.x that Ebb runs on.
const oldestMinor = 30

// Findings says what stands in the way of a move. Nothing does if no finding is Broken.
func (x *Inventory) Findings() []Finding {
	j := &checklist{}
	if x.minor > 0 && x.minor < oldestMinor {
		j.broken("Kubernetes", x.Kubernetes+" is too old", fmt.Sprintf("Upgrade the cluster to 1.%d or newer first.", oldestMinor))
	} else {
		j.ok("Kubernetes", x.Kubernetes)
	}
	if len(x.missing) > 0 {
		j.broken("your rights", "you may not "+strings.Join(x.missing, ", "), "Run this as an administrator of the cluster. The rest was not looked at.")
		return j.all
	}
	j.ok("your rights", "they are enough")
	x.checkGatewayAPI(j)
	if !x.checkKnative(j) {
		return j.all
	}
	x.checkObjects(j)
	x.checkSettings(j)
	j.all = append(j.all, x.kserve.Findings()...)
	x.checkRoom(j)
	return j.all
}

type checklist struct{ all []Finding }

func (j *checklist) ok(about, text string) { j.all = append(j.all, Finding{about, OK, text, ""}) }
func (j *checklist) warn(about, text, do string) {
	j.all = append(j.all, Finding{about, Warning, text, do})
}
func (j *checklist) broken(about, text, do string) {
	j.all = append(j.all, Finding{about, Broken, text, do})
}

func (x *Inventory) has(r schema.GroupVersionResource) bool { return x.kinds[r.GroupResource()] }

func (x *Inventory) checkGatewayAPI(j *checklist) {
	switch {
	case !x.has(gatewayResource) || !x.has(httpRouteResource):
		j.broken("Gateway API", "it is not there", "Install the Gateway API 1.5 or newer, standard channel, and an implementation: see docs/install.md.")
	case !x.has(listenerSetResource):
		j.warn("Gateway API", "it has no ListenerSets, so Services cannot have certificates of their own", "Install the Gateway API 1.5 or newer, standard channel.")
	default:
		j.ok("Gateway API", "gateways, routes and listener sets are served")
	}
}

// checkKnative reports whether there is a Knative to move.
func (x *Inventory) checkKnative(j *checklist) bool {
	const about = "Knative Serving"
	controller := x.deployments["controller"]
	switch {
	case x.state != nil && x.state.Phase == rollingBack:
		j.broken(about, "a rollback to Knative is in progress, done: "+done(x.state), "Finish it: kubectl ebb migrate --rollback")
		return false
	case x.state != nil:
		j.ok(about, "a move of version "+x.state.Knative+" has begun, after: "+done(x.state))
		return true
	case !x.has(servingServices):
		j.broken(about, "it is not there", "Install Ebb as docs/install.md says.")
		return false
	case !x.has(serverless) && !x.has(ingresses):
		j.broken(about, "the kinds in this cluster are those of Ebb, which is installed already", "kubectl ebb check")
		return false
	}
	for _, r := range []schema.GroupVersionResource{serverless, ingresses, metrics, revisions, routes, autoscalers} {
		if !x.has(r) {
			j.broken(about, "it is half removed: there is no kind "+r.GroupResource().String(), "Apply Knative's manifests of the version that you have again, then run this again.")
			return false
		}
	}
	if controller == nil || x.deployments["activator"] == nil || x.deployments["autoscaler"] == nil {
		j.broken(about, fmt.Sprintf("it is half removed: the namespace %s lacks one of the Deployments controller, activator and autoscaler", names.SystemNamespace),
			"Apply Knative's manifests of the version that you have again, then run this again.")
		return false
	}
	for _, name := range []string{"controller", "activator", "autoscaler", "webhook"} {
		d := x.deployments[name]
		if d == nil {
			continue
		}
		// The condition Available is False while an autoscaler adds a replica.
		if n, _, _ := unstructured.NestedInt64(d.Object, "status", "availableReplicas"); n < 1 {
			j.broken(about, "its "+name+" is not available", fmt.Sprintf("kubectl -n %s describe pods -l app=%s", names.SystemNamespace, name))
		}
	}
	version := controller.GetLabels()["app.kubernetes.io/version"]
	j.ok(about, "version "+version+", with "+strings.Join(slices.Sorted(maps.Keys(x.deployments)), ", "))
	return true
}

func done(s *state) string {
	if len(s.Done) == 0 {
		return "nothing"
	}
	return strings.Join(s.Done, ", ")
}

func (x *Inventory) checkObjects(j *checklist) {
	j.ok("objects", fmt.Sprintf("%d Services, %d Revisions, %d Routes, %d DomainMappings, %d pods of revisions",
		x.counts["services"], x.counts["revisions"], x.counts["routes"], x.counts["domainmappings"], x.pods))
	for _, class := range sortedKeys(x.scalerClasses) {
		if class != "kpa.autoscaling.knative.dev" && class != "hpa.autoscaling.knative.dev" {
			j.warn("autoscaler class", fmt.Sprintf("%d Revisions have the class %s, which Ebb leaves to its owner", x.scalerClasses[class], class), "Make sure that this owner works without Knative's kinds Metric and ServerlessService.")
		}
	}
	if n := len(x.livenessElsewhere); n > 0 && !strings.EqualFold(x.settings[settings.FeaturesName][string(rules.KeyMultiContainerProbing)], string(rules.Enabled)) {
		j.warn("liveness probes", fmt.Sprintf("%d Revisions, such as %s, have one that says another port than requests go to: Knative asks the latter, Ebb the port that it says", n, x.livenessElsewhere[0]),
			"Make sure that their containers answer there, or take the port out of the probe.")
	}
	var plugins []string
	for _, name := range sortedKeys(x.deployments) {
		if isPlugin(x.deployments[name]) {
			plugins = append(plugins, name)
		}
	}
	for _, class := range sortedKeys(x.ingressClasses) {
		text := fmt.Sprintf("%d Ingresses of the class %s", x.ingressClasses[class], class)
		switch {
		case len(plugins) == 0 && x.state == nil:
			j.warn("ingress", text+", and no plugin that serves it in "+names.SystemNamespace, "What another namespace has for it stays. Remove it after the move.")
		case strings.HasPrefix(class, "gateway-api.") || strings.HasPrefix(class, "standin."):
			j.ok("ingress", text+", served by "+strings.Join(plugins, ", "))
		default:
			j.warn("ingress", text+": its gateway has another address than Ebb's", "Both answer during the move, if the gateway outlives its controller. Lead your DNS to Ebb's gateway before you remove the old one.")
		}
	}
	for _, class := range sortedKeys(x.certificateClasses) {
		if !strings.HasPrefix(class, "cert-manager.") {
			j.warn("certificates", fmt.Sprintf("%d Certificates have the class %s, which Ebb does not have", x.certificateClasses[class], class), "Ebb asks cert-manager for certificates: see docs/tls.md.")
		}
	}
}

func (x *Inventory) checkSettings(j *checklist) {
	refused, idle := x.refusedSettings()
	for _, text := range refused {
		j.broken("settings", text, "Correct it in Knative first.")
	}
	for _, text := range idle {
		j.warn("settings", text, "")
	}
	if len(refused) == 0 {
		j.ok("settings", fmt.Sprintf("%d ConfigMaps are taken over as they are", len(x.settings)))
	}
}

func (x *Inventory) checkRoom(j *checklist) {
	cpu, memory := x.manifests.needs()
	var freeCPU, freeMemory = cpu.DeepCopy(), memory.DeepCopy()
	freeCPU.Sub(cpu)
	freeMemory.Sub(memory)
	for _, n := range x.nodes {
		freeCPU.Add(n.cpu)
		freeMemory.Add(n.memory)
	}
	text := fmt.Sprintf("Ebb's pods ask for %s CPUs and %d MiB beside Knative's; the nodes have %s and %d MiB left",
		cpu.String(), memory.Value()>>20, freeCPU.String(), freeMemory.Value()>>20)
	if x.state == nil && (freeCPU.Cmp(cpu) < 0 || freeMemory.Cmp(memory) < 0) {
		j.broken("room", text, "Add a node, or scale something down for the move.")
	} else {
		j.ok("room", text)
	}
	var absent []string
	for _, image := range x.manifests.images() {
		if !slices.ContainsFunc(x.nodes, func(r room) bool { return slices.Contains(r.images, image) }) {
			absent = append(absent, image)
		}
	}
	if len(absent) > 0 {
		j.warn("images", "no node reports that it has "+strings.Join(absent, ", "), "The first step of --apply pulls them, and changes nothing if it cannot.")
	} else {
		j.ok("images", "the nodes have all of Ebb's")
	}
}

func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
