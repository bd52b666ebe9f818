package admit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"knative.dev/pkg/apis"
)

// maxMisread bounds the faults that are told at once.
const maxMisread = 20

// misread says where an object that cannot be read is at fault, and why, in the form of all other
// refusals; nil if it finds nothing. What encoding/json says names types of Go, and of a quantity
// not even the field.
func misread(object any, text []byte) *apis.FieldError {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return nil
	}
	r := misreader{}
	r.value(reflect.TypeOf(object), value, "")
	return r.faults
}

type misreader struct {
	faults *apis.FieldError
	n      int
}

func (r *misreader) fault(value any, path, why string) {
	if r.n++; r.n > maxMisread {
		return
	}
	text, err := json.Marshal(value)
	if err != nil {
		text = []byte("?")
	}
	if s, ok := value.(string); ok {
		text = []byte(s)
	}
	if len(text) > 100 {
		text = append(text[:100:100], "..."...)
	}
	r.faults = r.faults.Also(&apis.FieldError{Message: fmt.Sprintf("invalid value: %s", text), Paths: []string{path}, Details: why})
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// expected is what the types want that read themselves.
var expected = map[reflect.Type]string{
	reflect.TypeFor[resource.Quantity]():  `expected a quantity such as "100m", "2" or "200Mi"`,
	reflect.TypeFor[intstr.IntOrString](): "expected a whole number or a string",
	reflect.TypeFor[metav1.Time]():        `expected a time such as "2026-01-31T12:00:00Z"`,
	reflect.TypeFor[metav1.MicroTime]():   `expected a time such as "2026-01-31T12:00:00.000000Z"`,
	reflect.TypeFor[metav1.Duration]():    `expected a duration such as "30s"`,
	reflect.TypeFor[apis.URL]():           "expected a URL",
}

func (r *misreader) value(t reflect.Type, value any, path string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if value == nil {
		return
	}
	if reflect.PointerTo(t).Implements(unmarshaler) {
		r.own(t, value, path)
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		fields, ok := value.(map[string]any)
		if !ok {
			r.wrong(value, path, "an object")
			return
		}
		r.fields(t, fields, path)
	case reflect.Map:
		entries, ok := value.(map[string]any)
		if !ok {
			r.wrong(value, path, "an object")
			return
		}
		for _, key := range slices.Sorted(maps.Keys(entries)) {
			r.value(t.Elem(), entries[key], join(path, key))
		}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			if _, ok := value.(string); !ok {
				r.wrong(value, path, "a string of base64")
			}
			return
		}
		entries, ok := value.([]any)
		if !ok {
			r.wrong(value, path, "a list")
			return
		}
		for i, entry := range entries {
			r.value(t.Elem(), entry, fmt.Sprintf("%s[%d]", path, i))
		}
	case reflect.String:
		if _, ok := value.(string); !ok {
			r.wrong(value, path, "a string")
		}
	case reflect.Bool:
		if _, ok := value.(bool); !ok {
			r.wrong(value, path, "true or false")
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		r.whole(t.Bits(), value, path)
	case reflect.Float32, reflect.Float64:
		if _, ok := value.(json.Number); !ok {
			r.wrong(value, path, "a number")
		}
	}
}

// own judges a value whose type reads itself.
func (r *misreader) own(t reflect.Type, value any, path string) {
	text, err := json.Marshal(value)
	if err != nil {
		return
	}
	if err := json.Unmarshal(text, reflect.New(t).Interface()); err != nil {
		why, known := expected[t]
		if wrong := (*json.UnmarshalTypeError)(nil); !known && errors.As(err, &wrong) {
			why = "expected something else than " + article(wrong.Value)
		} else if !known {
			why = err.Error()
		}
		r.fault(value, path, why)
	}
}

func (r *misreader) whole(bits int, value any, path string) {
	number, ok := value.(json.Number)
	low, high := int64(math.MinInt64)>>(64-bits), int64(math.MaxInt64)>>(64-bits)
	if !ok {
		r.wrong(value, path, "a whole number")
	} else if _, err := strconv.ParseInt(number.String(), 10, bits); errors.Is(err, strconv.ErrRange) {
		r.fault(value, path, fmt.Sprintf("expected a whole number from %d to %d", low, high))
	} else if err != nil {
		r.fault(value, path, "expected a whole number")
	}
}

func (r *misreader) wrong(value any, path, want string) {
	r.fault(value, path, "expected "+want+", found "+found(value))
}

func found(value any) string {
	switch value.(type) {
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	case string:
		return "a string"
	case bool:
		return "true or false"
	default:
		return "a number"
	}
}

// article is a word of encoding/json's for what it found.
func article(what string) string {
	switch {
	case strings.HasPrefix(what, "number"):
		return "a number"
	case what == "array":
		return "a list"
	case what == "object":
		return "an object"
	case what == "bool":
		return "true or false"
	}
	return "a " + what
}

// fields are those of a struct, with those of what it embeds.
func (r *misreader) fields(t reflect.Type, values map[string]any, path string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case f.Anonymous && name == "" || strings.Contains(options, "inline"):
			inner := f.Type
			for inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				r.fields(inner, values, path)
			}
		default:
			if name == "" {
				name = f.Name
			}
			r.value(f.Type, values[name], join(path, name))
		}
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
