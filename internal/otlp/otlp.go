// Package otlp writes spans and metrics as OpenTelemetry's protobuf messages and sends them to a
// collector over HTTP or gRPC.
//
// Owns: the encoding. Reads: what it is given. Writes: requests to the collector. Never: keeps more
// than it is told to. It is written by hand because the OpenTelemetry SDK with its exporters would
// nearly double queue-proxy, which stands in every pod; the tests decode what it writes by the
// project's own types. Field numbers are those of opentelemetry-proto 1.10.
package otlp

import (
	"encoding/binary"
	"math"
	"time"
)

// Attribute is a key with a string or an integer; String and Int make it.
type Attribute struct {
	Key    string
	Text   string
	Number int64
	IsInt  bool
}

// String is an Attribute with a text.
func String(key, value string) Attribute { return Attribute{Key: key, Text: value} }

// Int is an Attribute with a number.
func Int(key string, value int64) Attribute { return Attribute{Key: key, Number: value, IsInt: true} }

// Kind is a span's kind.
type Kind uint8

// The kinds of spans that a proxy makes.
const (
	Server Kind = 2
	Client Kind = 3
)

// Span is one finished span.
type Span struct {
	TraceID    [16]byte
	SpanID     [8]byte
	Parent     [8]byte // zero: a root
	State      string  // tracestate
	Name       string
	Kind       Kind
	Start, End time.Time
	Attributes []Attribute
	// Failure is why the span failed, "" when it did not.
	Failure string
}

// wire types of protobuf
const (
	varint          = 0
	fixed64         = 1
	lengthDelimited = 2
)

func tag(b []byte, field, wireType int) []byte {
	return binary.AppendUvarint(b, uint64(field)<<3|uint64(wireType))
}

func text(b []byte, field int, s string) []byte {
	if s == "" {
		return b
	}
	b = binary.AppendUvarint(tag(b, field, lengthDelimited), uint64(len(s)))
	return append(b, s...)
}

func raw(b []byte, field int, content []byte) []byte {
	b = binary.AppendUvarint(tag(b, field, lengthDelimited), uint64(len(content)))
	return append(b, content...)
}

func number(b []byte, field int, n uint64) []byte {
	if n == 0 {
		return b
	}
	return binary.AppendUvarint(tag(b, field, varint), n)
}

func fixed(b []byte, field int, n uint64) []byte {
	return binary.LittleEndian.AppendUint64(tag(b, field, fixed64), n)
}

func double(b []byte, field int, f float64) []byte { return fixed(b, field, math.Float64bits(f)) }

