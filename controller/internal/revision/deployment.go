package revision

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/standby"
)

// MakeDeployment is the Deployment of a revision. replicas is what a new one starts with; an
// existing one keeps its own.
func MakeDeployment(rev *servingv1.Revision, replicas int32, in Inputs) (*appsv1.Deployment, error) {
	m := rev.Meaning(in.Settings.Rules())
	pod, err := makePodSpec(rev, m, in)
	if err != nil {
		return nil, err
	}
	labels := childLabels(rev)
	podNotes := podAnnotations(rev)
	podNotes[names.DefaultContainerAnnotation] = rev.Spec.ServingContainer().Name
	if standbyOf(rev, m, in.Settings).frozen() {
		podNotes[standby.Containers] = frozenContainers(rev)
	}
	if limit := startupOf(rev, m, in.Settings).limit; limit != "" {
		podNotes[names.StartupLimitAnnotation] = limit
	}
	if keyInEnvironment(&pod) {
		podNotes[names.PodKeyAnnotation] = in.KeyName
	}
	history, deadline := int32(0), progressDeadline(m, in)
	none := intstr.FromInt32(0)
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name: names.Deployment(rev.Name), Namespace: rev.Namespace,
			Labels: labels, Annotations: podAnnotations(rev),
			OwnerReferences: controlledBy(rev),
		},
		Spec: appsv1.DeploymentSpec{
			Replicas:                &replicas,
			Selector:                deploymentSelector(rev),
			ProgressDeadlineSeconds: &deadline,
			RevisionHistoryLimit:    &history,
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &none},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(labels), Annotations: podNotes},
				Spec:       pod,
			},
		},
	}
	hashed := d.Spec.DeepCopy()
	hashed.Replicas = nil // the autoscaler's
	d.Labels[names.DeploymentHashLabel] = hashOf(hashed, d.Labels, podAnnotations(rev))
	d.Annotations[names.RevisionHashAnnotation] = ownHash(rev)
	d.Annotations[names.PodKeyAnnotation] = in.KeyName
	if in.TLS {
		d.Annotations[names.SystemTLSAnnotation] = "true"
	}
	return d, nil
}

// ownHash is over everything of the Revision that reaches its pods, and nothing else.
func ownHash(rev *servingv1.Revision) string {
	digests := make([]string, 0, len(rev.Status.ContainerStatuses))
	for _, status := range rev.Status.ContainerStatuses {
		digests = append(digests, status.Name+"="+status.ImageDigest)
	}
	return hashOf(rev.Spec, childLabels(rev), podAnnotations(rev), digests)
}

// hashOf is FNV-32a, base 36, of the JSON of the parts; JSON sorts the keys of maps.
func hashOf(parts ...any) string {
	h := fnv.New32a()
	encoder := json.NewEncoder(h)
	for _, part := range parts {
		if err := encoder.Encode(part); err != nil {
			panic(fmt.Sprintf("hash %T: %v", part, err)) // only for types that JSON cannot hold, never for a value
		}
	}
	return strconv.FormatUint(uint64(h.Sum32()), 36)
}

func progressDeadline(m names.Spec, in Inputs) int32 {
	if d := m.Scaling.ProgressDeadline; d >= time.Second {
		return int32(min(d/time.Second, math.MaxInt32))
	}
	return in.Settings.Deployment.ProgressDeadlineSeconds()
}

// due tells whether the change from have to want is to be written now.
//
//	difference                               pods        written
//	none                                     any         no
//	the Deployment is Knative's              none        now
//	the Deployment is Knative's              some        when the revision is next at zero
//	the Revision (spec, labels, digest ...)  any         now: the user asked for it
//	system-internal-tls was switched on      any         now: what is to be secret is not to wait for the revision's end
//	another key, of pods that cannot read it any            now: their reports will be refused within the hour
//	only Ebb's part (sidecar, settings)      none        now: nobody is restarted
//	only Ebb's part                          some        when the revision is next at zero
//
// A Deployment without the hash of the Revision was made by Knative Serving, before the
// installation was moved to Ebb. Neither the move nor a new version of Ebb or a changed global
// setting restarts a running pod. New pods of a running revision are like the old ones, and
// queue-proxies of older versions, and of Knative, stay supported.
func due(have, want *appsv1.Deployment) bool {
	switch {
	case have.Labels[names.DeploymentHashLabel] == want.Labels[names.DeploymentHashLabel]:
		return false
	case have.Annotations[names.RevisionHashAnnotation] == "":
		return atZero(have)
	case have.Annotations[names.RevisionHashAnnotation] != want.Annotations[names.RevisionHashAnnotation]:
		return true
	case have.Annotations[names.SystemTLSAnnotation] == "" && want.Annotations[names.SystemTLSAnnotation] != "":
		return true
	case keyOf(have) != "" && keyOf(have) != want.Annotations[names.PodKeyAnnotation]:
		return true
	default:
		return atZero(have)
	}
}

// keyOf names the key that the pods have in their environment, "" if they read it from a volume.
func keyOf(d *appsv1.Deployment) string { return d.Spec.Template.Annotations[names.PodKeyAnnotation] }

// mergeDeployment makes have what want says, except for what is not the controller's: the number of
// replicas (the autoscaler patches it), the selector (immutable), and what third parties wrote into
// the metadata, `kubectl rollout restart` among them.
func mergeDeployment(have, want *appsv1.Deployment) {
	if !due(have, want) {
		return
	}
	replicas, selector := have.Spec.Replicas, have.Spec.Selector
	template := have.Spec.Template.ObjectMeta
	apply.Metadata(have, want)
	have.Spec = *want.Spec.DeepCopy()
	have.Spec.Replicas, have.Spec.Selector = replicas, selector
	have.Spec.Template.Labels = apply.Keys(template.Labels, want.Spec.Template.Labels)
	have.Spec.Template.Annotations = apply.Keys(template.Annotations, want.Spec.Template.Annotations)
}
