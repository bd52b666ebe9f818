package configuration

import (
	"maps"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// RevisionName returns the name of the revision of a Configuration's current template.
func RevisionName(config *servingv1.Configuration) string {
	if name := config.Spec.Template.Name; name != "" {
		return name
	}
	return names.GeneratedRevision(config.Name, config.Generation)
}

// MakeRevision returns the Revision of a Configuration's current template. If a Route leads to the
// Configuration, the Revision starts as active, so that it is not taken for unused before the Route
// follows.
//
// MakeRevision sets the defaults, as the webhook does, so that a service starts that was stored
// while the webhook was down.
func MakeRevision(config *servingv1.Configuration, defaults *rules.Config, now time.Time) *servingv1.Revision {
	template := config.Spec.Template.DeepCopy()
	labels, annotations := copied(template.Labels), copied(template.Annotations)
	// A template that was copied from a Revision has what Ebb said of that one.
	delete(annotations, names.WentBackAnnotation)
	delete(annotations, names.ParkedAnnotation)
	labels[names.ConfigurationLabel] = config.Name
	labels[names.ConfigurationUIDLabel] = string(config.UID)
	labels[names.ConfigurationGenerationLabel] = strconv.FormatInt(config.Generation, 10)
	for _, key := range []string{names.ServiceLabel, names.ServiceUIDLabel} {
		if value, given := config.Labels[key]; given {
			labels[key] = value
		}
	}
	state := names.RoutingPending
	if routes := config.Annotations[names.RoutesAnnotation]; routes != "" {
		state = names.RoutingActive
		annotations[names.RoutesAnnotation] = routes
	}
	labels[names.RoutingStateLabel] = string(state)
	annotations[names.RoutingStateModifiedAnnotation] = now.UTC().Format(time.RFC3339)
	if creator, given := config.Annotations[names.LastModifierAnnotation]; given {
		annotations[names.CreatorAnnotation] = creator
	}
	rev := &servingv1.Revision{
		ObjectMeta: metav1.ObjectMeta{
			Name: RevisionName(config), Namespace: config.Namespace,
			Labels: labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(config,
				servingv1.SchemeGroupVersion.WithKind("Configuration"))},
		},
		Spec: template.Spec,
	}
	rev.SetDefaults(rules.Request[servingv1.Revision]{Config: defaults, Operation: rules.Create})
	return rev
}

// Reusable reports whether a revision is one of the Configuration's current template: the
// Configuration controls it, and it has this generation or the same spec. By the same spec, a user
// goes back to a revision by its name.
func Reusable(rev *servingv1.Revision, config *servingv1.Configuration, defaults *rules.Config) bool {
	if !metav1.IsControlledBy(rev, config) {
		return false
	}
	return generationOf(rev) == config.Generation ||
		equality.Semantic.DeepEqual(rev.Spec, config.Spec.Template.Spec) ||
		equality.Semantic.DeepEqual(rev.Spec, MakeRevision(config, defaults, time.Time{}).Spec)
}

// generationOf returns the generation of the Configuration that created the revision, -1 if the
// label is not valid.
func generationOf(rev *servingv1.Revision) int64 {
	generation, err := strconv.ParseInt(rev.Labels[names.ConfigurationGenerationLabel], 10, 64)
	if err != nil {
		return -1
	}
	return generation
}

func copied(m map[string]string) map[string]string {
	out := make(map[string]string, len(m)+6)
	maps.Copy(out, m)
	return out
}
