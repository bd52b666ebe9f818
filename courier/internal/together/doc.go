// Package together tests accept, store, deliver and callback with a real JetStream on the disk and
// real servers. It has no code of its own.
package together
