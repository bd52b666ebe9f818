package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// MaxStatBytes bounds one encoded Stat as it is scraped: the contract's 336 bytes (section 4.6) and
// ten for each told metric.
const MaxStatBytes = 336 + 10*MaxTold

// Bounds of a POST to PathStats. An activator reports many revisions at once, a pod its own only.
const (
	MaxStats         = 2000 // messages in an activator's body
	MaxStatsBytes    = 1 << 20
	MaxPodStats      = 4 // messages in a pod's body
	MaxPodStatsBytes = 2 << 10
)

// Stat is the load of one reporter, a pod or an activator, over its last reporting period of about
// a second.
type Stat struct {
	PodName string
	// AverageConcurrent is the time-weighted mean of the requests in the reporter, including queued
	// ones. AverageProxiedConcurrent is the part that an activator has already counted.
	AverageConcurrent        float64
	AverageProxiedConcurrent float64
	// Requests is the number of requests that arrived in the period. ProxiedRequests is the part
	// that an activator has already counted.
	Requests        float64
	ProxiedRequests float64
	// ProcessUptime is in seconds.
	ProcessUptime float64
	// Timestamp is in milliseconds since the Unix epoch, 0 when not given.
	Timestamp int64

	// The fields below are Ebb's own; other implementations skip them by the rules of protobuf.

	// Queued is the number of queued requests at the time of the report.
	Queued float64
	// Completed is how many requests ended in the period, BusySeconds the sum of the time that they
	// and the unfinished ones spent in the user container in the period.
	Completed   float64
	BusySeconds float64
	// OutOfTurn marks momentary values that were sent because load grew. The regular report of the
	// period will count the same requests.
	OutOfTurn bool
	// Asleep is how deeply the pod sleeps: 0 if it is awake, else one more than standby.Level.
	Asleep uint8
	// Ended are the requests that ended in the period, nil if none did. Only regular reports have
	// it.
	Ended *Outcomes
	// Told is what the user container tells of its load.
	Told Told
}

// StatMessage is a Stat together with the revision that it is about.
type StatMessage struct {
	Namespace string
	Revision  string
	Stat      Stat
}

// Field numbers of Stat, StatMessage and StatMessages in protobuf (contract section 4.6; 16 and up
// are Ebb's).
const (
	statPodName                  = 1
	statAverageConcurrent        = 2
	statAverageProxiedConcurrent = 3
	statRequests                 = 4
	statProxiedRequests          = 5
	statProcessUptime            = 6
	statTimestamp                = 7
	statQueued                   = 16
	statCompleted                = 17
	statBusySeconds              = 18
	statOutOfTurn                = 19
	statAsleep                   = 20
	statStatuses                 = 21
	statLatency                  = 22
	statRefused                  = 23
	statTold                     = 32 // and up, one for each of MaxTold

	messageNamespace = 1
	messageRevision  = 2
	messageStat      = 3

	messagesMessage = 1
)

// Protobuf wire types.
const (
	typeVarint  = 0
	typeFixed64 = 1
	typeBytes   = 2
	typeFixed32 = 5
)

// Append appends s, as protobuf, to data.
func (s Stat) Append(data []byte) []byte {
	data = appendString(data, statPodName, s.PodName)
	data = appendDouble(data, statAverageConcurrent, s.AverageConcurrent)
	data = appendDouble(data, statAverageProxiedConcurrent, s.AverageProxiedConcurrent)
	data = appendDouble(data, statRequests, s.Requests)
	data = appendDouble(data, statProxiedRequests, s.ProxiedRequests)
	data = appendDouble(data, statProcessUptime, s.ProcessUptime)
	if s.Timestamp != 0 {
		data = appendKey(data, statTimestamp, typeVarint)
		data = binary.AppendUvarint(data, uint64(s.Timestamp))
	}
	data = appendDouble(data, statQueued, s.Queued)
	data = appendDouble(data, statCompleted, s.Completed)
	data = appendDouble(data, statBusySeconds, s.BusySeconds)
	if s.OutOfTurn {
		data = append(appendKey(data, statOutOfTurn, typeVarint), 1)
	}
	if s.Asleep != 0 {
		data = append(appendKey(data, statAsleep, typeVarint), s.Asleep&0x7f)
	}
	if s.Ended != nil {
		data = s.Ended.append(data)
	}
	return s.Told.append(data)
}

// DecodeStat decodes one Stat. A Stat of the given pod shares the text of its name. Unknown fields
// are skipped. The receiver refuses NaN, infinite and negative figures, because only the receiver
// can count them.
func DecodeStat(pod string, data []byte) (Stat, error) {
	var s Stat
	err := fields(data, func(number int, value field) error {
		switch number {
		case statPodName:
			return value.shared(&s.PodName, pod)
		case statAverageConcurrent:
			return value.double(&s.AverageConcurrent)
		case statAverageProxiedConcurrent:
			return value.double(&s.AverageProxiedConcurrent)
		case statRequests:
			return value.double(&s.Requests)
		case statProxiedRequests:
			return value.double(&s.ProxiedRequests)
		case statProcessUptime:
			return value.double(&s.ProcessUptime)
		case statTimestamp:
			if value.kind != typeVarint {
				return errWireType
			}
			s.Timestamp = int64(value.number)
			return nil
		case statQueued:
			return value.double(&s.Queued)
		case statCompleted:
			return value.double(&s.Completed)
		case statBusySeconds:
			return value.double(&s.BusySeconds)
		case statOutOfTurn:
			if value.kind != typeVarint {
				return errWireType
			}
			s.OutOfTurn = value.number != 0
			return nil
		case statAsleep:
			if value.kind != typeVarint {
				return errWireType
			}
			s.Asleep = uint8(min(value.number, 0x7f))
			return nil
		case statStatuses, statLatency, statRefused:
			if s.Ended == nil {
				s.Ended = &Outcomes{}
			}
			return s.Ended.read(number, value)
		}
		if place := number - statTold; place >= 0 && place < MaxTold {
			return s.Told.decode(place, value)
		}
		return nil
	})
	if err != nil {
		return Stat{}, fmt.Errorf("decode stat: %w", err)
	}
	return s, nil
}

