package domainmapping

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/serving/v1beta1"
)

// askAgain is the interval at which objects that are not watched are read.
const askAgain = 30 * time.Second

// notResolved says why a reference cannot be resolved. A retry without a change does not help.
type notResolved struct{ message string }

func (e *notResolved) Error() string { return e.message }

// resolve returns the host name of the object that a mapping refers to. It must be a Service name
// in the same namespace, because a mapping must not route to another namespace.
func (r *reconciler) resolve(ctx context.Context, dm *v1beta1.DomainMapping) (target string, again time.Duration, err error) {
	ref := dm.Spec.Ref
	namespace := ref.Namespace
	if namespace == "" {
		namespace = dm.Namespace
	}
	if ref.Name == "" {
		return "", 0, &notResolved{"The reference names nothing."}
	}
	if problem := v1beta1.ValidateRef(ref); problem != nil {
		return "", 0, &notResolved{problem.Error()}
	}
	if namespace != dm.Namespace {
		return "", 0, &notResolved{fmt.Sprintf("%s %q is in namespace %q; a domain can be mapped in namespace %q only.",
			ref.Kind, ref.Name, namespace, dm.Namespace)}
	}
	url, again, err := r.address(ctx, ref, namespace)
	if err != nil {
		return "", again, err
	}
	want := ref.Name + "." + dm.Namespace + ".svc." + r.clusterDomain
	switch {
	case url == nil || url.Host == "":
		return "", again, &notResolved{fmt.Sprintf("%s %q has no address yet.", ref.Kind, ref.Name)}
	case strings.Trim(url.Path, "/") != "":
		return "", again, &notResolved{fmt.Sprintf("%s %q has the address %s; a domain cannot be mapped to a path.", ref.Kind, ref.Name, url)}
	case !strings.EqualFold(url.Host, want):
		return "", again, &notResolved{fmt.Sprintf("%s %q has the address %s; a domain can be mapped to %s only.", ref.Kind, ref.Name, url, want)}
	}
	return want, again, nil
}

func (r *reconciler) address(ctx context.Context, ref duckv1.KReference, namespace string) (*apis.URL, time.Duration, error) {
	group, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, 0, &notResolved{fmt.Sprintf("%q is not an apiVersion.", ref.APIVersion)}
	}
	if group.Group == "" && ref.Group != "" {
		group.Group = ref.Group
	}
	missing := func(err error) error {
		if apierrors.IsNotFound(err) {
			return &notResolved{fmt.Sprintf("%s %q is not in namespace %q.", ref.Kind, ref.Name, namespace)}
		}
		return err
	}
	switch {
	case group.Group == names.ServingGroup && ref.Kind == "Service":
		service, err := r.services.Services(namespace).Get(ref.Name)
		if err != nil {
			return nil, 0, missing(err)
		}
		return addressOf(service.Status.Address), 0, nil
	case group.Group == names.ServingGroup && ref.Kind == "Route":
		route, err := r.routes.Routes(namespace).Get(ref.Name)
		if err != nil {
			return nil, 0, missing(err)
		}
		return addressOf(route.Status.Address), 0, nil
	case group.Group == "" && ref.Kind == "Service":
		service, err := r.kube.CoreV1().Services(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return nil, askAgain, missing(err)
		}
		if again, err := r.awaitEndpoints(ctx, service); err != nil {
			return nil, again, err
		}
		return &apis.URL{Scheme: "http", Host: ref.Name + "." + namespace + ".svc." + r.clusterDomain}, askAgain, nil
	}
	return r.foreign(ctx, group, ref, namespace, missing)
}

// awaitEndpoints returns an error for the public Service of a revision that has no endpoints yet:
// it may have been made a moment ago, for this mapping.
func (r *reconciler) awaitEndpoints(ctx context.Context, service *corev1.Service) (time.Duration, error) {
	if service.Labels[names.ServiceTypeLabel] != names.ServiceTypePublic {
		return 0, nil
	}
	list, err := r.kube.DiscoveryV1().EndpointSlices(service.Namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service.Name})
	if err != nil || slices.ContainsFunc(list.Items, func(s discoveryv1.EndpointSlice) bool { return len(s.Endpoints) > 0 }) {
		return 0, err
	}
	return time.Second, &notResolved{fmt.Sprintf("Service %q has no endpoints yet.", service.Name)}
}

func addressOf(a *duckv1.Addressable) *apis.URL {
	if a == nil {
		return nil
	}
	return a.URL
}

// foreign reads the address of a kind that Ebb does not know. The parts of the reference go into a
// path that is asked for with the controller's rights: resolve has seen that each is one segment.
func (r *reconciler) foreign(ctx context.Context, group schema.GroupVersion, ref duckv1.KReference, namespace string,
	missing func(error) error) (*apis.URL, time.Duration, error) {
	if group.Group == "" {
		return nil, 0, &notResolved{fmt.Sprintf("%s %q is of a kind that has no address.", ref.Kind, ref.Name)}
	}
	if group.Version == "" {
		return nil, 0, &notResolved{fmt.Sprintf("apiVersion names no version: write \"%s/v1\", or the version that %s has.", group.Group, ref.Kind)}
	}
	resources, err := r.kube.Discovery().ServerResourcesForGroupVersion(group.String())
	if err != nil {
		return nil, askAgain, &notResolved{fmt.Sprintf("The cluster does not know %s %s.", group, ref.Kind)}
	}
	plural := ""
	for _, resource := range resources.APIResources {
		if resource.Kind == ref.Kind && resource.Namespaced && !strings.Contains(resource.Name, "/") {
			plural = resource.Name
		}
	}
	if plural == "" {
		return nil, askAgain, &notResolved{fmt.Sprintf("The cluster does not know the kind %s in %s.", ref.Kind, group)}
	}
	raw, err := r.kube.Discovery().RESTClient().Get().
		AbsPath("/apis", group.Group, group.Version, "namespaces", namespace, plural, ref.Name).
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return nil, askAgain, missing(err)
	}
	var object struct {
		Status struct {
			Address *duckv1.Addressable `json:"address"`
		} `json:"status"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, askAgain, &notResolved{fmt.Sprintf("%s %q has no address that can be read.", ref.Kind, ref.Name)}
	}
	return addressOf(object.Status.Address), askAgain, nil
}
