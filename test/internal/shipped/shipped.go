// Package shipped returns settings of the shipped manifests, for benchmarks that start Ebb's
// programs themselves.
//
// Owns: nothing. Reads: the manifests in config/core. Writes: nothing. Never: reads from a cluster,
// where an older version may be installed.
package shipped

import (
	"fmt"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"ebb.dev/ebb/test/internal/cluster"
)

// The manifests. Paths are relative to the root of the repository, where benchmarks run.
const (
	Activator  = "config/core/activator.yaml"
	Autoscaler = "config/core/autoscaler.yaml"
)

// MemoryLimit returns the GOMEMLIMIT of the manifest's Deployment. A measurement under another
// limit would say nothing about the installed component.
func MemoryLimit(manifest string) (string, error) {
	text, err := os.ReadFile(manifest)
	if err != nil {
		return "", fmt.Errorf("read the manifest (run from the root of the repository): %w", err)
	}
	objects, err := cluster.Decode(string(text))
	if err != nil {
		return "", fmt.Errorf("%s: %w", manifest, err)
	}
	for _, object := range objects {
		if object.GetKind() != "Deployment" {
			continue
		}
		var d appsv1.Deployment
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &d); err != nil {
			return "", fmt.Errorf("%s: Deployment %s: %w", manifest, object.GetName(), err)
		}
		for _, container := range d.Spec.Template.Spec.Containers {
			for _, variable := range container.Env {
				if variable.Name == "GOMEMLIMIT" && variable.Value != "" {
					return variable.Value, nil
				}
			}
		}
	}
	return "", fmt.Errorf("%s sets no GOMEMLIMIT", manifest)
}
