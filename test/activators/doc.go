// Package activators tests real activators, one to five processes, with real queue-proxies with one
// slot each. No request may wait while a pod of its revision is idle, whichever activator received
// it.
package activators
