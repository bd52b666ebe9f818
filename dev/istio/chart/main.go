// Command chart renders the istiod chart that Istio's module carries: values
// come as YAML on standard input, manifests go to standard output.
//
// It reads nothing but its input and talks to no cluster.
package main

import (
	"fmt"
	"io"
	"os"

	"istio.io/istio/operator/pkg/helm"
	"istio.io/istio/operator/pkg/values"
	"k8s.io/apimachinery/pkg/version"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "render the istiod chart:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	chart, err := values.MapFromYaml(text)
	if err != nil {
		return fmt.Errorf("read the values: %w", err)
	}
	settings := values.Map{"spec": map[string]any{"values": map[string]any(chart)}}
	kubernetes := &version.Info{GitVersion: "v1.37.2", Major: "1", Minor: "37"}
	manifests, warnings, err := helm.Render("istiod", "istio-system", "istio-control/istio-discovery", settings, kubernetes)
	if err != nil {
		return err
	}
	if warnings != nil {
		fmt.Fprintln(os.Stderr, warnings)
	}
	for _, m := range manifests {
		if _, err := fmt.Fprintf(out, "---\n%s\n", m.Content); err != nil {
			return err
		}
	}
	return nil
}
