// Package v1alpha1 holds PodAutoscaler of autoscaling.internal.knative.dev: the contract between
// the controller (writes spec and metadata), the autoscaler (writes status) and the endpoints of a
// revision (follow status.mode).
//
// Reads: the object and a rules.Request. Writes: only its receiver. Never: a clock, a client, a
// log.
//
// +k8s:deepcopy-gen=package
// +groupName=autoscaling.internal.knative.dev
package v1alpha1
