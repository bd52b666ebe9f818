package wire

import (
	"encoding/binary"
	"math"
	"math/bits"
	"time"

	"ebb.dev/ebb/wire/protobuf"
)

// LatencyBuckets is how many buckets a Latency has.
const LatencyBuckets = 42

const (
	// shortest is the binary logarithm of the first bound, 0.26 ms in nanoseconds.
	shortest = 18
	// maxCount bounds a count, so that it takes at most three bytes in a Stat.
	maxCount = 1<<21 - 1
)

// Latency counts requests by how long they took. The first bucket is below 2^18 ns (0.26 ms), each
// further one ends at √2 times the end of the one before, and the last one begins at 2^38 ns (275
// s). The middle of a bucket, by ratio, is at most 19 % off.
type Latency [LatencyBuckets]uint32

// Add counts one request.
func (l *Latency) Add(took time.Duration) { l[latencyBucket(took)]++ }

func latencyBucket(took time.Duration) int {
	if took < 1<<shortest {
		return 0
	}
	power := bits.Len64(uint64(took)) - 1
	half := 0
	// The highest 64 bits of √2, compared with the duration shifted to its highest bit.
	if uint64(took)<<(63-power) >= 0xB504F333F9DE6484 {
		half = 1
	}
	return min(2*(power-shortest)+half+1, LatencyBuckets-1)
}

// LatencyEnd is where a bucket ends; the last one has no end.
func LatencyEnd(bucket int) time.Duration {
	return time.Duration(math.Exp2(shortest + float64(min(bucket, LatencyBuckets-2))/2))
}

// latencyOf is what a bucket stands for: its middle, or the bound that it has.
func latencyOf(bucket int) time.Duration {
	switch bucket {
	case 0:
		return 1 << shortest
	case LatencyBuckets - 1:
		return 1 << (shortest + (LatencyBuckets-2)/2)
	}
	return time.Duration(math.Exp2(shortest + float64(bucket-1)/2 + 0.25))
}

// Percentile returns how long requests took at most, but for the share 1-p. It reports false if
// there were none.
func (l *Latency) Percentile(p float64) (time.Duration, bool) {
	var all uint64
	for _, n := range l {
		all += uint64(n)
	}
	rank, passed := uint64(math.Ceil(p*float64(all))), uint64(0)
	for bucket, n := range l {
		if passed += uint64(n); n > 0 && passed >= rank {
			return latencyOf(bucket), true
		}
	}
	return 0, false
}

// Merge adds the counts of other.
func (l *Latency) Merge(other *Latency) {
	for i, n := range other {
		l[i] = added(l[i], n)
	}
}

// added stays at the largest value instead of beginning anew.
func added(a, b uint32) uint32 {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxUint32
}

// Outcomes are how the requests of a period ended. A pod leaves those out that an activator counts.
type Outcomes struct {
	// Statuses counts by the first digit of the status; index 0 is without an answer.
	Statuses [6]uint32
	// Latency is from the arrival of a request to the end of its response.
	Latency Latency
	// Refused are those that a pod answered itself because it was full.
	Refused uint32
}

// End counts a request.
func (o *Outcomes) End(status int, took time.Duration) {
	o.Statuses[min(max(status/100, 0), 5)]++
	o.Latency.Add(took)
}

// Merge adds the counts of other.
func (o *Outcomes) Merge(other *Outcomes) {
	for i, n := range other.Statuses {
		o.Statuses[i] = added(o.Statuses[i], n)
	}
	o.Latency.Merge(&other.Latency)
	o.Refused = added(o.Refused, other.Refused)
}

// Ended is how many requests ended.
func (o *Outcomes) Ended() (n uint64) {
	for _, one := range o.Statuses {
		n += uint64(one)
	}
	return n
}

// append encodes Outcomes as fields of a Stat. Latency is the index of the first bucket that is not
// empty, and the counts from there to the last one.
func (o *Outcomes) append(data []byte) []byte {
	var space [1 + 3*LatencyBuckets]byte
	if text := appendCounts(space[:0], o.Statuses[:]); len(text) > 0 {
		data = protobuf.AppendBytes(data, statStatuses, text)
	}
	first := 0
	for first < LatencyBuckets && o.Latency[first] == 0 {
		first++
	}
	if first < LatencyBuckets {
		data = protobuf.AppendBytes(data, statLatency, appendCounts(append(space[:0], byte(first)), o.Latency[first:]))
	}
	return protobuf.AppendUint(data, statRefused, uint64(min(o.Refused, maxCount)))
}

// appendCounts leaves out the zeros at the end.
func appendCounts(data []byte, counts []uint32) []byte {
	for len(counts) > 0 && counts[len(counts)-1] == 0 {
		counts = counts[:len(counts)-1]
	}
	for _, n := range counts {
		data = binary.AppendUvarint(data, uint64(min(n, maxCount)))
	}
	return data
}

// readCounts reads at most len(into) counts. More of them are an error.
func readCounts(data []byte, into []uint32) error {
	for i := 0; len(data) > 0; i++ {
		n, size := binary.Uvarint(data)
		if size <= 0 || i == len(into) {
			return protobuf.ErrTruncated
		}
		into[i], data = uint32(min(n, maxCount)), data[size:]
	}
	return nil
}

// read takes one field of a Stat.
func (o *Outcomes) read(number int, value protobuf.Field) error {
	if number == statRefused {
		n, err := value.Uint()
		o.Refused = uint32(min(n, maxCount))
		return err
	}
	encoded, err := value.Bytes()
	if err != nil {
		return err
	}
	if number == statStatuses {
		o.Statuses = [6]uint32{}
		return readCounts(encoded, o.Statuses[:])
	}
	o.Latency = Latency{}
	if len(encoded) == 0 {
		return nil
	}
	first := int(encoded[0])
	if first >= LatencyBuckets {
		return protobuf.ErrTruncated
	}
	return readCounts(encoded[1:], o.Latency[first:])
}
