package migrate

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

// An InferenceService is Ready whether or not its host leads anywhere, so a check has to say it.
func TestACheckSaysWhetherModelsOfKServeCanBeReached(t *testing.T) {
	gateway := func(kind corev1.ServiceType) runtime.Object {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "istio-system", Name: "knative-local-gateway"}, Spec: corev1.ServiceSpec{Type: kind}}
	}
	const asShipped = `{"ingressGateway": "knative-serving/knative-ingress-gateway", "disableIstioVirtualHost": false}`
	for name, row := range map[string]struct {
		settings map[string]string
		gateway  runtime.Object
		state    string
		text     string
	}{
		"as shipped":                  {map[string]string{"ingress": asShipped}, nil, Warning, "answer 404"},
		"without a word":              {nil, nil, Warning, "answer 404"},
		"Knative's gateway":           {map[string]string{"ingress": asShipped}, gateway(corev1.ServiceTypeClusterIP), Warning, "answer 404"},
		"with config/kserve":          {map[string]string{"ingress": asShipped}, gateway(corev1.ServiceTypeExternalName), OK, "hosts of their own"},
		"without VirtualServices":     {map[string]string{"ingress": `{"disableIstioVirtualHost": true}`}, nil, OK, "hosts of their predictors"},
		"without Knative":             {map[string]string{"deploy": `{"defaultDeploymentMode": "RawDeployment"}`}, nil, OK, "are Deployments"},
		"with the sidecar of metrics": {map[string]string{"metricsAggregator": `{"enableMetricAggregation": "true"}`}, nil, Warning, "enableMetricAggregation"},
		"that is no JSON":             {map[string]string{"ingress": "{"}, nil, Warning, "the key ingress"},
	} {
		t.Run(name, func(t *testing.T) {
			kube := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kserve", Name: "inferenceservice-config"}, Data: row.settings})
			if row.gateway != nil {
				kube = fake.NewClientset(row.gateway, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kserve", Name: "inferenceservice-config"}, Data: row.settings})
			}
			k, err := LookAtKServe(t.Context(), kube)
			if err != nil {
				t.Fatal(err)
			}
			said := k.Findings()
			found := false
			for _, f := range said {
				found = found || f.State == row.state && strings.Contains(f.Text, row.text) && (f.State == OK || f.Do != "")
			}
			if !found {
				t.Errorf("nothing says %s %q: %+v", row.state, row.text, said)
			}
		})
	}
	if k, err := LookAtKServe(t.Context(), fake.NewClientset()); k != nil || err != nil || k.Findings() != nil {
		t.Errorf("without KServe: %v, %v", k, err)
	}
}
