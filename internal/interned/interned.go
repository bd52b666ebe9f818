// Package interned lets objects in caches share their strings and their maps of strings.
//
// Owns: the last maps that were here. Reads and writes: the object that it gets. Never: keeps a
// string alive that is in none of these maps.
package interned

import (
	"hash/maphash"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unique"
)

const (
	// maxLength bounds the strings that are worth it. Longer ones are seldom alike.
	maxLength = 128
	// maxMaps bounds the maps that are remembered. Beyond it, they are remembered anew.
	maxMaps = 1024
)

// Object replaces each string in an object, and each key and value of its maps of strings, by the
// same string of an object that was here not long before: since the last garbage collection. A
// decoder allocates each one anew, although all objects have the same keys, and those of one
// service the same names and UIDs. Nobody else may use the object yet.
//
// Equal maps become one, such as the annotations of many services. A map with one entry takes as
// much as one with eight. So nobody may change a map of the object later, not even one who alone
// has the object.
func Object(object any) { share(reflect.ValueOf(object)) }

func share(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			share(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				share(f)
			}
		}
	case reflect.Slice:
		if kind := v.Type().Elem().Kind(); kind != reflect.Uint8 && kind != reflect.Interface {
			for i := range v.Len() {
				share(v.Index(i))
			}
		}
	case reflect.Map:
		if m, ok := v.Interface().(map[string]string); ok && len(m) > 0 && v.CanSet() {
			next := make(map[string]string, len(m))
			for key, value := range m {
				next[one(key)] = one(value)
			}
			v.Set(reflect.ValueOf(oneMap(next)))
		}
	case reflect.String:
		if v.CanSet() {
			v.SetString(one(v.String()))
		}
	}
}

func one(s string) string {
	if s == "" || len(s) > maxLength {
		return s
	}
	return unique.Make(s).Value()
}

var (
	mutex sync.Mutex
	known = map[string]map[string]string{} // maps that were here twice
	seen  [maxMaps]uint64                  // the hashes of the others, by their remainders
	seed  = maphash.MakeSeed()
)

func oneMap(m map[string]string) map[string]string {
	var key strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		for _, text := range []string{k, m[k]} {
			if len(text) > maxLength {
				return m
			}
			key.WriteByte(byte(len(text))) // no other map has the same key
			key.WriteString(text)
		}
	}
	mutex.Lock()
	defer mutex.Unlock()
	if same, ok := known[key.String()]; ok {
		return same
	}
	hash := maphash.String(seed, key.String())
	if last := &seen[hash%maxMaps]; *last != hash {
		*last = hash // most maps, such as the labels of an object, are never here again
		return m
	}
	if len(known) >= maxMaps {
		clear(known)
	}
	known[key.String()] = m
	return m
}
