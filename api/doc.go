// Package api holds Ebb's public kinds and everything two readers of them must agree on.
//
// Owns: the Go types of serving.knative.dev (Service, Configuration, Revision, Route,
// DomainMapping), autoscaling.internal.knative.dev (PodAutoscaler) and
// networking.internal.knative.dev (ClusterDomainClaim), their conditions, defaults and refusals
// (pure methods), the names and keys on the wire (names/), what a rule needs to know besides the
// object (rules/), and the generated clients (client/). Reads: nothing. Writes: nothing. Never:
// talks to a cluster, reads a clock in a rule, imports another folder.
package api

//go:generate ./generate.sh
