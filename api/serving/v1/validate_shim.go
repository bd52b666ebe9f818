package v1

import (
	"fmt"

	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
)

// validateShim checks what a template with ShimAnnotation needs. The path of the error is below the
// template.
func validateShim(annotations map[string]string, spec *RevisionSpec, config *rules.Config) (errs *apis.FieldError) {
	if s, _ := names.Of(annotations, config); s.Shim == "" {
		return nil
	}
	if !config.Shim {
		errs = apis.ErrInvalidKeyName(names.ShimAnnotation, "metadata.annotations",
			"set shim-image in ConfigMap config-deployment of namespace knative-serving to the image of the shim to allow it")
	}
	serving := spec.ServingContainer()
	for i := range spec.Containers {
		c := &spec.Containers[i]
		at := func(err *apis.FieldError, details string) {
			errs = errs.Also(withDetails(err, details).ViaFieldIndex("containers", i).ViaField("spec"))
		}
		if c == serving && len(c.Command) == 0 {
			at(apis.ErrMissingField("command"), fmt.Sprintf("annotation %s starts the program itself and does not know the command of the image; "+
				"repeat it here", names.ShimAnnotation))
		}
		if c.Name == names.ShimContainer {
			at(apis.ErrInvalidValue(c.Name, "name"), "the name is the shim's")
		}
		for j := range c.VolumeMounts {
			if c == serving && c.VolumeMounts[j].MountPath == names.ShimPath {
				at(apis.ErrInvalidValue(names.ShimPath, "mountPath").ViaFieldIndex("volumeMounts", j), "the path is the shim's")
			}
		}
	}
	for i := range spec.InitContainers {
		if spec.InitContainers[i].Name == names.ShimContainer {
			errs = errs.Also(withDetails(apis.ErrInvalidValue(names.ShimContainer, "name"), "the name is the shim's").
				ViaFieldIndex("initContainers", i).ViaField("spec"))
		}
	}
	for i := range spec.Volumes {
		if spec.Volumes[i].Name == names.ShimContainer {
			errs = errs.Also(withDetails(apis.ErrInvalidValue(names.ShimContainer, "name"), "the name is the shim's").
				ViaFieldIndex("volumes", i).ViaField("spec"))
		}
	}
	return errs
}