// message writes a nested message; body appends its content.
func message(b []byte, field int, body func([]byte) []byte) []byte {
	b = append(tag(b, field, lengthDelimited), 0) // a length below 128 needs one byte
	start := len(b)
	b = body(b)
	size := len(b) - start
	if size < 128 {
		b[start-1] = byte(size)
		return b
	}
	var length [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(length[:], uint64(size))
	b = append(b, length[:n-1]...) // room
	copy(b[start+n-1:], b[start:start+size])
	copy(b[start-1:], length[:n])
	return b
}

func nanos(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(t.UnixNano())
}

func attributes(b []byte, field int, list []Attribute) []byte {
	for _, a := range list {
		b = message(b, field, func(b []byte) []byte {
			b = text(b, 1, a.Key)
			return message(b, 2, func(b []byte) []byte {
				if a.IsInt {
					return binary.AppendUvarint(tag(b, 3, varint), uint64(a.Number))
				}
				return raw(b, 1, []byte(a.Text))
			})
		})
	}
	return b
}

// AppendSpan appends a span as an element of ScopeSpans.
func AppendSpan(b []byte, s *Span) []byte {
	return message(b, 2, func(b []byte) []byte {
		b = raw(b, 1, s.TraceID[:])
		b = raw(b, 2, s.SpanID[:])
		b = text(b, 3, s.State)
		if s.Parent != [8]byte{} {
			b = raw(b, 4, s.Parent[:])
		}
		b = text(b, 5, s.Name)
		b = number(b, 6, uint64(s.Kind))
		b = fixed(b, 7, nanos(s.Start))
		b = fixed(b, 8, nanos(s.End))
		b = attributes(b, 9, s.Attributes)
		if s.Failure != "" {
			b = message(b, 15, func(b []byte) []byte {
				b = text(b, 2, s.Failure)
				return number(b, 3, 2) // STATUS_CODE_ERROR
			})
		}
		return b
	})
}

// Request makes an export request of the elements that AppendSpan or a Metrics have written: they
// come from one resource and one scope.
func Request(resource []Attribute, scope string, elements []byte) []byte {
	b := make([]byte, 0, len(elements)+1024)
	return message(b, 1, func(b []byte) []byte {
		b = message(b, 1, func(b []byte) []byte { return attributes(b, 1, resource) })
		return message(b, 2, func(b []byte) []byte {
			b = message(b, 1, func(b []byte) []byte { return text(b, 1, scope) })
			return append(b, elements...)
		})
	})
}

// Metrics collects the metrics of one moment. All sums and histograms are cumulative since Start.
type Metrics struct {
	Start, Now time.Time
	b          []byte
}

// Point is one number with what it belongs to.
type Point struct {
	Attributes []Attribute
	Value      float64
}

// Histogram is one distribution: Counts has one more element than there are bounds, for what
// exceeds them all.
type Histogram struct {
	Attributes []Attribute
	Counts     []uint64
	Bounds     []float64
	Sum        float64
}

// Elements is what was collected, for Request.
func (m *Metrics) Elements() []byte { return m.b }

const cumulative = 2

func (m *Metrics) metric(name, unit, description string, data func([]byte) []byte) {
	m.b = message(m.b, 2, func(b []byte) []byte {
		b = text(b, 1, name)
		b = text(b, 2, description)
		b = text(b, 3, unit)
		return data(b)
	})
}

func (m *Metrics) point(b []byte, p Point) []byte {
	return message(b, 1, func(b []byte) []byte {
		b = fixed(b, 2, nanos(m.Start))
		b = fixed(b, 3, nanos(m.Now))
		b = double(b, 4, p.Value)
		return attributes(b, 7, p.Attributes)
	})
}

// Gauge adds values of the moment.
func (m *Metrics) Gauge(name, unit, description string, points ...Point) {
	m.metric(name, unit, description, func(b []byte) []byte {
		return message(b, 5, func(b []byte) []byte {
			for _, p := range points {
				b = m.point(b, p)
			}
			return b
		})
	})
}

// Counter adds sums that only grow.
func (m *Metrics) Counter(name, unit, description string, points ...Point) {
	m.metric(name, unit, description, func(b []byte) []byte {
		return message(b, 7, func(b []byte) []byte {
			for _, p := range points {
				b = m.point(b, p)
			}
			b = number(b, 2, cumulative)
			return number(b, 3, 1)
		})
	})
}

// Histogram adds distributions.
func (m *Metrics) Histogram(name, unit, description string, points ...Histogram) {
	m.metric(name, unit, description, func(b []byte) []byte {
		return message(b, 9, func(b []byte) []byte {
			for _, p := range points {
				b = message(b, 1, func(b []byte) []byte { return m.distribution(b, p) })
			}
			return number(b, 2, cumulative)
		})
	})
}

func (m *Metrics) distribution(b []byte, p Histogram) []byte {
	b = fixed(b, 2, nanos(m.Start))
	b = fixed(b, 3, nanos(m.Now))
	count := uint64(0)
	for _, n := range p.Counts {
		count += n
	}
	b = fixed(b, 4, count)
	b = double(b, 5, p.Sum)
	b = message(b, 6, func(b []byte) []byte {
		for _, n := range p.Counts {
			b = binary.LittleEndian.AppendUint64(b, n)
		}
		return b
	})
	b = message(b, 7, func(b []byte) []byte {
		for _, bound := range p.Bounds {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(bound))
		}
		return b
	})
	return attributes(b, 9, p.Attributes)
}
