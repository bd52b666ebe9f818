// Package shipped returns settings of the shipped manifests, for benchmarks that start Ebb's
// programs themselves.
//
// Owns: nothing. Reads: the manifests in config. Writes: nothing. Never: reads from a cluster,
// where an older version may be installed.
package shipped

import (
	"fmt"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"ebb.dev/ebb/test/internal/cluster"
)

// The manifests. Paths are relative to the root of the repository, where benchmarks run.
const (
	Activator  = "config/core/activator.yaml"
	Autoscaler = "config/core/autoscaler.yaml"
	Courier    = "config/courier/courier.yaml"
)

// MemoryLimit returns the GOMEMLIMIT of the manifest's Deployment. A measurement under another
// limit would say nothing about the installed component.
func MemoryLimit(manifest string) (string, error) {
	value := ""
	err := containers(manifest, func(c *corev1.Container) {
		for _, variable := range c.Env {
			if variable.Name == "GOMEMLIMIT" && value == "" {
				value = variable.Value
			}
		}
	})
	if err == nil && value == "" {
		err = fmt.Errorf("%s sets no GOMEMLIMIT", manifest)
	}
	return value, err
}

// ContainerMemory returns the memory limit of the container in bytes: beyond it, the kernel ends
// the process.
func ContainerMemory(manifest string) (bytes int64, err error) {
	err = containers(manifest, func(c *corev1.Container) { bytes = max(bytes, c.Resources.Limits.Memory().Value()) })
	if err == nil && bytes == 0 {
		err = fmt.Errorf("%s sets no memory limit", manifest)
	}
	return bytes, err
}

// containers calls look with each container of the manifest's Deployments and StatefulSets.
func containers(manifest string, look func(*corev1.Container)) error {
	text, err := os.ReadFile(manifest)
	if err != nil {
		return fmt.Errorf("read the manifest (run from the root of the repository): %w", err)
	}
	objects, err := cluster.Decode(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", manifest, err)
	}
	for _, object := range objects {
		if object.GetKind() != "Deployment" && object.GetKind() != "StatefulSet" {
			continue
		}
		var d appsv1.Deployment // what is read of it is alike in both
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &d); err != nil {
			return fmt.Errorf("%s: %s %s: %w", manifest, object.GetKind(), object.GetName(), err)
		}
		for i := range d.Spec.Template.Spec.Containers {
			look(&d.Spec.Template.Spec.Containers[i])
		}
	}
	return nil
}
