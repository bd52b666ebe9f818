package endpoints

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/certificate"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// policies is the kind that makes gateways use TLS to a Service.
var policies = schema.GroupVersionResource{Group: gatewayv1.GroupName, Version: "v1", Resource: "backendtlspolicies"}

// Times of the switch to TLS.
const (
	handshakeWithin = 500 * time.Millisecond
	askAgain        = time.Second
	// policyAge is the age of a policy before gateways use its port.
	policyAge = 2 * time.Second
)

// security decides whether gateways reach a revision over TLS.
type security struct {
	settings     *settings.Store
	deployments  appslisters.DeploymentLister
	authorities  corelisters.ConfigMapLister
	certificates *certificate.Certificates
	policies     *reconcile.Optional
	now          func() time.Time

	// shake makes one handshake.
	shake   func(ctx context.Context, address string, roots *x509.CertPool) error
	mu      sync.Mutex
	answers map[string]bool // addresses of activators that serve TLS
}

func newSecurity(mgr *reconcile.Manager, c *reconcile.Controller, everybody func() []reconcile.Key) *security {
	deployments := mgr.Kubernetes("", names.RevisionUIDLabel).Apps().V1().Deployments()
	authorities := mgr.Kubernetes("", names.NamespaceCertificateLabel+"=true").Core().V1().ConfigMaps()
	s := &security{
		settings: mgr.Settings, deployments: deployments.Lister(), authorities: authorities.Lister(),
		policies: mgr.Optional(policies, names.ServerlessServiceLabel), now: mgr.Now, shake: handshake, answers: map[string]bool{},
	}
	ofNamespace := func(object any) (keys []reconcile.Key) {
		if !mgr.Settings.Load().Network.SystemInternalTLS {
			return nil
		}
		for _, key := range everybody() {
			if key.Namespace == object.(metav1.Object).GetNamespace() {
				keys = append(keys, key)
			}
		}
		return keys
	}
	s.certificates = certificate.New(mgr, c, func(object any) []reconcile.Key {
		if object.(metav1.Object).GetName() != names.NamespaceCertificate {
			return nil
		}
		return ofNamespace(object)
	})
	c.Watch(authorities.Informer(), ofNamespace)
	c.WatchOptional(s.policies, reconcile.ControllerOf("PodAutoscaler"))
	its := reconcile.Label(names.RevisionLabel)
	c.Watch(deployments.Informer(), func(object any) []reconcile.Key {
		if object.(metav1.Object).GetAnnotations()[names.SystemTLSAnnotation] == "" {
			return nil
		}
		return its(object)
	})
	return s
}

// ready reports whether all endpoints of a revision's public Service serve TLS and the gateways can
// verify it. If not yet, it returns when to ask again. before is true if the gateways use TLS
// already.
//
//	system-internal-tls | before | pods that serve TLS | policy           | activators | ->
//	off                 | any    | any                 | any              | any        | no; the plain port is always open
//	on                  | any    | some do not         | any              | any        | no
//	on                  | no     | all                 | not there or new | any        | no, again soon
//	on                  | no     | all                 | there            | not all    | no, again soon
//	on                  | no     | all                 | there            | all        | yes
//	on                  | yes    | all                 | there            | any        | yes: an activator opens the port before it is ready
func (s *security) ready(ctx context.Context, pa *autoscalingv1alpha1.PodAutoscaler, activators []string, before bool) (bool, time.Duration, error) {
	if !s.settings.Load().Network.SystemInternalTLS {
		return false, 0, nil
	}
	if !s.certificates.Ready(pa.Namespace, names.NamespaceCertificate) {
		return before, 0, nil // an event follows; a renewal changes nothing
	}
	d, found, err := apply.Found(s.deployments.Deployments(pa.Namespace).Get(names.Deployment(pa.Name)))
	if err != nil {
		return false, 0, err
	}
	if found && (d.Annotations[names.SystemTLSAnnotation] == "" ||
		d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas < d.Status.Replicas) && !before {
		return false, 0, nil
	}
	authority, found, err := apply.Found(s.authorities.ConfigMaps(pa.Namespace).Get(names.NamespaceAuthority))
	if err != nil || !found {
		return false, 0, err
	}
	if !s.policies.Present() {
		return false, 0, reconcile.Permanent(errors.New("system-internal-tls is on, but the cluster's Gateway API has no BackendTLSPolicies; they came with version 1.4"))
	}
	have, found := s.policies.Get(pa.Namespace, pa.Name)
	have, _, err = apply.Child(ctx, s.policies.Client(pa.Namespace), "BackendTLSPolicy", pa, have, found, policy(pa),
		func(have, want *unstructured.Unstructured) {
			apply.Metadata(have, want)
			have.Object["spec"] = want.Object["spec"]
		})
	if err != nil {
		return false, 0, err
	}
	if before {
		return true, 0, nil
	}
	if age := s.now().Sub(have.GetCreationTimestamp().Time); age < policyAge {
		return false, policyAge - age, nil
	}
	if err := s.ask(ctx, activators, authority.Data["ca.crt"]); err != nil {
		return false, askAgain, nil // "not yet" is not a failure
	}
	return true, 0, nil
}

