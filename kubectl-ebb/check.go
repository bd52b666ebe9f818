package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"
	gateways "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"

	"ebb.dev/ebb/api/names"
	serving "ebb.dev/ebb/api/serving/v1"
	view "ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/kubectl-ebb/migrate"
	"ebb.dev/ebb/settings"
)

// errBroken says that `check` found something broken.
var errBroken = errors.New("something is broken")

func (p *program) checkCommand() *cobra.Command {
	before := false
	c := &cobra.Command{
		Use:   "check",
		Short: "Tell what is wrong with the installation, and what to do",
		Long: `Tell what is wrong with the installation, and what to do.

The exit status is 1 if something is broken. A warning is something that works, but perhaps not as
you expect. What you may not read is skipped and listed as such.`,
		Example: `  kubectl ebb check --pre    # before you install Ebb
  kubectl ebb check          # afterwards`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			a, err := p.access()
			if err != nil {
				return err
			}
			facts, err := p.inspect(c.Context(), a)
			if err != nil {
				return err
			}
			findings := facts.findings(before, p.now())
			if p.output == "json" {
				err = writeJSON(p.out, findings)
			} else {
				err = writeFindings(p.out, findings)
			}
			for _, f := range findings {
				if err == nil && f.State == broken {
					err = errBroken
				}
			}
			return err
		},
	}
	c.Flags().BoolVar(&before, "pre", false, "check only what Ebb needs, before it is installed")
	p.addOutput(c)
	return c
}

// installation is what is known of a cluster. An error says why a part could not be read.
type installation struct {
	version     *version.Info
	resources   map[string][]string // by group and version
	namespace   string              // of the caller
	missing     []string            // what the caller may not do there
	parts       []part
	agents      *appsv1.DaemonSet
	agentsErr   error
	settings    *settings.Snapshot
	setErr      error
	gateways    []gateway
	streams     *streamPolicy // nil without Envoy Gateway
	streamErr   error
	beside      neighbours // where hosts may rest
	hooks       []admissionv1.ValidatingWebhookConfiguration
	hooksErr    error
	viewErr     error
	dryRun      *serving.Service
	dryRunErr   error
	nodes       []corev1.Node
	nodesErr    error
	planners    []corev1.Pod // of the control plane
	plannersErr error
	kserve      *migrate.KServe
}

type part struct {
	name       string
	deployment *appsv1.Deployment
	err        error
}

type gateway struct {
	name string // namespace/name
	*gatewayapi.Gateway
	err error
}

// streamPolicy is what is read of Envoy Gateway's ClientTrafficPolicy in config/envoy-gateway.
type streamPolicy struct {
	Spec struct {
		Timeout struct {
			HTTP struct {
				StreamIdleTimeout metav1.Duration `json:"streamIdleTimeout"`
			} `json:"http"`
		} `json:"timeout"`
	} `json:"spec"`
}

const streamPolicyPath = "/apis/gateway.envoyproxy.io/v1alpha1/namespaces/" + names.SystemNamespace + "/clienttrafficpolicies/ebb"

// needed are the resources that Ebb uses of the Gateway API, and its own.
var needed = map[string][]string{
	gatewayapi.GroupVersion.String():             {"gatewayclasses", "gateways", "httproutes", "listenersets"},
	names.ServingGroup + "/v1":                   {"services", "configurations", "revisions", "routes"},
	names.ServingGroup + "/v1beta1":              {"domainmappings"},
	names.AutoscalingInternalGroup + "/v1alpha1": {"podautoscalers"},
	names.NetworkingInternalGroup + "/v1alpha1":  {"clusterdomainclaims"},
}

