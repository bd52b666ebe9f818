// Package v1beta1 holds DomainMapping of serving.knative.dev/v1beta1: its type, conditions,
// defaults and refusals.
//
// Reads: the object and a rules.Request. Writes: only its receiver. Never: a clock, a client, a
// log.
//
// +k8s:deepcopy-gen=package
// +groupName=serving.knative.dev
package v1beta1
