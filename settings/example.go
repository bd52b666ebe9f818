package settings

import (
	"fmt"

	"knative.dev/pkg/configmap"
)

// Names of the documentation key of a ConfigMap and of the annotation that protects it.
const (
	ExampleKey         = configmap.ExampleKey
	ExampleChecksumKey = configmap.ExampleChecksumAnnotation
)

// VerifyExample refuses a ConfigMap whose _example was edited: whoever edits it means to set a
// value, and would otherwise wonder why nothing happens. A map without the checksum annotation is
// not checked.
func VerifyExample(name string, annotations, data map[string]string) error {
	example, ok := data[ExampleKey]
	if !ok {
		return nil
	}
	want, ok := annotations[ExampleChecksumKey]
	if !ok {
		return nil
	}
	if got := configmap.Checksum(example); got != want {
		return &KeyError{ConfigMap: name, Key: ExampleKey, Reason: fmt.Sprintf(
			"is documentation and has no effect; set the key next to it instead (checksum %s, expected %s)", got, want)}
	}
	return nil
}
