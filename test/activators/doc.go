// Package activators holds real activators, one to five processes, against real queue-proxies with
// one slot each: no request may wait while a pod of its revision is idle, whichever activator it
// came to.
package activators
