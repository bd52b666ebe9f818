package admit

import (
	"context"
	"errors"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// PodDryRun asks the API server whether it would take a pod made of a template. Nothing is created.
//
// Who asked is not known: nothing tells the API server's request from one that a pod of the cluster
// made up, with any namespace in it. So the error does not tell how much of a quota is used.
func PodDryRun(client kubernetes.Interface) DryRun {
	return func(ctx context.Context, namespace string, parent *metav1.ObjectMeta, template *servingv1.RevisionTemplateSpec) error {
		_, err := client.CoreV1().Pods(namespace).Create(ctx, trialPod(namespace, parent, template),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return nil
		}
		if before, _, isQuota := strings.Cut(err.Error(), ", used: "); isQuota {
			return errors.New(before)
		}
		return err
	}
}

// trialPod is what policies of the cluster see of a template's pods: its labels and annotations,
// and the user's containers. The sidecar and what goes with it are not the user's to mend, and are
// left out.
func trialPod(namespace string, parent *metav1.ObjectMeta, template *servingv1.RevisionTemplateSpec) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      strings.TrimRight(names.Child("dry-run-validation", "-"+parent.Name), "-"),
			Namespace: namespace, Labels: map[string]string{}, Annotations: map[string]string{},
		},
		Spec: *template.Spec.PodSpec.DeepCopy(),
	}
	maps.Copy(pod.Labels, template.Labels)
	maps.Copy(pod.Annotations, template.Annotations)
	maps.DeleteFunc(pod.Annotations, func(key, _ string) bool { return strings.HasPrefix(key, names.AutoscalingGroup+"/") })
	// How the revision will be called is known only when the user says.
	revision := template.Name
	if revision == "" {
		revision = pod.Name
	}
	pod.Labels[names.ConfigurationLabel] = parent.Name
	pod.Labels[names.RevisionLabel] = revision
	if pod.Labels[names.AppLabel] == "" {
		pod.Labels[names.AppLabel] = revision
	}
	if creator := parent.Annotations[names.LastModifierAnnotation]; creator != "" {
		pod.Annotations[names.CreatorAnnotation] = creator
	}
	// Probes are queue-proxy's or get the port that only the real pod has.
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.ReadinessProbe, c.LivenessProbe, c.StartupProbe = nil, nil, nil
		for p := range c.Ports {
			if c.Ports[p].ContainerPort == 0 {
				c.Ports[p].ContainerPort = names.DefaultUserPort
			}
		}
	}
	return pod
}
