package wire

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"ebb.dev/ebb/wire/protobuf"
)

func TestJudgedSurvivesItsEncoding(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		in := &Judged{Good: random.Uint32N(judgedWrap), Failed: random.Uint32N(3)}
		for range random.IntN(50) {
			in.Latency.Add(time.Duration(random.Int64N(1 << random.IntN(41))))
		}
		for range random.IntN(3) {
			in.Senders[random.IntN(SenderDrawers)] = Sender{random.Uint32N(judgedWrap), random.Uint32N(3)}
		}
		if random.IntN(2) == 0 {
			in.Tagged = Sender{random.Uint32N(3), random.Uint32N(judgedWrap)}
		}
		out, err := DecodeStat("", Stat{PodName: "p", Judged: in}.Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		if out.Judged == nil || *out.Judged != *in {
			t.Fatalf("%+v became %+v", in, out.Judged)
		}
	}
	// A pod without requests says so; one that was not asked says nothing.
	if out, err := DecodeStat("", Stat{Judged: &Judged{}}.Append(nil)); err != nil || out.Judged == nil || *out.Judged != (Judged{}) {
		t.Errorf("a pod without requests: %+v, %v", out.Judged, err)
	}
	if out, err := DecodeStat("", Stat{PodName: "p"}.Append(nil)); err != nil || out.Judged != nil {
		t.Errorf("a pod that was not asked: %+v, %v", out.Judged, err)
	}
}

func TestJudgedThatCannotBeIsRefused(t *testing.T) {
	for name, data := range map[string][]byte{
		"nothing":                     {},
		"no count of failed":          {1},
		"a count without its end":     {0x80},
		"a count beyond the wrap":     {0x80, 0x80, 0x80, 0x01, 0},
		"a bucket beyond the last":    {1, 1, LatencyBuckets, 1},
		"more buckets than there are": {1, 1, LatencyBuckets - 1, 1, 1},
	} {
		if stat, err := DecodeStat("", protobuf.AppendBytes(nil, statJudged, data)); err == nil {
			t.Errorf("%s: got %+v", name, stat.Judged)
		}
	}
	for _, field := range []int{statJudged, statSenders} {
		if stat, err := DecodeStat("", protobuf.AppendUint(nil, field, 1)); err == nil {
			t.Errorf("a number for a text: got %+v", stat.Judged)
		}
	}
	for name, data := range map[string][]byte{
		"a count without its end":     {1, 0x80},
		"more drawers than there are": make([]byte, 2*SenderDrawers+3),
	} {
		if stat, err := DecodeStat("", protobuf.AppendBytes((&Judged{}).Append(nil), statSenders, data)); err == nil {
			t.Errorf("senders: %s: got %+v", name, stat.Judged)
		}
	}
	// Senders of nothing are nothing, and do not look as if something was judged.
	if stat, err := DecodeStat("", protobuf.AppendBytes(nil, statSenders, []byte{1})); err != nil || stat.Judged != nil {
		t.Errorf("senders alone: %+v, %v", stat.Judged, err)
	}
}

// What is counted twice or not at all by single reports is counted once by their differences, also
// where counts begin anew.
func TestTheDifferenceOfTwoReportsIsWhatCameBetween(t *testing.T) {
	told := func(j Judged) *Judged {
		s, err := DecodeStat("", Stat{Judged: &j}.Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		return s.Judged
	}
	came := Judged{Good: 5, Failed: 1, Latency: Latency{3: 4, 40: 2}, Senders: [SenderDrawers]Sender{0: {4, 0}, 15: {1, 1}}, Tagged: Sender{2, 3}}
	for name, counted := range map[string]Judged{
		"at first":            {},
		"at the wrap":         {Good: judgedWrap - 2, Failed: 7, Latency: Latency{3: judgedWrap - 1}, Senders: [SenderDrawers]Sender{0: {judgedWrap - 1, 0}, 15: {3, judgedWrap - 1}}, Tagged: Sender{judgedWrap - 1, judgedWrap - 2}},
		"at the memory's end": {Good: math.MaxUint32 - 1, Failed: math.MaxUint32, Latency: Latency{3: math.MaxUint32 - 3}, Senders: [SenderDrawers]Sender{0: {math.MaxUint32, 7}, 15: {math.MaxUint32, math.MaxUint32}}, Tagged: Sender{math.MaxUint32, math.MaxUint32}},
	} {
		before := told(counted)
		counted.Good += came.Good
		counted.Failed += came.Failed
		for i, n := range came.Latency {
			counted.Latency[i] += n
		}
		for i, s := range came.Senders {
			counted.Senders[i].Good += s.Good
			counted.Senders[i].Failed += s.Failed
		}
		counted.Tagged.Good += came.Tagged.Good
		counted.Tagged.Failed += came.Tagged.Failed
		now := told(counted)
		if got := now.Since(before); got != came {
			t.Errorf("%s: got %+v, want %+v", name, got, came)
		}
		if got := now.Since(now); got != (Judged{}) {
			t.Errorf("%s: a report that came twice is %+v", name, got)
		}
	}
}

func TestAStatWithJudgedFitsItsLimit(t *testing.T) {
	const most = judgedWrap - 1
	j := Judged{Good: most, Failed: most}
	for i := range j.Latency {
		j.Latency[i] = most
	}
	// An autoscaler that asks for no senders may be older, and take no more than this.
	if n := len(j.Append(nil)); n > 144 {
		t.Errorf("%d bytes without senders are more than 144", n)
	}
	for i := range j.Senders {
		j.Senders[i] = Sender{most, most}
	}
	j.Tagged = Sender{most, most}
	if n := len(j.Append(nil)); n > MaxAnswerBytes-MaxStatBytes {
		t.Errorf("%d bytes are more than %d", n, MaxAnswerBytes-MaxStatBytes)
	}
}
