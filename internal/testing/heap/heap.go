// Package heap measures memory for tests.
//
// Owns, reads and writes: nothing. Never: guesses what lives.
package heap

import "runtime"

// Live returns the bytes of the heap that are in use.
func Live() int {
	var m runtime.MemStats
	for range 3 { // what has finalizers goes in the second
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
