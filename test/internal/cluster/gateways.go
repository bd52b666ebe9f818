package cluster

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"regexp"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// The Services in front of the Gateways that Ebb installs, by the key of ConfigMap config-gateway.
var shippedGateways = map[string]string{
	"external-gateways": "- service: " + System + "/ebb-external-istio",
	"local-gateways":    "- service: " + System + "/ebb-local-istio",
}

var serviceOfGateway = regexp.MustCompile(`\bservice: *"?([a-z0-9-]+)/([a-z0-9-]+)`)

// gatewayService returns the Service in front of the first Gateway that a key of config-gateway
// names.
func (c *Cluster) gatewayService(ctx context.Context, key string) (*corev1.Service, error) {
	config, err := c.Kube.CoreV1().ConfigMaps(System).Get(ctx, "config-gateway", metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("find the gateways: %w", err)
	}
	name := serviceOfGateway.FindStringSubmatch(cmp.Or(config.Data[key], shippedGateways[key]))
	if name == nil {
		return nil, fmt.Errorf("%s of ConfigMap config-gateway names no Service: %q", key, config.Data[key])
	}
	return c.Kube.CoreV1().Services(name[1]).Get(ctx, name[2], metav1.GetOptions{})
}

// LocalGateway returns host:port of the gateway for cluster-local hosts. A node of the cluster, and
// its pods, can reach it.
func (c *Cluster) LocalGateway(ctx context.Context, port string) (string, error) {
	service, err := c.gatewayService(ctx, "local-gateways")
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(service.Spec.ClusterIP, port), nil
}

// GatewayDeployments returns the Deployments that run the gateways.
func (c *Cluster) GatewayDeployments(ctx context.Context) (found []appsv1.Deployment, err error) {
	for key := range shippedGateways {
		service, err := c.gatewayService(ctx, key)
		if err != nil {
			return nil, err
		}
		deployments, err := c.Kube.AppsV1().Deployments(service.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		before := len(found)
		for _, d := range deployments.Items {
			if labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(d.Spec.Template.Labels)) {
				found = append(found, d)
			}
		}
		if len(found) == before {
			return nil, fmt.Errorf("no Deployment runs the gateway behind Service %s/%s", service.Namespace, service.Name)
		}
	}
	return found, nil
}