// inspect reads what `check` judges. Only a cluster that cannot be reached is an error.
func (p *program) inspect(ctx context.Context, a *access) (*installation, error) {
	v, err := a.kube.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("the API server does not answer: %w", err)
	}
	x := &installation{version: v, resources: map[string][]string{}, namespace: a.namespace}
	for group := range needed {
		list, err := a.kube.Discovery().ServerResourcesForGroupVersion(group)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read the resources of %s: %w", group, err)
		}
		if err == nil {
			for _, r := range list.APIResources {
				x.resources[group] = append(x.resources[group], r.Name)
			}
		}
	}
	if err := x.inspectRights(ctx, a); err != nil {
		return nil, err
	}
	if x.resources[names.ServingGroup+"/v1"] == nil {
		return x, nil
	}
	x.inspectParts(ctx, a)
	x.agents, x.agentsErr = a.kube.AppsV1().DaemonSets(names.SystemNamespace).Get(ctx, "node-agent", metav1.GetOptions{})
	x.inspectSettings(ctx, a)
	if x.settings != nil {
		if err := p.inspectGateways(ctx, x); err != nil {
			return nil, err
		}
		x.inspectBlind(ctx, a)
		x.inspectStreams(ctx, a)
	}
	x.viewErr = a.readView(ctx, "", &metav1.APIResourceList{})
	list, err := a.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=webhook"})
	if x.hooksErr = err; err == nil {
		x.hooks = list.Items
	}
	x.dryRun, x.dryRunErr = a.ebb.ServingV1().Services(a.namespace).Create(ctx, probeService(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if x.kserve, err = migrate.LookAtKServe(ctx, a.kube); err != nil {
		return nil, err
	}
	nodes, err := a.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if x.nodesErr = err; err == nil {
		x.nodes = nodes.Items
	}
	x.inspectPlanners(ctx, a)
	return x, nil
}

// inspectParts reads the Deployments of the components, or the one of the edge profile.
func (x *installation) inspectParts(ctx context.Context, a *access) {
	read := func(name string) part {
		d, err := a.kube.AppsV1().Deployments(names.SystemNamespace).Get(ctx, name, metav1.GetOptions{})
		return part{name, d, err}
	}
	if all := read("ebb"); all.err == nil {
		x.parts = []part{all}
		return
	}
	for _, name := range []string{"activator", "autoscaler", "controller", "webhook"} {
		x.parts = append(x.parts, read(name))
	}
}

// probeService is a Service for a dry run.
func probeService() *serving.Service {
	s := &serving.Service{}
	s.GenerateName = "kubectl-ebb-check-"
	s.Spec.Template.Spec.Containers = []corev1.Container{{Image: "registry.example.com/check"}}
	return s
}

// inspectRights asks for the rights that a user of Ebb needs in the namespace.
func (x *installation) inspectRights(ctx context.Context, a *access) error {
	for _, r := range []authorizationv1.ResourceAttributes{
		{Group: names.ServingGroup, Resource: "services", Verb: "get"},
		{Group: names.ServingGroup, Resource: "services", Verb: "create"},
		{Group: names.AutoscalingInternalGroup, Resource: "podautoscalers", Verb: "list"},
		{Group: view.Group, Resource: view.Resource, Verb: "list"},
		{Resource: "events", Verb: "list"},
	} {
		r.Namespace = a.namespace
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &r}}
		answer, err := a.kube.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("ask for your rights: %w", err)
		}
		if !answer.Status.Allowed {
			x.missing = append(x.missing, strings.TrimSuffix(r.Verb+" "+r.Resource+"."+r.Group, "."))
		}
	}
	return nil
}

// inspectSettings reads those ConfigMaps that `check` has something to say about.
func (x *installation) inspectSettings(ctx context.Context, a *access) {
	given := map[string]map[string]string{}
	for _, name := range []string{"config-gateway", "config-domain", "config-autoscaler", "config-defaults"} {
		m, err := a.kube.CoreV1().ConfigMaps(names.SystemNamespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			x.setErr = err
			return
		}
		given[name] = m.Data
	}
	x.settings, x.setErr = settings.Parse(given)
}

func (p *program) inspectGateways(ctx context.Context, x *installation) error {
	config, err := p.flags.ToRESTConfig()
	if err != nil {
		return err
	}
	client, err := gateways.NewForConfig(config)
	if err != nil {
		return err
	}
	for _, ref := range append(x.settings.Gateway.External, x.settings.Gateway.Local...) {
		g, err := client.GatewayV1().Gateways(ref.Namespace()).Get(ctx, ref.Name(), metav1.GetOptions{})
		x.gateways = append(x.gateways, gateway{ref.Gateway, g, err})
	}
	x.inspectResting(ctx, client)
	return nil
}

// inspectStreams reads how long a stream may rest, where the Gateways are Envoy Gateway's.
func (x *installation) inspectStreams(ctx context.Context, a *access) {
	if !slices.ContainsFunc(append(x.settings.Gateway.External, x.settings.Gateway.Local...), func(g settings.GatewayRef) bool { return g.Class == "envoy-gateway" }) {
		return
	}
	x.streams = &streamPolicy{}
	if x.streamErr = a.read(ctx, streamPolicyPath, x.streams); apierrors.IsNotFound(x.streamErr) {
		x.streams, x.streamErr = nil, nil // Envoy's own, or somebody else's
	}
}

// State is how a check ended.
type state string

const (
	fine    state = "ok"
	warning state = "warning"
	broken  state = "broken"
	skipped state = "skipped"
)

// finding is the result of one check.
type finding struct {
	About string `json:"about"`
	State state  `json:"state"`
	Text  string `json:"text"`
	// Do says what to do.
	Do string `json:"do,omitempty"`
}

func writeFindings(w io.Writer, findings []finding) error {
	counts := map[state]int{}
	for _, f := range findings {
		counts[f.State]++
		fmt.Fprintf(w, "%-8s %s: %s\n", f.State, f.About, f.Text)
		if f.Do != "" {
			fmt.Fprintf(w, "         %s\n", f.Do)
		}
	}
	summary := "Nothing is broken"
	if n := counts[broken]; n > 0 {
		summary = fmt.Sprintf("%d broken", n)
	}
	_, err := fmt.Fprintf(w, "\n%s; %d ok, %d warnings, %d skipped.\n", summary, counts[fine], counts[warning], counts[skipped])
	return err
}

// soon is when a certificate that ends is worth a word: the webhook renews its own long before.
const soon = 24 * time.Hour
