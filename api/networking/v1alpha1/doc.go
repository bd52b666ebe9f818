// Package v1alpha1 holds ClusterDomainClaim of networking.internal.knative.dev: which namespace may
// map a domain.
//
// Reads: nothing. Writes: nothing. Never: a clock, a client, a log.
//
// +k8s:deepcopy-gen=package
// +groupName=networking.internal.knative.dev
package v1alpha1
