// Package protobuf writes and reads protobuf's encoding, field by field.
//
// Owns: the encoding. Reads and writes: the bytes that it is given. Never: knows a message. It
// stands in for protowire of google.golang.org/protobuf, which reads the whole executable when a
// process starts: queue-proxy starts in every pod.
package protobuf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Types of fields on the wire.
const (
	Varint  = 0
	Fixed64 = 1
	Bytes   = 2
	Fixed32 = 5
)

// Errors of Fields and of reading a Field.
var (
	ErrTruncated = errors.New("truncated protobuf")
	ErrType      = errors.New("protobuf field has another type than expected")
)

// AppendKey appends the number and the type of a field.
func AppendKey(b []byte, number, kind int) []byte {
	return binary.AppendUvarint(b, uint64(number)<<3|uint64(kind))
}

// AppendUint appends an integer, a boolean or an enumeration. Like the next two it leaves a zero
// value out, as protobuf 3 does.
func AppendUint(b []byte, number int, value uint64) []byte {
	if value == 0 {
		return b
	}
	return binary.AppendUvarint(AppendKey(b, number, Varint), value)
}

// AppendDouble appends a number.
func AppendDouble(b []byte, number int, value float64) []byte {
	if value == 0 {
		return b
	}
	return AppendFixed(b, number, math.Float64bits(value))
}

// AppendString appends a text.
func AppendString(b []byte, number int, value string) []byte {
	if value == "" {
		return b
	}
	b = binary.AppendUvarint(AppendKey(b, number, Bytes), uint64(len(value)))
	return append(b, value...)
}

// AppendFixed appends 64 bits, even if they are zero.
func AppendFixed(b []byte, number int, value uint64) []byte {
	return binary.LittleEndian.AppendUint64(AppendKey(b, number, Fixed64), value)
}

// AppendBytes appends bytes, even if there are none.
func AppendBytes(b []byte, number int, value []byte) []byte {
	b = binary.AppendUvarint(AppendKey(b, number, Bytes), uint64(len(value)))
	return append(b, value...)
}

// AppendMessage appends a message, whose content body appends.
func AppendMessage(b []byte, number int, body func([]byte) []byte) []byte {
	b = append(AppendKey(b, number, Bytes), 0) // a length below 128 needs one byte
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

// Field is one field of a message that was read.
type Field struct {
	kind   int
	number uint64 // of Varint, Fixed64 and Fixed32
	bytes  []byte // of Bytes
}

// Uint is an integer, a boolean or an enumeration.
func (f Field) Uint() (uint64, error) { return f.number, f.is(Varint) }

// Bytes are the bytes of a text or a message. They are part of what was read.
func (f Field) Bytes() ([]byte, error) { return f.bytes, f.is(Bytes) }

// Double sets a number.
func (f Field) Double(into *float64) error {
	*into = math.Float64frombits(f.number)
	return f.is(Fixed64)
}

// String sets a text, and reuses the given one if it is equal.
func (f Field) String(into *string, known string) error {
	if string(f.bytes) == known {
		*into = known
	} else {
		*into = string(f.bytes)
	}
	return f.is(Bytes)
}

func (f Field) is(kind int) error {
	if f.kind != kind {
		return ErrType
	}
	return nil
}

// Fields calls each with every field of a message.
func Fields(data []byte, each func(number int, value Field) error) error {
	for len(data) > 0 {
		key, n := binary.Uvarint(data)
		if n <= 0 {
			return ErrTruncated
		}
		data = data[n:]
		value := Field{kind: int(key & 7)}
		if key>>3 == 0 || key>>3 > math.MaxInt32 {
			return fmt.Errorf("protobuf field number %d does not exist", key>>3)
		}
		switch value.kind {
		case Varint:
			value.number, n = binary.Uvarint(data)
			if n <= 0 {
				return ErrTruncated
			}
			data = data[n:]
		case Fixed64:
			if len(data) < 8 {
				return ErrTruncated
			}
			value.number, data = binary.LittleEndian.Uint64(data), data[8:]
		case Fixed32:
			if len(data) < 4 {
				return ErrTruncated
			}
			value.number, data = uint64(binary.LittleEndian.Uint32(data)), data[4:]
		case Bytes:
			length, n := binary.Uvarint(data)
			if n <= 0 || length > uint64(len(data)-n) {
				return ErrTruncated
			}
			value.bytes, data = data[n:n+int(length)], data[n+int(length):]
		default:
			return fmt.Errorf("protobuf wire type %d does not exist", value.kind)
		}
		if err := each(int(key>>3), value); err != nil {
			return fmt.Errorf("field %d: %w", key>>3, err)
		}
	}
	return nil
}
