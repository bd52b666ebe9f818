package release

import (
	"fmt"
	"testing"

	"sigs.k8s.io/yaml"
)

// Ebb finds the pods of a gateway behind the Service that config-gateway names. Envoy Gateway gives
// it the name that the EnvoyProxy has.
func TestTheGatewaysOfEnvoyGatewayAreThoseOfTheSettings(t *testing.T) {
	objects := byID(rendered(t).EnvoyGateway)
	settings := objects["v1 ConfigMap knative-serving/config-gateway"]
	for _, key := range []string{"external-gateways", "local-gateways"} {
		var gateways []struct{ Class, Gateway, Service string }
		if err := yaml.Unmarshal([]byte(settings.text("data", key)), &gateways); err != nil || len(gateways) != 1 {
			t.Fatalf("%s has %d gateways: %v", key, len(gateways), err)
		}
		g := gateways[0]
		if _, ok := objects["gateway.networking.k8s.io/v1 GatewayClass /"+g.Class]; !ok {
			t.Errorf("%s: there is no GatewayClass %s", key, g.Class)
		}
		gateway, ok := objects["gateway.networking.k8s.io/v1 Gateway "+g.Gateway]
		if !ok || gateway.text("spec", "gatewayClassName") != g.Class {
			t.Errorf("%s: Gateway %s is %v, want one of class %s", key, g.Gateway, gateway, g.Class)
		}
		proxy := objects["gateway.envoyproxy.io/v1alpha1 EnvoyProxy "+gateway.Namespace()+"/"+gateway.text("spec", "infrastructure", "parametersRef", "name")]
		if got := "envoy-gateway-system/" + proxy.text("spec", "provider", "kubernetes", "envoyService", "name"); got != g.Service {
			t.Errorf("%s: Envoy Gateway makes the Service %s, the settings name %s", key, got, g.Service)
		}
		if err := patient(proxy); err != nil {
			t.Errorf("EnvoyProxy %s: %v", proxy.Name(), err)
		}
		for _, kind := range []string{"ClientTrafficPolicy", "BackendTrafficPolicy"} {
			policy := objects["gateway.envoyproxy.io/v1alpha1 "+kind+" knative-serving/ebb"]
			if !targets(policy, gateway.Name()) {
				t.Errorf("%s does not apply to Gateway %s", kind, gateway.Name())
			}
		}
	}
}

// patient says whether one late answer leaves an Envoy in its Service, also where Envoy Gateway's
// own configuration has a patch. The container's name is Envoy Gateway's.
func patient(proxy Object) error {
	var spec struct {
		MergeType string
		Provider  struct {
			Kubernetes struct {
				EnvoyDeployment struct {
					Patch struct {
						Type  string
						Value struct {
							Spec struct {
								Template struct {
									Spec struct{ Containers []container }
								}
							}
						}
					}
				}
				EnvoyService struct{ Type, ExternalTrafficPolicy string }
			}
		}
	}
	text, err := yaml.Marshal(proxy["spec"])
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(text, &spec); err != nil {
		return err
	}
	kubernetes := spec.Provider.Kubernetes
	containers := kubernetes.EnvoyDeployment.Patch.Value.Spec.Template.Spec.Containers
	switch {
	case len(containers) != 1 || containers[0].Name != "envoy" || containers[0].ReadinessProbe.FailureThreshold < 2 || containers[0].ReadinessProbe.TimeoutSeconds < 2:
		return fmt.Errorf("the containers are patched with %+v", containers)
	case kubernetes.EnvoyDeployment.Patch.Type != "StrategicMerge":
		return fmt.Errorf("a patch of type %s replaces the list of containers", kubernetes.EnvoyDeployment.Patch.Type)
	case spec.MergeType != "JSONMerge":
		return fmt.Errorf("mergeType %s fails where Envoy Gateway's own configuration has a patch", spec.MergeType)
	case kubernetes.EnvoyService.Type != "ClusterIP" && kubernetes.EnvoyService.ExternalTrafficPolicy != "Cluster":
		return fmt.Errorf("the Service's externalTrafficPolicy is %q, want Cluster", kubernetes.EnvoyService.ExternalTrafficPolicy)
	}
	return nil
}

type container struct {
	Name           string
	ReadinessProbe struct{ TimeoutSeconds, FailureThreshold int }
}

func targets(policy Object, gateway string) bool {
	spec, _ := policy["spec"].(map[string]any)
	refs, _ := spec["targetRefs"].([]any)
	for _, ref := range refs {
		if fields, ok := ref.(map[string]any); ok && fields["kind"] == "Gateway" && fields["name"] == gateway {
			return true
		}
	}
	return false
}
