package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	view "ebb.dev/ebb/api/view/v1alpha1"
)

// errNoView says that the API knows nothing of a Service.
var errNoView = errors.New("no autoscaler of Ebb decides for it; is its class hpa.autoscaling.knative.dev?")

// viewOf reads everything that the API view.ebb.dev tells of a Service.
func (a *access) viewOf(ctx context.Context, name string) (*view.ServiceView, error) {
	v := &view.ServiceView{}
	if err := a.readView(ctx, "/namespaces/"+a.namespace+"/services/"+name, v); err != nil {
		return nil, err
	}
	return v, nil
}

// views reads the short views of a namespace, or of all.
func (a *access) views(ctx context.Context) ([]view.ServiceView, error) {
	path := "/services"
	if a.namespace != "" {
		path = "/namespaces/" + a.namespace + path
	}
	var list view.ServiceViewList
	if err := a.readView(ctx, path, &list); err != nil {
		return nil, err
	}
	return list.Items, nil
}

func (a *access) readView(ctx context.Context, path string, into any) error {
	return a.read(ctx, "/apis/"+view.GroupVersion.String()+path, into)
}

// read reads what the API server has at a path.
func (a *access) read(ctx context.Context, path string, into any) error {
	result := a.kube.Discovery().RESTClient().Get().AbsPath(path).Do(ctx)
	if err := result.Error(); err != nil { // unlike Raw's, it is what the answer says
		return err
	}
	text, err := result.Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read the answer for %s: %w", path, err)
	}
	return nil
}

// whyNoView says in a sentence why the API did not answer.
func whyNoView(err error) string {
	var status apierrors.APIStatus
	switch {
	case apierrors.IsForbidden(err):
		return "You may not read the API " + view.Group + " here; ask for the ClusterRole view in the namespace."
	case apierrors.IsUnauthorized(err):
		return "The API server does not accept your credentials; they may have expired."
	case apierrors.IsTooManyRequests(err):
		return "Too many ask the API " + view.Group + " at the moment."
	case apierrors.IsServiceUnavailable(err):
		return "No autoscaler answers the API " + view.Group + "; see `kubectl ebb check`."
	case apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Name != "":
		return "Of this Service the API " + view.Group + " knows nothing: " + errNoView.Error()
	case apierrors.IsNotFound(err):
		return "This cluster has no API " + view.Group + ": its Ebb is older than this command, or the APIService is missing."
	}
	return "The API " + view.Group + " does not answer: " + err.Error()
}
