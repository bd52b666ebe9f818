// Command validate says what Kubernetes' API server says of Deployments: it reads a JSON list of
// them from standard input, and writes for each the list of what is wrong. The code that judges
// is in k8s.io/kubernetes, which the project's own go.mod cannot hold.
//
// Owns: nothing. Reads: standard input. Writes: standard output. Never: judges; Kubernetes does.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	"k8s.io/kubernetes/pkg/apis/apps/validation"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "validate:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	var deployments []json.RawMessage
	if err := json.NewDecoder(in).Decode(&deployments); err != nil {
		return fmt.Errorf("read the Deployments: %w", err)
	}
	wrong := make([][]string, len(deployments))
	for i, text := range deployments {
		wrong[i] = []string{}
		// Decoding sets the defaults, too.
		decoder := legacyscheme.Codecs.UniversalDecoder(apps.SchemeGroupVersion)
		decoded, _, err := decoder.Decode(text, nil, nil)
		if err != nil {
			wrong[i] = append(wrong[i], err.Error())
			continue
		}
		deployment, ok := decoded.(*apps.Deployment)
		if !ok {
			return fmt.Errorf("object %d is a %T", i, decoded)
		}
		pod.DropDisabledTemplateFields(&deployment.Spec.Template, nil)
		options := pod.GetValidationOptionsFromPodTemplate(&deployment.Spec.Template, nil)
		for _, err := range validation.ValidateDeployment(deployment, options) {
			wrong[i] = append(wrong[i], err.Error())
		}
	}
	return json.NewEncoder(out).Encode(wrong)
}
