package route

import (
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	servinginformers "ebb.dev/ebb/api/client/informers/externalversions/serving/v1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/reconcile"
)

// byTarget indexes Routes by the Configurations and Revisions that they name. A Configuration of
// the Route's own name, as a Service makes it, is not in the index: its name finds the Route.
const byTarget = "target"

const configurationPrefix = "configuration "

func configurationTarget(namespace, name string) string {
	return configurationPrefix + namespace + "/" + name
}
func revisionTarget(namespace, name string) string { return "revision " + namespace + "/" + name }

func targetsOf(object any) ([]string, error) {
	route, ok := object.(*servingv1.Route)
	if !ok {
		return nil, nil
	}
	var out []string
	for _, t := range route.Spec.Traffic {
		switch {
		case t.RevisionName != "":
			out = append(out, revisionTarget(route.Namespace, t.RevisionName))
		case t.ConfigurationName != route.Name:
			out = append(out, configurationTarget(route.Namespace, t.ConfigurationName))
		}
	}
	return out, nil
}

// namesake reports whether a Route names the Configuration of its own name.
func namesake(route *servingv1.Route) bool {
	return slices.ContainsFunc(route.Spec.Traffic, func(t servingv1.TrafficTarget) bool {
		return t.RevisionName == "" && t.ConfigurationName == route.Name
	})
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
			if name, is := strings.CutPrefix(t, configurationPrefix); is {
				if object, exists, _ := routes.GetByKey(name); exists && namesake(object.(*servingv1.Route)) {
					keys = append(keys, reconcile.Self(object)...)
				}
			}
		}
		return keys
	}
}

// watchTargets reconciles the Routes that name a Configuration or a Revision when that changes, or
// the public Service of a Revision, and when that one comes to have endpoints or loses
// EndpointSlices.
func watchTargets(c *reconcile.Controller, routes cache.Indexer, serving servinginformers.Interface, public, slices cache.SharedIndexInformer) {
	naming := naming(routes)
	c.Watch(serving.Configurations().Informer(), func(object any) []reconcile.Key {
		m := object.(metav1.Object)
		return naming(configurationTarget(m.GetNamespace(), m.GetName()))
	})
	c.WatchNews(serving.Revisions().Informer(), func(object any) []reconcile.Key {
		m := object.(metav1.Object)
		return naming(revisionTarget(m.GetNamespace(), m.GetName()), configurationTarget(m.GetNamespace(), m.GetLabels()[names.ConfigurationLabel]))
	}, reconcile.BesidesScale)
	ofPublic := func(object any) []reconcile.Key {
		m := object.(metav1.Object)
		if m.GetLabels()[names.ServiceTypeLabel] != names.ServiceTypePublic {
			return nil
		}
		return naming(revisionTarget(m.GetNamespace(), m.GetLabels()[names.ServerlessServiceLabel]), configurationTarget(m.GetNamespace(), m.GetLabels()[names.ConfigurationLabel]))
	}
	c.Watch(public, ofPublic)
	// Endpoints change with each pod, and Routes have no part in that.
	filled := func(before, after any) {
		was, _ := before.(*discoveryv1.EndpointSlice)
		if slice, ok := after.(*discoveryv1.EndpointSlice); ok && len(slice.Endpoints) > 0 && (was == nil || len(was.Endpoints) == 0) {
			for _, key := range ofPublic(slice) {
				c.Enqueue(key)
			}
		}
	}
	if _, err := slices.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, existed bool) {
			if !existed {
				filled(nil, object)
			}
		},
		UpdateFunc: filled,
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			for _, key := range ofPublic(object) {
				c.Enqueue(key)
			}
		},
	}); err != nil {
		panic(fmt.Sprintf("watch for the endpoints of Revisions: %v", err)) // only a stopped informer refuses
	}
}
