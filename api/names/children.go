package names

import (
	"fmt"
	"hash/adler32"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
	"knative.dev/pkg/kmeta"
)

// Child composes a child's name from its parent's: parent+suffix, or, beyond 63 characters, a
// truncated head with a hash of the parent spliced in, so that two long parents never share a
// child.
func Child(parent, suffix string) string { return kmeta.ChildName(parent, suffix) }

// GeneratedRevision is the name of a Configuration's revision of the given generation when the
// template names none.
func GeneratedRevision(configuration string, generation int64) string {
	return Child(configuration, fmt.Sprintf("-%05d", generation))
}

// Deployment is the name of a revision's Deployment.
func Deployment(revision string) string { return Child(revision, "-deployment") }

// PodAutoscaler is the name of a revision's PodAutoscaler.
func PodAutoscaler(revision string) string { return revision }

// PublicService is the name of the Service that clients of a revision reach: no selector, endpoints
// by Ebb.
func PublicService(revision string) string { return revision }

// PrivateService is the name of the Service whose selector matches the revision's own pods.
func PrivateService(revision string) string { return Child(revision, "-private") }

// ActivatorService is the Service of the activators, in the system namespace.
const ActivatorService = "activator-service"

// RouteCertificate is the name of a Route's certificate for a tag ("" is the Route's own host).
func RouteCertificate(routeUID types.UID, tag string, local bool) string {
	name := "route-" + string(routeUID)
	if tag != "" {
		name += "-" + strconv.FormatUint(uint64(adler32.Checksum([]byte(tag))), 10)
	}
	if local {
		name += "-local"
	}
	return name
}

// NamespaceCertificate is the certificate (and its Secret) that queue-proxies of a namespace serve
// with.
const NamespaceCertificate = "serving-certs"

// NamespaceAuthority is the ConfigMap that says by whose signature gateways know the pods of a
// namespace, and the activators.
const NamespaceAuthority = "serving-certs-authority"

// RoutingCertificate is the certificate (and its Secret, in the system namespace) that activators
// serve with.
const RoutingCertificate = "routing-serving-certs"

// PodSecret is the Secret, in each namespace with a Revision, with the key of the tokens of the
// namespace's revisions (wire.NamespaceKey). It is mounted into the queue-proxies of the namespace,
// so a key that is rotated reaches pods that run. Pods without volumes have it in the environment.
// Who may only view a namespace cannot read it.
const PodSecret = "ebb-queue-proxy"
