// Package shipped tells what the manifests install Ebb with, for benchmarks that start its programs
// themselves.
//
// Owns: nothing. Reads: the manifests in config/core. Writes: nothing. Never: asks a cluster; what
// is installed there may be older.
package shipped

import (
	"fmt"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"ebb.dev/ebb/test/internal/cluster"
)

// The manifests that are installed; the paths are from the root of the repository, where the
// benchmarks want to be run, too.
const (
	Activator  = "config/core/activator.yaml"
	Autoscaler = "config/core/autoscaler.yaml"
)

// MemoryLimit is the GOMEMLIMIT that the manifest's Deployment is installed with: what is measured
// under another says nothing about it.
func MemoryLimit(manifest string) (string, error) {
	text, err := os.ReadFile(manifest)
	if err != nil {
		return "", fmt.Errorf("read what is installed (from the root of the repository): %w", err)
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
