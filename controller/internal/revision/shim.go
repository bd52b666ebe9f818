package revision

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// shimVolume has room for the shim, and for the copy that replaces it if the init container runs
// again.
var shimVolume = resource.MustParse("32Mi")

// addShim puts the shim before the program of the serving container, if the Revision asks for it.
// An init container copies it there, with the resources of queue-proxy, which the pod has anyway.
func addShim(rev *servingv1.Revision, mode string, s *settings.Snapshot, pod *corev1.PodSpec, c, sidecar *corev1.Container) error {
	if mode == "" {
		return nil
	}
	if s.Deployment.ShimImage == "" || len(c.Command) == 0 {
		return fmt.Errorf("revision %s/%s has the annotation %s, which needs shim-image in ConfigMap config-deployment and the command of container %s",
			rev.Namespace, rev.Name, names.ShimAnnotation, c.Name)
	}
	c.Command = append([]string{names.ShimPath + "/shim", "--"}, c.Command...)
	c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "SHIM_MODE" })
	setIfAbsent(c, "SHIM_MODE", mode)
	if limit := rev.Spec.ContainerConcurrency; limit != nil && *limit > 0 {
		setIfAbsent(c, "SHIM_WORKERS", fmt.Sprint(*limit))
	}
	if timeout := rev.Spec.TimeoutSeconds; timeout != nil && mode != names.ShimHTTP {
		setIfAbsent(c, "SHIM_TIMEOUT", fmt.Sprintf("%ds", *timeout))
	}
	mount := corev1.VolumeMount{Name: names.ShimContainer, MountPath: names.ShimPath}
	installer := corev1.Container{Name: names.ShimContainer, Image: s.Deployment.ShimImage, Args: []string{"install", names.ShimPath},
		Resources: *sidecar.Resources.DeepCopy(), SecurityContext: sidecar.SecurityContext.DeepCopy(), VolumeMounts: []corev1.VolumeMount{mount}}
	setCommonFields(&installer)
	mount.ReadOnly = true
	c.VolumeMounts = append(c.VolumeMounts, mount)
	pod.InitContainers = slices.Insert(pod.InitContainers, 0, installer)
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: names.ShimContainer,
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &shimVolume}}})
	return nil
}

// tellConcurrency gives the serving container the variable that the Revision asks for.
func tellConcurrency(rev *servingv1.Revision, name string, c *corev1.Container) {
	if limit := rev.Spec.ContainerConcurrency; name != "" && limit != nil && *limit > 0 {
		setIfAbsent(c, name, fmt.Sprint(*limit))
	}
}

// setIfAbsent sets a variable that the user did not set.
func setIfAbsent(c *corev1.Container, name, value string) {
	if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name }) {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
}
