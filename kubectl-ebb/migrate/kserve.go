package migrate

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// KServe is what tells whether its InferenceServices can be reached, nil if it is not there.
type KServe struct {
	settings map[string]string // its ConfigMap
	// named: the gateway that its InferenceServices lead to is one of Ebb's, by config/kserve.
	named bool
}

// LookAtKServe reads KServe's settings under the names of its own manifests. What may not be read
// counts as absent.
func LookAtKServe(ctx context.Context, kube kubernetes.Interface) (*KServe, error) {
	settings, err := kube.CoreV1().ConfigMaps("kserve").Get(ctx, "inferenceservice-config", metav1.GetOptions{})
	if unseen(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the settings of KServe: %w", err)
	}
	gateway, err := kube.CoreV1().Services("istio-system").Get(ctx, "knative-local-gateway", metav1.GetOptions{})
	if err != nil && !unseen(err) {
		return nil, fmt.Errorf("read the gateway of KServe: %w", err)
	}
	// Knative's own has pods.
	return &KServe{settings.Data, err == nil && gateway.Spec.Type == corev1.ServiceTypeExternalName}, nil
}

func unseen(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) }

// Findings says what is wrong with KServe on Ebb, and what to do.
func (k *KServe) Findings() []Finding {
	if k == nil {
		return nil
	}
	const about, page = "KServe", "See docs/how-to/kserve.md."
	j := &checklist{}
	var deploy struct {
		Mode string `json:"defaultDeploymentMode"`
	}
	var ingress struct {
		Disabled bool `json:"disableIstioVirtualHost"`
	}
	var metrics struct {
		Aggregation any `json:"enableMetricAggregation"` // KServe has it as text
	}
	for _, part := range []struct {
		key  string
		into any
	}{{"deploy", &deploy}, {"ingress", &ingress}, {"metricsAggregator", &metrics}} {
		if text := k.settings[part.key]; text != "" {
			if err := json.Unmarshal([]byte(text), part.into); err != nil {
				j.warn(about, fmt.Sprintf("the key %s of ConfigMap kserve/inferenceservice-config cannot be read: %v", part.key, err), page)
			}
		}
	}
	switch {
	case deploy.Mode == "RawDeployment" || deploy.Mode == "Standard":
		j.ok(about, "models are Deployments, unless one asks for Knative")
	case ingress.Disabled:
		j.ok(about, "models have the hosts of their predictors")
	case k.named:
		j.ok(about, "models have hosts of their own")
	default:
		j.warn(about, "InferenceServices become Ready, and their hosts answer 404 or do not resolve: they are led to gateways that Ebb does not have",
			"Set disableIstioVirtualHost to true in ConfigMap kserve/inferenceservice-config, or install ebb-kserve.yaml. "+page)
	}
	if fmt.Sprint(metrics.Aggregation) == "true" {
		j.warn(about, "enableMetricAggregation asks queue-proxy for the metrics of models, which Ebb's does not collect",
			"Set it to \"false\", and scrape the models. "+page)
	}
	return j.all
}
