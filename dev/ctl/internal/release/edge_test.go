package release

import (
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// edgeObject is what of an object the edge profile changes.
type edgeObject struct {
	Subjects []struct{ Kind, Name string }
	Spec     struct {
		Selector map[string]any
		Ports    []struct{ TargetPort any }
		Template struct {
			Spec struct {
				ServiceAccountName string
				Containers         []struct {
					Ports []struct{ ContainerPort float64 }
				}
			}
		}
		Ingress []struct {
			Ports []struct{ Port, EndPort float64 }
		}
	}
}

func view(t *testing.T, o Object) (v edgeObject) {
	t.Helper()
	text, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", o.ID(), err)
	}
	return v
}

func byID(objects []Object) map[string]Object {
	found := map[string]Object{}
	for _, o := range objects {
		found[o.ID()] = o
	}
	return found
}

var inOneProcess = []string{"activator", "autoscaler", "controller", "webhook"}

func TestTheEdgeProfileIsOneProcessWithTheRightsOfAll(t *testing.T) {
	m := rendered(t)
	edge := byID(m.Edge)
	ebb, ok := edge["apps/v1 Deployment knative-serving/ebb"]
	if !ok {
		t.Fatal("there is no Deployment ebb")
	}
	pod := view(t, ebb).Spec.Template.Spec
	var listens []float64
	for _, p := range pod.Containers[0].Ports {
		listens = append(listens, p.ContainerPort)
	}
	for _, o := range m.Default {
		before, now := view(t, o), edge[o.ID()]
		component := slices.Contains(inOneProcess, o.Name())
		switch o.Kind() {
		case "Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy":
			if component && now != nil {
				t.Errorf("%s is still there", o.ID())
			}
			continue
		case "ServiceAccount":
			if component != (now == nil) && o.Name() != pod.ServiceAccountName {
				t.Errorf("%s: there %v", o.ID(), now != nil)
			}
			continue
		}
		if now == nil {
			t.Errorf("%s is gone", o.ID())
			continue
		}
		after := view(t, now)
		for i, subject := range before.Subjects {
			if slices.Contains(inOneProcess, subject.Name) && after.Subjects[i].Name != pod.ServiceAccountName {
				t.Errorf("%s binds %s", o.ID(), after.Subjects[i].Name)
			}
		}
		if app, _ := before.Spec.Selector["app"].(string); o.Kind() == "Service" && slices.Contains(inOneProcess, app) {
			if after.Spec.Selector["app"] != "ebb" {
				t.Errorf("%s selects %v", o.ID(), after.Spec.Selector)
			}
			for _, p := range after.Spec.Ports {
				if to, _ := p.TargetPort.(float64); !slices.Contains(listens, to) {
					t.Errorf("%s leads to port %v, on which the process does not listen", o.ID(), p.TargetPort)
				}
			}
		}
	}
	policy, ok := edge["networking.k8s.io/v1 NetworkPolicy knative-serving/ebb"]
	if !ok {
		t.Fatal("there is no NetworkPolicy ebb")
	}
	for _, rule := range view(t, policy).Spec.Ingress {
		for _, p := range rule.Ports {
			for port := p.Port; port <= max(p.Port, p.EndPort); port++ {
				if !slices.Contains(listens, port) {
					t.Errorf("the policy opens port %v, on which the process does not listen", port)
				}
			}
		}
	}
}
