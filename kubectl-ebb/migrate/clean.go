package migrate

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/api/names"
)

// clean removes what only Knative has: objects, their kinds, activators without new requests, roles
// and leases.
func (m *Move) clean(ctx context.Context) error {
	if err := m.formerPods(ctx); err != nil {
		return err
	}
	for _, kind := range onlyKnative {
		all, err := m.list(ctx, kind, "")
		if err != nil {
			return err
		}
		if err := each(all, func(o Object) error { return m.release(ctx, o) }); err != nil {
			return err
		}
		if err := m.remove(ctx, object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", kind.GroupResource().String())); err != nil {
			return err
		}
	}
	m.mapper.Reset()
	for _, o := range m.Manifests {
		if !isRole(o) || m.state.had(o) == nil {
			continue
		}
		o, err := marked(o)
		if err != nil {
			return err
		}
		if err := m.put(ctx, o); err != nil {
			return err
		}
	}
	for _, before := range m.state.Before {
		if isDefinition(before) || slices.ContainsFunc(m.Manifests, func(o Object) bool { return id(o) == id(before) }) {
			continue
		}
		if err := m.remove(ctx, before); err != nil {
			return err
		}
	}
	return m.leases(ctx)
}

// formerPods lets those activators end that take no new requests. They finish the old ones. A
// killed run may have left the pod that tried the images.
func (m *Move) formerPods(ctx context.Context) error {
	pods, err := m.listIn(ctx, podResource, names.SystemNamespace, "app="+formerLabel)
	if err != nil {
		return err
	}
	pods = append(pods, object("v1", "Pod", names.SystemNamespace, pullName))
	return m.remove(ctx, pods...)
}

// leases removes those of pods that are gone, and what autoscalers find each other by.
func (m *Move) leases(ctx context.Context) error {
	pods, err := m.listIn(ctx, podResource, names.SystemNamespace, "")
	if err != nil {
		return err
	}
	leases, err := m.listIn(ctx, leaseResource, names.SystemNamespace, "")
	if err != nil {
		return err
	}
	for _, lease := range leases {
		holder, _, _ := unstructured.NestedString(lease.Object, "spec", "holderIdentity")
		if slices.ContainsFunc(pods, func(pod Object) bool { return strings.HasPrefix(holder, pod.GetName()) }) {
			continue
		}
		if err := m.remove(ctx, lease); err != nil {
			return err
		}
	}
	for _, r := range []schema.GroupVersionResource{serviceResource, sliceResource, endpointsResource} {
		all, err := m.listIn(ctx, r, names.SystemNamespace, "")
		if err != nil {
			return err
		}
		for _, o := range all {
			if strings.HasPrefix(o.GetName(), "autoscaler-bucket-") {
				if err := m.remove(ctx, o); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
