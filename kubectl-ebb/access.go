package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/names"
)

// access is the API server as the caller may use it.
type access struct {
	kube      kubernetes.Interface
	ebb       versioned.Interface
	namespace string
}

func (p *program) access() (*access, error) {
	config, err := p.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 50, 100
	config.WarningHandler = rest.NoWarnings{} // they are about the Service of the dry run
	namespace, _, err := p.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	ebb, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &access{kube: kube, ebb: ebb, namespace: namespace}, nil
}

// plain says in the words of this program why Services of a namespace could not be read.
func (a *access) plain(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("you may not read this: %w\nask for the ClusterRole view in the namespace", err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not accept your credentials; they may have expired: %w", err)
	case apierrors.IsNotFound(err) && !a.installed():
		return fmt.Errorf("there is no Ebb in this cluster: the API %s/v1 is not there; see `kubectl ebb check`", names.ServingGroup)
	}
	return err
}

// installed reports whether the cluster has the API of Ebb.
func (a *access) installed() bool {
	_, err := a.kube.Discovery().ServerResourcesForGroupVersion(names.ServingGroup + "/v1")
	return !apierrors.IsNotFound(err)
}

// autoscalerAway says why decisions are old, "" if the autoscaler runs or the caller may not know.
func (a *access) autoscalerAway(ctx context.Context) string {
	d, err := a.kube.AppsV1().Deployments(names.SystemNamespace).Get(ctx, "autoscaler", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "There is no autoscaler, so this is its last decision. See `kubectl ebb check`."
	}
	if err != nil || d.Status.AvailableReplicas > 0 {
		return ""
	}
	return "No autoscaler is available, so this is its last decision. See `kubectl ebb check`."
}

func (p *program) completeNamespaces(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	a, err := p.access()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	list, err := a.kube.CoreV1().Namespaces().List(c.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var found []string
	for _, n := range list.Items {
		found = append(found, n.Name)
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

func (p *program) completeServices(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	a, err := p.access()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := a.ebb.ServingV1().Services(a.namespace).List(c.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var found []string
	for _, s := range list.Items {
		found = append(found, s.Name)
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}
