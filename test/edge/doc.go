// Package edge tests the edge profile on the dev cluster: `make test-edge`.
//
// Owns: a namespace of its own, and a key in the Secret of CoAP keys. Reads, writes: what users do.
// Never: runs without PROFILE=edge.
package edge
