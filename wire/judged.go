package wire

import (
	"encoding/binary"

	"ebb.dev/ebb/wire/protobuf"
)

// QueryJudged is the query of a GET of PathMetrics that asks for Judged, too. A queue-proxy that
// does not know it answers without.
const QueryJudged = "judged"

// HeaderSenders, with any value, asks for Judged.Senders beside QueryJudged. A queue-proxy that
// does not know it answers without. An autoscaler that does not know them takes no answer of that
// length, and does not send it.
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
}

// Sender counts the requests of the senders that have one drawer.
type Sender struct{ Good, Failed uint32 }

// Since returns what was counted since an earlier report of the same process.
func (j *Judged) Since(before *Judged) Judged {
	d := Judged{Good: wrapped(j.Good - before.Good), Failed: wrapped(j.Failed - before.Failed)}
	for i := range d.Latency {
		d.Latency[i] = wrapped(j.Latency[i] - before.Latency[i])
	}
	for i, s := range j.Senders {
		d.Senders[i] = Sender{wrapped(s.Good - before.Senders[i].Good), wrapped(s.Failed - before.Senders[i].Failed)}
	}
	return d
}

func wrapped(n uint32) uint32 { return n % judgedWrap }

// Append appends the fields of a Stat. One is Good, Failed, the first bucket of Latency that is not
// empty, and the counts from there to the last one. The other one, if there is anything, is Good
// and Failed of each drawer.
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
	var senders [2 * SenderDrawers]uint32
	for i, s := range j.Senders {
		senders[2*i], senders[2*i+1] = wrapped(s.Good), wrapped(s.Failed)
	}
	if text = appendCounts(space[:0], senders[:]); len(text) > 0 {
		data = protobuf.AppendBytes(data, statSenders, text)
	}
	return data
}

// readSenders takes the other field.
func readSenders(value protobuf.Field) (all [SenderDrawers]Sender, err error) {
	text, err := value.Bytes()
	if err != nil {
		return all, err
	}
	var senders [2 * SenderDrawers]uint32
	if err := readCounts(text, senders[:]); err != nil {
		return all, err
	}
	for i := range all {
		all[i] = Sender{senders[2*i], senders[2*i+1]}
	}
	return all, nil
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
