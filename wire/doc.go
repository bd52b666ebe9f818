// Package wire holds what two processes of Ebb must agree on: header names, ports, paths, the
// encoding of a load report (Stat) and of an announcement, and the token that proves who sent them.
//
// Owns: nothing but constants and pure functions. Reads, writes: nothing. Never: imports anything
// outside the standard library, because queue-proxy, a few megabytes in every pod, imports it.
package wire
