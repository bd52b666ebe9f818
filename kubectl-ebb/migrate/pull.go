package migrate

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/api/names"
)

// pullName is the pod that tries the images.
const pullName = "ebb-migration-images"

// pull starts a pod with all images of Ebb, before anything changes. Each container asks the
// program for its version and ends.
func (m *Move) pull(ctx context.Context) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pullName, Namespace: names.SystemNamespace},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: ptr.To(false), TerminationGracePeriodSeconds: ptr.To(int64(0)),
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To(int64(65532)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}},
	}
	for i, image := range m.Manifests.images() {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("image-%d", i), Image: image, Args: []string{"--version"},
			SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}})
	}
	if secrets := m.pullSecrets(); len(secrets) > 0 {
		pod.Spec.ImagePullSecrets = secrets
	}
	api := m.Kube.CoreV1().Pods(names.SystemNamespace)
	gone := func() error {
		err := api.Delete(context.WithoutCancel(ctx), pullName, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	if err := gone(); err != nil { // of an earlier run
		return err
	}
	if _, err := api.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	err := until(ctx, 5*time.Minute, func(ctx context.Context) (string, error) {
		pod, err := api.Get(ctx, pullName, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return unpulled(pod)
	})
	if after := gone(); err == nil {
		err = after
	}
	return err
}

// unpulled says which image a node does not have yet. One that cannot be pulled is an error.
func unpulled(pod *corev1.Pod) (string, error) {
	if len(pod.Status.ContainerStatuses) == 0 {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				return "no node takes the pod " + pullName + ": " + c.Message, nil
			}
		}
		return "the pod " + pullName + " does not start", nil
	}
	for _, c := range pod.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			switch w.Reason {
			case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull":
				return "", fmt.Errorf("the node %s cannot pull %s: %s\nbring the images of the release to your registry, see docs/install.md", pod.Spec.NodeName, c.Image, w.Message)
			}
			return "the node " + pod.Spec.NodeName + " pulls " + c.Image, nil
		}
	}
	return "", nil
}

// pullSecrets are those of the controller.
func (m *Move) pullSecrets() (secrets []corev1.LocalObjectReference) {
	list, _, _ := unstructured.NestedSlice(m.Manifests.deployment("controller").Object, "spec", "template", "spec", "imagePullSecrets")
	for _, entry := range list {
		var s corev1.LocalObjectReference
		if fields, ok := entry.(map[string]any); ok && runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &s) == nil {
			secrets = append(secrets, s)
		}
	}
	return secrets
}
