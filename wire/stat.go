package wire

import (
	"errors"
	"fmt"
	"strings"

	"ebb.dev/ebb/wire/protobuf"
)

// MaxStatBytes bounds one encoded Stat as it is scraped: the contract's 336 bytes (section 4.6) and
// ten for each told metric.
const MaxStatBytes = 336 + 10*MaxTold

// MaxAnswerBytes bounds a Stat with Judged, which has at most 144 bytes, and 106 for its senders.
const MaxAnswerBytes = MaxStatBytes + 144 + 106

// MaxFreezeFailure bounds what a Stat says of a freeze that failed.
const MaxFreezeFailure = 80

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
	// Busy says why the pod is not to sleep or to be deleted now.
	Busy Busy
	// FreezeFailure says why the pod sleeps warm although it was to be frozen, "" if that did not
	// fail. It is printable ASCII of at most MaxFreezeFailure bytes.
	FreezeFailure string
	// Ended are the requests that ended in the period, nil if none did. Only regular reports have
	// it.
	Ended *Outcomes
	// Told is what the user container tells of its load.
	Told Told
	// Judged is what a judge of rollouts counts, nil from a reporter that was not asked for it.
	Judged *Judged
}

// Busy says why a pod is not to sleep.
type Busy uint8

// The reasons. Of these, only BusyTold keeps a pod from being deleted.
const (
	NotBusy    Busy = iota
	BusyTold        // its program says that it is busy
	BusyBalked      // a hook of its standby failed
)

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
	statJudged                   = 24
	statBusy                     = 25
	statSenders                  = 26
	statFreezeFailure            = 27
	statTold                     = 32 // and up, one for each of MaxTold

	messageNamespace = 1
	messageRevision  = 2
	messageStat      = 3

	messagesMessage = 1
)

// Append appends s, as protobuf, to data.
func (s Stat) Append(data []byte) []byte {
	data = protobuf.AppendString(data, statPodName, s.PodName)
	data = protobuf.AppendDouble(data, statAverageConcurrent, s.AverageConcurrent)
	data = protobuf.AppendDouble(data, statAverageProxiedConcurrent, s.AverageProxiedConcurrent)
	data = protobuf.AppendDouble(data, statRequests, s.Requests)
	data = protobuf.AppendDouble(data, statProxiedRequests, s.ProxiedRequests)
	data = protobuf.AppendDouble(data, statProcessUptime, s.ProcessUptime)
	data = protobuf.AppendUint(data, statTimestamp, uint64(s.Timestamp))
	data = protobuf.AppendDouble(data, statQueued, s.Queued)
	data = protobuf.AppendDouble(data, statCompleted, s.Completed)
	data = protobuf.AppendDouble(data, statBusySeconds, s.BusySeconds)
	if s.OutOfTurn {
		data = protobuf.AppendUint(data, statOutOfTurn, 1)
	}
	data = protobuf.AppendUint(data, statAsleep, uint64(s.Asleep&0x7f))
	data = protobuf.AppendUint(data, statBusy, uint64(min(s.Busy, BusyBalked)))
	data = protobuf.AppendString(data, statFreezeFailure, printable(s.FreezeFailure, MaxFreezeFailure))
	if s.Ended != nil {
		data = s.Ended.append(data)
	}
	data = s.Told.append(data)
	if s.Judged != nil {
		data = s.Judged.Append(data)
	}
	return data
}

// printable is a text as a person may read it: with ? in place of all that is not printable ASCII,
// and at most so long.
func printable(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	return text[:min(len(text), most)]
}

