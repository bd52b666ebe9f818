package endpoints

import (
	"path/filepath"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/test/golden"
)

// A revision's two Services and the EndpointSlice of the public one, whole: names, labels,
// annotations, owners and ports.
func TestChildren(t *testing.T) {
	for name, protocol := range map[string]autoscalingv1alpha1.ProtocolType{
		"children-http1": autoscalingv1alpha1.ProtocolHTTP1, "children-h2c": autoscalingv1alpha1.ProtocolH2C,
	} {
		t.Run(name, func(t *testing.T) {
			pa := podAutoscaler(protocol)
			objects := []any{publicService(pa), privateService(pa)}
			for _, slice := range makeSlices(pa, map[discoveryv1.AddressType][]discoveryv1.Endpoint{
				"IPv4": {{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}}}) {
				objects = append(objects, slice)
			}
			var out strings.Builder
			for _, object := range objects {
				raw, err := yaml.Marshal(object)
				if err != nil {
					t.Fatal(err)
				}
				out.WriteString("---\n" + string(raw))
			}
			golden.File(t, filepath.Join("testdata", name+".yaml"), out.String())
		})
	}
}
