// Package wire holds what two processes of Ebb must agree on: header names, ports, paths, the
// encoding of a load report (Stat) and of an announcement, the token that proves who sent them, and
// queue-proxy's environment (Sidecar).
//
// Owns: nothing but constants and pure functions. Reads, writes: nothing. Never: imports anything
// but the standard library and standby, because queue-proxy, a few megabytes in every pod, imports
// it.
package wire
