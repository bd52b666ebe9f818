package admit

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	servingv1beta1 "ebb.dev/ebb/api/serving/v1beta1"
)

// Rules is what the kinds' own rules depend on.
type Rules = rules.Config

// change is one request in the form the kinds understand it.
type change struct {
	rules       *Rules
	operation   rules.Operation
	subresource string
	user        string
	object, old []byte
}

// kind is what this package does with one kind: setDefaults returns the object with its defaults,
// validate what is wrong with it. An error means that the object cannot be read.
type kind struct {
	setDefaults func(change) ([]byte, error)
	validate    func(change) (*apis.FieldError, error)
	// template returns the pod template for the dry run, with the labels that the kind gives its
	// pods, nil for kinds that have none.
	template func(object []byte) (*servingv1.RevisionTemplateSpec, *metav1.ObjectMeta, error)
}

func kinds() map[metav1.GroupVersionKind]kind {
	serving := func(version, name string) metav1.GroupVersionKind {
		return metav1.GroupVersionKind{Group: servingv1.SchemeGroupVersion.Group, Version: version, Kind: name}
	}
	service := of[servingv1.Service]()
	service.template = func(object []byte) (*servingv1.RevisionTemplateSpec, *metav1.ObjectMeta, error) {
		var s servingv1.Service
		err := json.Unmarshal(object, &s)
		template := &s.Spec.Template
		if template.Labels == nil {
			template.Labels = map[string]string{}
		}
		template.Labels[names.ServiceLabel] = s.Name
		return template, &s.ObjectMeta, err
	}
	configuration := of[servingv1.Configuration]()
	configuration.template = func(object []byte) (*servingv1.RevisionTemplateSpec, *metav1.ObjectMeta, error) {
		var c servingv1.Configuration
		err := json.Unmarshal(object, &c)
		return &c.Spec.Template, &c.ObjectMeta, err
	}
	return map[metav1.GroupVersionKind]kind{
		serving("v1", "Service"):            service,
		serving("v1", "Configuration"):      configuration,
		serving("v1", "Revision"):           of[servingv1.Revision](),
		serving("v1", "Route"):              of[servingv1.Route](),
		serving("v1beta1", "DomainMapping"): of[servingv1beta1.DomainMapping](),
		metav1.GroupVersionKind(autoscalingv1alpha1.SchemeGroupVersion.WithKind("PodAutoscaler")): of[autoscalingv1alpha1.PodAutoscaler](),
	}
}

// ruled is a pointer to a kind that brings its rules.
type ruled[T any] interface {
	*T
	SetDefaults(rules.Request[T])
	Validate(rules.Request[T]) *apis.FieldError
}

func of[T any, P ruled[T]]() kind {
	return kind{
		setDefaults: func(c change) ([]byte, error) {
			c.object = settle(c.object)
			object, request, err := decode[T](c)
			if err != nil {
				return nil, err
			}
			before, err := json.Marshal(object)
			if err != nil {
				return nil, err
			}
			P(object).SetDefaults(request)
			after, err := json.Marshal(object)
			if err != nil {
				return nil, err
			}
			return merge(c.object, before, after)
		},
		validate: func(c change) (*apis.FieldError, error) {
			object, request, err := decode[T](c)
			if err != nil {
				return nil, err
			}
			return P(object).Validate(request), nil
		},
	}
}

func decode[T any](c change) (*T, rules.Request[T], error) {
	request := rules.Request[T]{Config: c.rules, Operation: c.operation, Subresource: c.subresource, User: c.user}
	object := new(T)
	if err := json.Unmarshal(c.object, object); err != nil {
		if misread := misread(object, c.object); misread != nil {
			return nil, request, misread
		}
		return nil, request, fmt.Errorf("cannot decode incoming new object: %w", err)
	}
	if c.operation == rules.Update && len(c.old) > 0 {
		request.Old = new(T)
		if err := json.Unmarshal(c.old, request.Old); err != nil {
			return nil, request, fmt.Errorf("cannot decode incoming old object: %w", err)
		}
	}
	return object, request, nil
}