// ask returns nil if the activators at these addresses serve TLS with a certificate of an authority
// in pem.
func (s *security) ask(ctx context.Context, activators []string, pem string) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(pem))
	for _, address := range activators {
		s.mu.Lock()
		known := s.answers[address]
		s.mu.Unlock()
		if known {
			continue
		}
		if err := s.shake(ctx, net.JoinHostPort(address, strconv.Itoa(wire.PortTLS)), roots); err != nil {
			return fmt.Errorf("activator %s does not serve TLS: %w", address, err)
		}
		s.mu.Lock()
		s.answers[address] = true
		s.mu.Unlock()
	}
	return nil
}

func handshake(ctx context.Context, address string, roots *x509.CertPool) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeWithin)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: wire.NameRouting, MinVersion: tls.VersionTLS12}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// policy returns the BackendTLSPolicy by which gateways use TLS to port https of the public
// Service. Its endpoints are activators or pods of this namespace.
func policy(pa *autoscalingv1alpha1.PodAutoscaler) *unstructured.Unstructured {
	name := func(host string) gatewayv1.SubjectAltName {
		return gatewayv1.SubjectAltName{Type: gatewayv1.HostnameSubjectAltNameType, Hostname: gatewayv1.Hostname(host)}
	}
	spec := gatewayv1.BackendTLSPolicySpec{
		TargetRefs: []gatewayv1.LocalPolicyTargetReferenceWithSectionName{{
			LocalPolicyTargetReference: gatewayv1.LocalPolicyTargetReference{Group: "", Kind: "Service", Name: gatewayv1.ObjectName(names.PublicService(pa.Name))},
			SectionName:                ptr.To(gatewayv1.SectionName("https")),
		}},
		Validation: gatewayv1.BackendTLSPolicyValidation{
			CACertificateRefs: []gatewayv1.LocalObjectReference{{Group: "", Kind: "ConfigMap", Name: names.NamespaceAuthority}},
			Hostname:          wire.NameDataPlane,
			SubjectAltNames:   []gatewayv1.SubjectAltName{name(wire.NameRouting), name(wire.NameUserPrefix + pa.Namespace)},
		},
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		panic(fmt.Sprintf("a BackendTLSPolicy is plain data: %v", err))
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": fields}}
	object.SetAPIVersion(policies.GroupVersion().String())
	object.SetKind("BackendTLSPolicy")
	object.SetNamespace(pa.Namespace)
	object.SetName(pa.Name)
	object.SetLabels(childLabels(pa, names.ServiceTypePublic))
	object.SetOwnerReferences(owner(pa))
	return object
}

// overTLS adds the annotation by which Routes know that they may use port 443 of the public
// Service.
func overTLS(service *corev1.Service, pa *autoscalingv1alpha1.PodAutoscaler) *corev1.Service {
	if isH2C(pa) {
		for i := range service.Spec.Ports {
			service.Spec.Ports[i].AppProtocol = ptr.To(appProtocolH2C) // gateways use HTTP/2 inside TLS too
		}
	}
	if service.Annotations == nil {
		service.Annotations = map[string]string{}
	}
	service.Annotations[names.SystemTLSAnnotation] = "true"
	return service
}
