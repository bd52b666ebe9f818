// Package llm puts the real model of samples/llm on the dev cluster and scales it by what its
// server tells: `make test-llm`.
//
// Owns: a namespace of its own. Reads, writes: what users do. Never: runs in the gate, which does
// not download weights.
package llm
