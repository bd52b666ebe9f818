package wire

import (
	"encoding/binary"

	"ebb.dev/ebb/wire/protobuf"
)

// QueryJudged is the query of a GET of PathMetrics that asks for Judged, too. A queue-proxy that
// does not know it answers without.
const QueryJudged = "judged"

// HeaderSenders, with any value, asks for Judged.Senders and Tagged beside QueryJudged. A
// queue-proxy that does not know it answers without. An autoscaler that does not know them takes no
// answer of that length, and does not send it.
const HeaderSenders = "Ebb-Senders"

// SenderDrawers is how many drawers there are for senders of requests. Which one a sender has is a
// hash of its address, the same in each pod of each revision.
const SenderDrawers = 16

// judgedWrap is where each count of Judged begins anew on the wire, so that it takes at most three
// bytes. It divides 2^32, where counts begin anew in memory.
const judgedWrap = maxCount + 1

// Judged counts the requests of a pod that a judge of rollouts counts, since the process began. So
// neither a report that is lost nor one that comes twice changes what is counted.
type Judged struct {
	// Good and Failed are how the program answered, by who is to blame (docs/decisions/0019).
	Good, Failed uint32
	// Latency is of those of a pod that was warm, from when the program got the request to the end
	// of its response.
	Latency Latency
	// Senders are Good and Failed by drawers, as far as senders are known: queue-proxy looks for
	// them only while a judge asks, and in its first seconds.
	Senders [SenderDrawers]Sender
	// Tagged are those that came by a tag. Their senders chose the revision, so they are in none of
	// the counts above.
	Tagged Sender
}

// Sender counts requests of some senders, such as those that have one drawer.
type Sender struct{ Good, Failed uint32 }

func (s Sender) since(before Sender) Sender {
	return Sender{wrapped(s.Good - before.Good), wrapped(s.Failed - before.Failed)}
}

// Since returns what was counted since an earlier report of the same process.
func (j *Judged) Since(before *Judged) Judged {
	d := Judged{Good: wrapped(j.Good - before.Good), Failed: wrapped(j.Failed - before.Failed)}
	for i := range d.Latency {
		d.Latency[i] = wrapped(j.Latency[i] - before.Latency[i])
	}
	for i, s := range j.Senders {
		d.Senders[i] = s.since(before.Senders[i])
	}
	d.Tagged = j.Tagged.since(before.Tagged)
	return d
}

func wrapped(n uint32) uint32 { return n % judgedWrap }

// Append appends the fields of a Stat. One is Good, Failed, the first bucket of Latency that is not
// empty, and the counts from there to the last one. The other one, if there is anything, is Good
// and Failed of each drawer and of Tagged.
func (j *Judged) Append(data []byte) []byte {
	var space [3 + 3 + 1 + 3*LatencyBuckets]byte
	text := binary.AppendUvarint(space[:0], uint64(wrapped(j.Good)))
	text = binary.AppendUvarint(text, uint64(wrapped(j.Failed)))
	first := 0
	for first < LatencyBuckets && wrapped(j.Latency[first]) == 0 {
		first++
	}
	if first < LatencyBuckets {
		text = append(text, byte(first))
		var counts [LatencyBuckets]uint32
		for i := range counts {
			counts[i] = wrapped(j.Latency[i])
		}
		text = appendCounts(text, counts[first:])
	}
	data = protobuf.AppendBytes(data, statJudged, text)
	var senders [2*SenderDrawers + 2]uint32
	for i, s := range j.Senders {
		senders[2*i], senders[2*i+1] = wrapped(s.Good), wrapped(s.Failed)
	}
	senders[2*SenderDrawers], senders[2*SenderDrawers+1] = wrapped(j.Tagged.Good), wrapped(j.Tagged.Failed)
	if text = appendCounts(space[:0], senders[:]); len(text) > 0 {
		data = protobuf.AppendBytes(data, statSenders, text)
	}
	return data
}

// readSenders takes the other field.
func (j *Judged) readSenders(value protobuf.Field) error {
	text, err := value.Bytes()
	if err != nil {
		return err
	}
	var senders [2*SenderDrawers + 2]uint32
	if err := readCounts(text, senders[:]); err != nil {
		return err
	}
	for i := range j.Senders {
		j.Senders[i] = Sender{senders[2*i], senders[2*i+1]}
	}
	j.Tagged = Sender{senders[2*SenderDrawers], senders[2*SenderDrawers+1]}
	return nil
}

// read takes the field of a Stat.
func (j *Judged) read(value protobuf.Field) error {
	text, err := value.Bytes()
	if err != nil {
		return err
	}
	for _, into := range []*uint32{&j.Good, &j.Failed} {
		n, size := binary.Uvarint(text)
		if size <= 0 || n >= judgedWrap {
			return protobuf.ErrTruncated
		}
		*into, text = uint32(n), text[size:]
	}
	if len(text) == 0 {
		return nil
	}
	first := int(text[0])
	if first >= LatencyBuckets {
		return protobuf.ErrTruncated
	}
	return readCounts(text[1:], j.Latency[first:])
}
