package migrate

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/api/names"
)

func gvr(group, version, name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: name}
}

var (
	serviceResource    = gvr("", "v1", "services")
	podResource        = gvr("", "v1", "pods")
	endpointsResource  = gvr("", "v1", "endpoints")
	sliceResource      = gvr("discovery.k8s.io", "v1", "endpointslices")
	deploymentResource = gvr("apps", "v1", "deployments")
	replicaResource    = gvr("apps", "v1", "replicasets")
	leaseResource      = gvr("coordination.k8s.io", "v1", "leases")
	kindResource       = gvr("apiextensions.k8s.io", "v1", "customresourcedefinitions")
	mutatingResource   = gvr("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations")
	validatingResource = gvr("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations")
	httpRouteResource  = gvr("gateway.networking.k8s.io", "v1", "httproutes")

	servingServices = gvr(names.ServingGroup, "v1", "services")
	revisions       = gvr(names.ServingGroup, "v1", "revisions")
	routes          = gvr(names.ServingGroup, "v1", "routes")
	mappings        = gvr(names.ServingGroup, "v1beta1", "domainmappings")
	autoscalers     = gvr(names.AutoscalingInternalGroup, "v1alpha1", "podautoscalers")
	metrics         = gvr(names.AutoscalingInternalGroup, "v1alpha1", "metrics")
	ingresses       = gvr(names.NetworkingInternalGroup, "v1alpha1", "ingresses")
	certificates    = gvr(names.NetworkingInternalGroup, "v1alpha1", "certificates")
	serverless      = gvr(names.NetworkingInternalGroup, "v1alpha1", "serverlessservices")
	images          = gvr("caching.internal.knative.dev", "v1alpha1", "images")
)

// onlyKnative are the kinds that Ebb does not have.
var onlyKnative = []schema.GroupVersionResource{ingresses, serverless, metrics, certificates, images}

const (
	partOf          = "app.kubernetes.io/name=knative-serving"
	pluginLabel     = "networking.knative.dev/ingress-provider"
	certPluginLabel = "networking.knative.dev/certificate-provider"
)

// systemKinds are the kinds in the system namespace that Knative's installation has objects of.
var systemKinds = []schema.GroupVersionResource{
	deploymentResource, serviceResource, gvr("", "v1", "configmaps"), gvr("", "v1", "serviceaccounts"),
	gvr("rbac.authorization.k8s.io", "v1", "roles"), gvr("rbac.authorization.k8s.io", "v1", "rolebindings"),
	gvr("autoscaling", "v2", "horizontalpodautoscalers"), gvr("policy", "v1", "poddisruptionbudgets"),
}

// clusterKinds are those of the whole cluster.
var clusterKinds = []schema.GroupVersionResource{
	gvr("rbac.authorization.k8s.io", "v1", "clusterroles"), gvr("rbac.authorization.k8s.io", "v1", "clusterrolebindings"),
}

// object is a reference to an object, to get or delete it.
func object(apiVersion, kind, namespace, name string) Object {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

var (
	gatewayResource     = gvr("gateway.networking.k8s.io", "v1", "gateways")
	listenerSetResource = gvr("gateway.networking.k8s.io", "v1", "listenersets")
)
