// Package e2e holds Ebb's promises to its users, one test each, on the real cluster that KUBECONFIG
// names.
//
// Owns: namespaces of its own, deleted afterwards. Reads: public objects and what the gateway
// answers. Writes: manifests a user would write, and for its own run shorter waiting times in
// ConfigMap config-autoscaler. Never: looks into a component.
//
// The tests are behind the build tag e2e: `make e2e` runs them.
package e2e
