// Package conformance tests what queue-proxy and the activator make of HTTP that is wrong or
// unusual: h2spec's cases, and a corpus of malformed requests next to other servers' verdicts.
//
// Owns: the processes it starts. Reads: testdata. Writes: nothing. Never: needs a cluster.
package conformance
