// Package v1 holds Service, Configuration, Revision and Route of serving.knative.dev/v1: their
// types, their conditions, and, as pure methods, how they are defaulted and what is refused.
//
// Reads: the object and a rules.Request. Writes: only its receiver. Never: a clock, a client, a
// log.
//
// +k8s:deepcopy-gen=package
// +groupName=serving.knative.dev
package v1
