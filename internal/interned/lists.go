package interned

import (
	"encoding/json"
	"hash/maphash"
	"reflect"
	"sync"
	"unsafe"
	"weak"
)

// Lists lets equal lists be one for as long as anybody has it. Of an element that cannot be
// encoded as JSON, all are kept apart.
type Lists[E any] struct {
	mutex sync.Mutex
	known map[uint64]list[E] // by the hash of their JSON
	sweep int                // how many there may be before those that nobody has any more are dropped
}

type list[E any] struct {
	first  weak.Pointer[E]
	length int
}

// Same returns the equal list that somebody has, otherwise the same list, with its strings and maps
// shared as Object does. Nobody may change either.
func (l *Lists[E]) Same(all []E) []E {
	encoded, err := json.Marshal(all)
	if len(all) == 0 || err != nil {
		return all
	}
	hash := maphash.Bytes(seed, encoded)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if have, there := l.known[hash]; there {
		if first := have.first.Value(); first != nil {
			if same := unsafe.Slice(first, have.length); reflect.DeepEqual(same, all) {
				return same
			}
			// One has nil where the other is empty. What others have stays known, or it would be
			// written to when it is here again.
			Object(&all)
			return all
		}
	}
	Object(&all)
	if len(l.known) >= l.sweep {
		for hash, have := range l.known {
			if have.first.Value() == nil {
				delete(l.known, hash)
			}
		}
		l.sweep = 2*len(l.known) + maxMaps
	}
	if l.known == nil {
		l.known = map[uint64]list[E]{}
	}
	l.known[hash] = list[E]{weak.Make(&all[0]), len(all)}
	return all
}