// EncodeStats encodes messages as the body of a POST to PathStats.
func EncodeStats(messages []StatMessage) []byte {
	var data, message, stat []byte
	for _, m := range messages {
		stat = m.Stat.Append(stat[:0])
		message = appendString(message[:0], messageNamespace, m.Namespace)
		message = appendString(message, messageRevision, m.Revision)
		message = appendBytes(message, messageStat, stat)
		data = appendBytes(data, messagesMessage, message)
	}
	return data
}

// ErrTooManyStats is returned for a body with more messages than the reader takes.
var ErrTooManyStats = errors.New("too many stats")

// DecodeStats is the inverse of EncodeStats. It fails after most messages: a message of two bytes
// takes a hundred times as much memory when decoded.
func DecodeStats(data []byte, most int) ([]StatMessage, error) {
	var messages []StatMessage
	err := fields(data, func(number int, value field) error {
		if number != messagesMessage {
			return nil
		}
		if value.kind != typeBytes {
			return errWireType
		}
		if len(messages) == most {
			return fmt.Errorf("%w: a body may hold %d", ErrTooManyStats, most)
		}
		last := &StatMessage{}
		if n := len(messages); n > 0 {
			last = &messages[n-1]
		} else {
			// Assume that the others are about as long as the first.
			messages = make([]StatMessage, 0, min(len(data)/(len(value.bytes)+3)+1, most))
		}
		m, err := decodeMessage(value.bytes, last)
		messages = append(messages, m)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("decode stats: %w", err)
	}
	return messages, nil
}

// decodeMessage shares equal strings with the message before it. Usually all messages come from one
// reporter.
func decodeMessage(data []byte, last *StatMessage) (StatMessage, error) {
	var m StatMessage
	err := fields(data, func(number int, value field) (err error) {
		switch number {
		case messageNamespace:
			return value.shared(&m.Namespace, last.Namespace)
		case messageRevision:
			return value.shared(&m.Revision, last.Revision)
		case messageStat:
			if value.kind != typeBytes {
				return errWireType
			}
			m.Stat, err = DecodeStat(last.Stat.PodName, value.bytes)
			return err
		}
		return nil
	})
	return m, err
}

var (
	errTruncated = errors.New("truncated protobuf")
	errWireType  = errors.New("protobuf field has another type than expected")
)

// field is one decoded value: number for varint and fixed types, bytes for the length-delimited
// type.
type field struct {
	kind   int
	number uint64
	bytes  []byte
}

func (f field) double(into *float64) error {
	if f.kind != typeFixed64 {
		return errWireType
	}
	*into = math.Float64frombits(f.number)
	return nil
}

// shared sets a string, and reuses the given one if it is equal.
func (f field) shared(into *string, known string) error {
	if f.kind != typeBytes {
		return errWireType
	}
	if string(f.bytes) == known {
		*into = known
	} else {
		*into = string(f.bytes)
	}
	return nil
}

// fields calls each with every field of a protobuf message.
func fields(data []byte, each func(number int, value field) error) error {
	for len(data) > 0 {
		key, n := binary.Uvarint(data)
		if n <= 0 {
			return errTruncated
		}
		data = data[n:]
		value := field{kind: int(key & 7)}
		if key>>3 == 0 || key>>3 > math.MaxInt32 {
			return fmt.Errorf("protobuf field number %d does not exist", key>>3)
		}
		switch value.kind {
		case typeVarint:
			value.number, n = binary.Uvarint(data)
			if n <= 0 {
				return errTruncated
			}
			data = data[n:]
		case typeFixed64:
			if len(data) < 8 {
				return errTruncated
			}
			value.number, data = binary.LittleEndian.Uint64(data), data[8:]
		case typeFixed32:
			if len(data) < 4 {
				return errTruncated
			}
			value.number, data = uint64(binary.LittleEndian.Uint32(data)), data[4:]
		case typeBytes:
			length, n := binary.Uvarint(data)
			if n <= 0 || length > uint64(len(data)-n) {
				return errTruncated
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

func appendKey(data []byte, number, kind int) []byte {
	return binary.AppendUvarint(data, uint64(number)<<3|uint64(kind))
}

func appendDouble(data []byte, number int, value float64) []byte {
	if value == 0 {
		return data // protobuf 3 leaves zero values out
	}
	return binary.LittleEndian.AppendUint64(appendKey(data, number, typeFixed64), math.Float64bits(value))
}

func appendString(data []byte, number int, value string) []byte {
	if value == "" {
		return data
	}
	data = binary.AppendUvarint(appendKey(data, number, typeBytes), uint64(len(value)))
	return append(data, value...)
}

func appendBytes(data []byte, number int, value []byte) []byte {
	data = binary.AppendUvarint(appendKey(data, number, typeBytes), uint64(len(value)))
	return append(data, value...)
}
