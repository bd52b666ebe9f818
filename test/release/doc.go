// Package release has the tests of `make test-release`: they install Ebb from the folder of a
// release alone, as docs/install.md says, on a cluster without Ebb, and find nothing left
// afterwards.
//
// DIST is that folder, PREVIOUS that of an older release to upgrade from, GATEWAY the cluster's
// gateway if it is not Istio. The tests read them and KUBECONFIG, and need kubectl, helm and ctr,
// which `make kubeconfig` puts on the PATH.
package release
