// Package e2e tests Ebb's promises to its users, one test for each, on the cluster that KUBECONFIG
// names.
//
// Owns: its own namespaces, which it deletes afterwards. Reads: public objects and responses of the
// gateway. Writes: manifests that a user would write, and shorter timings in ConfigMap
// config-autoscaler during the run. Never: looks into a component.
//
// The tests have the build tag e2e. `make e2e` runs them.
package e2e
