package wire

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"ebb.dev/ebb/wire/protobuf"
)

func TestAPercentileIsAtMost19PercentOff(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var latency Latency
		var all []time.Duration
		for range 1 + random.IntN(2000) {
			// Evenly over the powers from 0.3 ms to 270 s.
			took := time.Duration(math.Exp2(math.Log2(3e5) + random.Float64()*(math.Log2(2.7e11)-math.Log2(3e5))))
			all = append(all, took)
			latency.Add(took)
		}
		slices.Sort(all)
		for _, p := range []float64{0.5, 0.9, 0.99, 1} {
			want := all[int(math.Ceil(p*float64(len(all))))-1]
			got, ok := latency.Percentile(p)
			if off := math.Abs(got.Seconds()/want.Seconds() - 1); !ok || off > 0.19 {
				t.Fatalf("percentile %v of %d requests is %v, want %v: %.0f %% off", p, len(all), got, want, 100*off)
			}
		}
	}
}

func TestBucketsFollowOneAnother(t *testing.T) {
	last := 0
	for took := time.Duration(1); took < 1<<40; took += took/64 + 1 {
		bucket := latencyBucket(took)
		if bucket < last || bucket > last+1 {
			t.Fatalf("%v is in bucket %d, after %d", took, bucket, last)
		}
		last = bucket
	}
	if last != LatencyBuckets-1 || latencyBucket(-1) != 0 || latencyBucket(math.MaxInt64) != last {
		t.Errorf("the last bucket is %d", last)
	}
	if _, ok := new(Latency).Percentile(0.5); ok {
		t.Error("no requests have a percentile")
	}
}

func TestOutcomesSurviveTheirEncoding(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		in := &Outcomes{Refused: random.Uint32N(3)}
		for range random.IntN(50) {
			in.End(100*random.IntN(6)+random.IntN(100), time.Duration(random.Int64N(1<<random.IntN(41))))
		}
		out, err := DecodeStat("", Stat{Ended: in}.Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		if out.Ended == nil {
			out.Ended = &Outcomes{}
		}
		if diff := cmp.Diff(in, out.Ended); diff != "" {
			t.Fatal(diff)
		}
	}
}

func TestOutcomesThatCannotBeAreRefused(t *testing.T) {
	for name, data := range map[string][]byte{
		"seven classes of status":     protobuf.AppendBytes(nil, statStatuses, []byte{1, 1, 1, 1, 1, 1, 1}),
		"a count without its end":     protobuf.AppendBytes(nil, statStatuses, []byte{0x80}),
		"a bucket beyond the last":    protobuf.AppendBytes(nil, statLatency, []byte{LatencyBuckets, 1}),
		"more buckets than there are": protobuf.AppendBytes(nil, statLatency, []byte{LatencyBuckets - 1, 1, 1}),
		"a number for a text":         protobuf.AppendUint(nil, statLatency, 1),
		"a text for a number":         protobuf.AppendBytes(nil, statRefused, []byte{1}),
	} {
		if stat, err := DecodeStat("", data); err == nil {
			t.Errorf("%s: got %+v", name, stat.Ended)
		}
	}
}

func TestCountsDoNotBeginAnew(t *testing.T) {
	a, b := Outcomes{Refused: math.MaxUint32 - 1}, Outcomes{Refused: 7}
	if a.Merge(&b); a.Refused != math.MaxUint32 {
		t.Errorf("got %d", a.Refused)
	}
}
