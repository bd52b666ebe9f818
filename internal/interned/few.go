package interned

import (
	"reflect"
	"sync"
)

// Few lets equal values be one, of which there are few different ones. It knows the last of them.
type Few[T any] struct {
	mutex sync.Mutex
	known [16]T
	count int // of all that were new
}

// Same returns the value that was here before and equals v, otherwise v. Nobody may change it.
func (f *Few[T]) Same(v T) T {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for i := range min(f.count, len(f.known)) {
		if reflect.DeepEqual(f.known[i], v) {
			return f.known[i]
		}
	}
	f.known[f.count%len(f.known)] = v
	f.count++
	return v
}
