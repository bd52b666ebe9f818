package route

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	servinginformers "ebb.dev/ebb/api/client/informers/externalversions/serving/v1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/reconcile"
)

// byTarget indexes Routes by the Configurations and Revisions that they name.
const byTarget = "target"

func configurationTarget(namespace, name string) string {
	return "configuration " + namespace + "/" + name
}
func revisionTarget(namespace, name string) string { return "revision " + namespace + "/" + name }

func targetsOf(object any) ([]string, error) {
	route, ok := object.(*servingv1.Route)
	if !ok {
		return nil, nil
	}
	var out []string
	for _, t := range route.Spec.Traffic {
		if t.RevisionName != "" {
			out = append(out, revisionTarget(route.Namespace, t.RevisionName))
		} else {
			out = append(out, configurationTarget(route.Namespace, t.ConfigurationName))
		}
	}
	return out, nil
}

// naming returns what finds the Routes that name one of some targets.
func naming(routes cache.Indexer) func(targets ...string) []reconcile.Key {
	return func(targets ...string) (keys []reconcile.Key) {
		for _, t := range targets {
			found, err := routes.ByIndex(byTarget, t)
			if err != nil {
				continue
			}
			for _, route := range found {
				keys = append(keys, reconcile.Self(route)...)
			}
		}
		return keys
	}
}

// watchTargets reconciles the Routes that name a Configuration or a Revision when that changes, or
// the public Service of a Revision.
func watchTargets(c *reconcile.Controller, routes cache.Indexer, serving servinginformers.Interface, public cache.SharedIndexInformer) {
	naming := naming(routes)
	c.Watch(serving.Configurations().Informer(), func(object any) []reconcile.Key {
		m := object.(metav1.Object)
		return naming(configurationTarget(m.GetNamespace(), m.GetName()))
	})
	ofRevision := func(namespace, revision, configuration string) []reconcile.Key {
		return naming(revisionTarget(namespace, revision), configurationTarget(namespace, configuration))
	}
	c.Watch(serving.Revisions().Informer(), func(object any) []reconcile.Key {
		m := object.(metav1.Object)
		return ofRevision(m.GetNamespace(), m.GetName(), m.GetLabels()[names.ConfigurationLabel])
	})
	c.Watch(public, func(object any) []reconcile.Key {
		m := object.(metav1.Object)
		if m.GetLabels()[names.ServiceTypeLabel] != names.ServiceTypePublic {
			return nil
		}
		return ofRevision(m.GetNamespace(), m.GetName(), m.GetLabels()[names.ConfigurationLabel])
	})
}
