package revision

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
)

// PageSelector is the label selector of ConfigMaps with waiting pages. It filters the cache, and
// whoever sets the label agrees that the content is shown.
const PageSelector = names.WaitingPageLabel + "=true"

// These conditions exist, and are False, only if a Revision names something that is not there. They
// do not count for Ready.
const (
	conditionPageFound     apis.ConditionType = "WaitingPageFound"
	conditionFallbackFound apis.ConditionType = "FallbackFound"
)

// resolveColdReferences sets in the status what activators must know of the objects that a Revision
// names: its waiting page and the revision of its fallback Service. Activators read Revisions only.
// What is in reserve needs neither.
func (r *reconciler) resolveColdReferences(rev *servingv1.Revision) error {
	want := rev.Meaning(r.mgr.Settings.Load().Rules()).Cold
	if rev.RoutingState() == names.RoutingReserve {
		want = names.Cold{}
	}
	page, pageTrouble, err := r.page(rev.Namespace, want.PageFrom)
	if err != nil {
		return err
	}
	fallback, fallbackTrouble, err := r.fallback(rev, want.Fallback)
	if err != nil {
		return err
	}
	tell(rev, names.WaitingPageAnnotation, page, conditionPageFound, pageTrouble)
	tell(rev, names.FallbackRevisionAnnotation, fallback, conditionFallbackFound, fallbackTrouble)
	return nil
}

// lack is why a waiting page or a fallback Service is not there, the zero value if it is.
type lack struct{ reason, message string }

// tell sets one annotation of the status, and the condition that says why it is not there.
func tell(rev *servingv1.Revision, key, value string, condition apis.ConditionType, t lack) {
	manager := rev.GetConditionSet().Manage(&rev.Status)
	if t.reason == "" {
		_ = manager.ClearCondition(condition) // an error is for conditions that count for Ready
	} else {
		manager.SetCondition(apis.Condition{Type: condition, Status: corev1.ConditionFalse, Severity: apis.ConditionSeverityInfo,
			Reason: t.reason, Message: t.message})
	}
	switch {
	case value == "":
		delete(rev.Status.Annotations, key)
	case rev.Status.Annotations == nil:
		rev.Status.Annotations = map[string]string{key: value}
	default:
		rev.Status.Annotations[key] = value
	}
}

// page is the content of a key of a ConfigMap.
func (r *reconciler) page(namespace string, from names.ConfigMapKey) (text string, t lack, err error) {
	if from == (names.ConfigMapKey{}) {
		return "", t, nil
	}
	m, found, err := apply.Found(r.pages.ConfigMaps(namespace).Get(from.Name))
	if err != nil {
		return "", t, err
	}
	if !found {
		return "", lack{reason: "ConfigMapMissing", message: fmt.Sprintf("there is no ConfigMap %q with the label %s: \"true\"", from.Name, names.WaitingPageLabel)}, nil
	}
	switch text, found = m.Data[from.Key]; {
	case !found:
		return "", lack{reason: "KeyMissing", message: fmt.Sprintf("ConfigMap %q has no key %q", from.Name, from.Key)}, nil
	case text == "" || len(text) > names.MaxPageBytes:
		return "", lack{reason: "BadLength", message: fmt.Sprintf("key %q of ConfigMap %q has %d bytes, expected 1 to %d", from.Key, from.Name, len(text), names.MaxPageBytes)}, nil
	}
	return text, t, nil
}

// fallback is the revision that gets most of the requests of a Service.
func (r *reconciler) fallback(rev *servingv1.Revision, service string) (name string, t lack, err error) {
	if service == "" {
		return "", t, nil
	}
	route, found, err := apply.Found(r.routes.Routes(rev.Namespace).Get(service))
	if err != nil {
		return "", t, err
	}
	if found {
		name = busiest(route.Status.Traffic)
	}
	next, found, err := apply.Found(r.revisions.Revisions(rev.Namespace).Get(name))
	switch {
	case err != nil:
		return "", t, err
	case !found:
		return "", lack{reason: "NoTraffic", message: fmt.Sprintf("Service %q is not there, or no requests go to a revision of it", service)}, nil
	case next.Spec.Protocol() != rev.Spec.Protocol():
		// A request is passed on in the protocol in which it came.
		return "", lack{reason: "OtherProtocol", message: fmt.Sprintf("Service %q speaks %s, this Revision %s", service, next.Spec.Protocol(), rev.Spec.Protocol())}, nil
	}
	return name, t, nil
}

// busiest is the revision with the largest share of the traffic, the first one of several; "" if
// there is none.
func busiest(traffic []servingv1.TrafficTarget) (name string) {
	shares, most := map[string]int64{}, int64(0)
	for _, target := range traffic {
		shares[target.RevisionName] += ptr.Deref(target.Percent, 0)
		most = max(most, shares[target.RevisionName])
	}
	for _, target := range traffic {
		if most > 0 && shares[target.RevisionName] == most {
			return target.RevisionName
		}
	}
	return ""
}

// Indexes of the cache of Revisions, by what they name.
const (
	byPage     = "waiting page"
	byFallback = "fallback Service"
)

// indexNamed adds the indexes. The result maps an object to the Revisions that name it.
func indexNamed(revisions cache.SharedIndexInformer) func(index string) func(object any) []reconcile.Key {
	of := func(name func(names.Cold) string) cache.IndexFunc {
		return func(object any) ([]string, error) {
			rev, ok := object.(*servingv1.Revision)
			if !ok {
				return nil, nil
			}
			if one := name(rev.Meaning(&rules.Config{}).Cold); one != "" {
				return []string{rev.Namespace + "/" + one}, nil
			}
			return nil, nil
		}
	}
	if err := revisions.AddIndexers(cache.Indexers{
		byPage:     of(func(c names.Cold) string { return c.PageFrom.Name }),
		byFallback: of(func(c names.Cold) string { return c.Fallback }),
	}); err != nil {
		panic(fmt.Sprintf("index the Revisions: %v", err)) // two indexes of one name
	}
	return func(index string) func(object any) []reconcile.Key {
		return func(object any) (keys []reconcile.Key) {
			m, ok := object.(metav1.Object)
			if !ok {
				return nil
			}
			named, _ := revisions.GetIndexer().ByIndex(index, m.GetNamespace()+"/"+m.GetName()) // fails for an unknown index
			for _, rev := range named {
				keys = append(keys, reconcile.Self(rev)...)
			}
			return keys
		}
	}
}
