// Package interned lets objects in caches share their strings.
//
// Owns: nothing. Reads and writes: the object that it gets. Never: keeps a string alive.
package interned

import (
	"reflect"
	"unique"
)

// maxLength bounds the strings that are worth it. Longer ones are seldom alike.
const maxLength = 128

// Object replaces each string in an object, and each key and value of its maps of strings, by the
// same string of an object that was here not long before: since the last garbage collection. A
// decoder allocates each one anew, although all objects have the same keys, and those of one
// service the same names and UIDs. Nobody else may use the object yet.
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
			v.Set(reflect.ValueOf(next))
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