// DecodeStat decodes one Stat. A Stat of the given pod shares the text of its name. Unknown fields
// are skipped. The receiver refuses NaN, infinite and negative figures, because only the receiver
// can count them.
func DecodeStat(pod string, data []byte) (Stat, error) {
	var s Stat
	var senders Judged
	err := protobuf.Fields(data, func(number int, value protobuf.Field) error {
		switch number {
		case statPodName:
			return value.String(&s.PodName, pod)
		case statAverageConcurrent:
			return value.Double(&s.AverageConcurrent)
		case statAverageProxiedConcurrent:
			return value.Double(&s.AverageProxiedConcurrent)
		case statRequests:
			return value.Double(&s.Requests)
		case statProxiedRequests:
			return value.Double(&s.ProxiedRequests)
		case statProcessUptime:
			return value.Double(&s.ProcessUptime)
		case statTimestamp:
			n, err := value.Uint()
			s.Timestamp = int64(n)
			return err
		case statQueued:
			return value.Double(&s.Queued)
		case statCompleted:
			return value.Double(&s.Completed)
		case statBusySeconds:
			return value.Double(&s.BusySeconds)
		case statOutOfTurn:
			n, err := value.Uint()
			s.OutOfTurn = n != 0
			return err
		case statAsleep:
			n, err := value.Uint()
			s.Asleep = uint8(min(n, 0x7f))
			return err
		case statBusy:
			n, err := value.Uint()
			s.Busy = Busy(min(n, uint64(BusyBalked)))
			return err
		case statFreezeFailure:
			err := value.String(&s.FreezeFailure, "")
			s.FreezeFailure = printable(s.FreezeFailure, MaxFreezeFailure)
			return err
		case statStatuses, statLatency, statRefused:
			if s.Ended == nil {
				s.Ended = &Outcomes{}
			}
			return s.Ended.read(number, value)
		case statJudged:
			s.Judged = &Judged{}
			return s.Judged.read(value)
		case statSenders:
			return senders.readSenders(value)
		}
		if place := number - statTold; place >= 0 && place < MaxTold {
			return s.Told.decode(place, value)
		}
		return nil
	})
	if err != nil {
		return Stat{}, fmt.Errorf("decode stat: %w", err)
	}
	if s.Judged != nil {
		s.Judged.Senders, s.Judged.Tagged = senders.Senders, senders.Tagged
	}
	return s, nil
}

// EncodeStats encodes messages as the body of a POST to PathStats.
func EncodeStats(messages []StatMessage) []byte {
	var data, message, stat []byte
	for _, m := range messages {
		stat = m.Stat.Append(stat[:0])
		message = protobuf.AppendString(message[:0], messageNamespace, m.Namespace)
		message = protobuf.AppendString(message, messageRevision, m.Revision)
		message = protobuf.AppendBytes(message, messageStat, stat)
		data = protobuf.AppendBytes(data, messagesMessage, message)
	}
	return data
}

// ErrTooManyStats is returned for a body with more messages than the reader takes.
var ErrTooManyStats = errors.New("too many stats")

// DecodeStats is the inverse of EncodeStats. It fails after most messages: a message of two bytes
// takes a hundred times as much memory when decoded.
func DecodeStats(data []byte, most int) ([]StatMessage, error) {
	var messages []StatMessage
	err := protobuf.Fields(data, func(number int, value protobuf.Field) error {
		if number != messagesMessage {
			return nil
		}
		encoded, err := value.Bytes()
		if err != nil {
			return err
		}
		if len(messages) == most {
			return fmt.Errorf("%w: a body may hold %d", ErrTooManyStats, most)
		}
		last := &StatMessage{}
		if n := len(messages); n > 0 {
			last = &messages[n-1]
		} else {
			// Assume that the others are about as long as the first.
			messages = make([]StatMessage, 0, min(len(data)/(len(encoded)+3)+1, most))
		}
		m, err := decodeMessage(encoded, last)
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
	err := protobuf.Fields(data, func(number int, value protobuf.Field) error {
		switch number {
		case messageNamespace:
			return value.String(&m.Namespace, last.Namespace)
		case messageRevision:
			return value.String(&m.Revision, last.Revision)
		case messageStat:
			encoded, err := value.Bytes()
			if err == nil {
				m.Stat, err = DecodeStat(last.Stat.PodName, encoded)
			}
			return err
		}
		return nil
	})
	return m, err
}
