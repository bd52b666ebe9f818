package main

import (
	"fmt"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"ebb.dev/ebb/test/internal/cluster"
)

// shipped is the manifest that is installed; the path is from the root of the repository, where go build wants to be run, too.
const shipped = "config/core/autoscaler.yaml"

// memoryLimit is the GOMEMLIMIT that the autoscaler is installed with: what is measured under another says nothing about it.
func memoryLimit(manifest string) (string, error) {
	text, err := os.ReadFile(manifest)
	if err != nil {
		return "", fmt.Errorf("read how the autoscaler is installed: %w", err)
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
