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

	"ebb.dev/ebb/wire/protobuf"
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

func nanos(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(t.UnixNano())
}

func attributes(b []byte, field int, list []Attribute) []byte {
	for _, a := range list {
		b = protobuf.AppendMessage(b, field, func(b []byte) []byte {
			b = protobuf.AppendString(b, 1, a.Key)
			return protobuf.AppendMessage(b, 2, func(b []byte) []byte {
				if a.IsInt {
					return binary.AppendUvarint(protobuf.AppendKey(b, 3, protobuf.Varint), uint64(a.Number))
				}
				return protobuf.AppendBytes(b, 1, []byte(a.Text))
			})
		})
	}
	return b
}

// AppendSpan appends a span as an element of ScopeSpans.
func AppendSpan(b []byte, s *Span) []byte {
	return protobuf.AppendMessage(b, 2, func(b []byte) []byte {
		b = protobuf.AppendBytes(b, 1, s.TraceID[:])
		b = protobuf.AppendBytes(b, 2, s.SpanID[:])
		b = protobuf.AppendString(b, 3, s.State)
		if s.Parent != [8]byte{} {
			b = protobuf.AppendBytes(b, 4, s.Parent[:])
		}
		b = protobuf.AppendString(b, 5, s.Name)
		b = protobuf.AppendUint(b, 6, uint64(s.Kind))
		b = protobuf.AppendFixed(b, 7, nanos(s.Start))
		b = protobuf.AppendFixed(b, 8, nanos(s.End))
		b = attributes(b, 9, s.Attributes)
		if s.Failure != "" {
			b = protobuf.AppendMessage(b, 15, func(b []byte) []byte {
				b = protobuf.AppendString(b, 2, s.Failure)
				return protobuf.AppendUint(b, 3, 2) // STATUS_CODE_ERROR
			})
		}
		return b
	})
}

// Request makes an export request of the elements that AppendSpan or a Metrics have written: they
// come from one resource and one scope.
func Request(resource []Attribute, scope string, elements []byte) []byte {
	b := make([]byte, 0, len(elements)+1024)
	return protobuf.AppendMessage(b, 1, func(b []byte) []byte {
		b = protobuf.AppendMessage(b, 1, func(b []byte) []byte { return attributes(b, 1, resource) })
		return protobuf.AppendMessage(b, 2, func(b []byte) []byte {
			b = protobuf.AppendMessage(b, 1, func(b []byte) []byte { return protobuf.AppendString(b, 1, scope) })
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
	m.b = protobuf.AppendMessage(m.b, 2, func(b []byte) []byte {
		b = protobuf.AppendString(b, 1, name)
		b = protobuf.AppendString(b, 2, description)
		b = protobuf.AppendString(b, 3, unit)
		return data(b)
	})
}

func (m *Metrics) point(b []byte, p Point) []byte {
	return protobuf.AppendMessage(b, 1, func(b []byte) []byte {
		b = protobuf.AppendFixed(b, 2, nanos(m.Start))
		b = protobuf.AppendFixed(b, 3, nanos(m.Now))
		b = protobuf.AppendFixed(b, 4, math.Float64bits(p.Value))
		return attributes(b, 7, p.Attributes)
	})
}

// Gauge adds values of the moment.
func (m *Metrics) Gauge(name, unit, description string, points ...Point) {
	m.metric(name, unit, description, func(b []byte) []byte {
		return protobuf.AppendMessage(b, 5, func(b []byte) []byte {
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
		return protobuf.AppendMessage(b, 7, func(b []byte) []byte {
			for _, p := range points {
				b = m.point(b, p)
			}
			b = protobuf.AppendUint(b, 2, cumulative)
			return protobuf.AppendUint(b, 3, 1)
		})
	})
}

// Histogram adds distributions.
func (m *Metrics) Histogram(name, unit, description string, points ...Histogram) {
	m.metric(name, unit, description, func(b []byte) []byte {
		return protobuf.AppendMessage(b, 9, func(b []byte) []byte {
			for _, p := range points {
				b = protobuf.AppendMessage(b, 1, func(b []byte) []byte { return m.distribution(b, p) })
			}
			return protobuf.AppendUint(b, 2, cumulative)
		})
	})
}

func (m *Metrics) distribution(b []byte, p Histogram) []byte {
	b = protobuf.AppendFixed(b, 2, nanos(m.Start))
	b = protobuf.AppendFixed(b, 3, nanos(m.Now))
	count := uint64(0)
	for _, n := range p.Counts {
		count += n
	}
	b = protobuf.AppendFixed(b, 4, count)
	b = protobuf.AppendFixed(b, 5, math.Float64bits(p.Sum))
	b = protobuf.AppendMessage(b, 6, func(b []byte) []byte {
		for _, n := range p.Counts {
			b = binary.LittleEndian.AppendUint64(b, n)
		}
		return b
	})
	b = protobuf.AppendMessage(b, 7, func(b []byte) []byte {
		for _, bound := range p.Bounds {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(bound))
		}
		return b
	})
	return attributes(b, 9, p.Attributes)
}
