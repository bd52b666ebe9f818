package wire

import (
	"math"
	"net/netip"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
)

func TestAStatSurvivesItsEncoding(t *testing.T) {
	same := func(pod string, a, b, c, d, e, f, g, h float64, at int64, outOfTurn bool, asleep, known uint8) bool {
		told := Told{Known: known % (1 << MaxTold)}
		for place := range MaxTold {
			if told.Known&(1<<place) != 0 {
				told.Values[place] = []float64{0, a, b, c}[place]
			}
		}
		in := Stat{pod, a, b, c, d, e, at, f, g, h, outOfTurn, asleep & 0x7f, Busy(asleep % 3), printable(pod, MaxFreezeFailure), nil, told, nil}
		out, err := DecodeStat("", in.Append(nil))
		return err == nil && out == in
	}
	if err := quick.Check(same, nil); err != nil {
		t.Fatal(err)
	}
}

func TestStatsSurviveTheirEncoding(t *testing.T) {
	in := []StatMessage{
		{"default", "hello-00001", Stat{PodName: "a", AverageConcurrent: 1.5, Queued: 3}},
		{"default", "hello-00002", Stat{PodName: "b", Requests: 7, Timestamp: 1}},
		{"", "", Stat{}},
	}
	out, err := DecodeStats(EncodeStats(in), MaxStats)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, out); diff != "" {
		t.Fatal(diff)
	}
}

// The contract fixes the first seven fields; another implementation must be able to read them.
func TestAStatIsTheContractsProtobuf(t *testing.T) {
	data := Stat{PodName: "p", AverageConcurrent: 2, Timestamp: 9}.Append(nil)
	var want []byte
	want = protowire.AppendTag(want, 1, protowire.BytesType)
	want = protowire.AppendString(want, "p")
	want = protowire.AppendTag(want, 2, protowire.Fixed64Type)
	want = protowire.AppendFixed64(want, math.Float64bits(2))
	want = protowire.AppendTag(want, 7, protowire.VarintType)
	want = protowire.AppendVarint(want, 9)
	if diff := cmp.Diff(want, data); diff != "" {
		t.Fatal(diff)
	}
}

func TestUnknownFieldsOfAStatAreSkipped(t *testing.T) {
	data := protowire.AppendTag(nil, 99, protowire.Fixed32Type)
	data = protowire.AppendFixed32(data, 1)
	data = Stat{PodName: "p"}.Append(data)
	stat, err := DecodeStat("", data)
	if err != nil || stat.PodName != "p" {
		t.Fatalf("got %+v, %v", stat, err)
	}
}

func TestAFullStatFitsTheScrapeLimit(t *testing.T) {
	stat := Stat{strings.Repeat("p", 253), 1.1, 1.1, 1.1, 1.1, 1.1, math.MaxInt64, 1.1, 1.1, 1.1, true, 3, BusyBalked, "", nil, Told{1<<MaxTold - 1, [MaxTold]float64{1.1, 0, 1.1, 1.1}}, nil}
	if n := len(stat.Append(nil)); n > MaxStatBytes+80 {
		t.Fatalf("a stat with the longest pod name takes %d bytes", n)
	}
	stat.PodName = strings.Repeat("p", 63)
	stat.Ended = &Outcomes{Refused: math.MaxUint32}
	for i := range stat.Ended.Statuses {
		stat.Ended.Statuses[i] = math.MaxUint32
	}
	for i := range stat.Ended.Latency {
		stat.Ended.Latency[i] = math.MaxUint32
	}
	if n := len(stat.Append(nil)); n > MaxStatBytes {
		t.Fatalf("a stat with a pod name of 63 characters takes %d bytes, more than %d", n, MaxStatBytes)
	}
	// Whoever fills the room of a freeze that failed has none for how requests ended.
	stat.Ended, stat.FreezeFailure = nil, strings.Repeat("f", MaxFreezeFailure)
	if n := len(stat.Append(nil)); n > MaxStatBytes {
		t.Fatalf("a stat that says why a freeze failed takes %d bytes, more than %d", n, MaxStatBytes)
	}
}

// The text reaches a status that people read, and comes from a pod.
func TestTheTextOfAFreezeThatFailedIsBounded(t *testing.T) {
	for said, want := range map[string]string{
		"":                             "",
		"the node agent was busy":      "the node agent was busy",
		"a\n\x1b[31mred\u00fc\xff":     "a??[31mred??",
		strings.Repeat("long ", 1<<10): strings.Repeat("long ", 16),
	} {
		stat, err := DecodeStat("", Stat{PodName: "p", FreezeFailure: said}.Append(nil))
		if err != nil || stat.FreezeFailure != want {
			t.Errorf("%.40q arrives as %q, want %q (%v)", said, stat.FreezeFailure, want, err)
		}
		data := protowire.AppendTag(nil, statFreezeFailure, protowire.BytesType)
		if stat, err = DecodeStat("", protowire.AppendString(data, said)); err != nil || stat.FreezeFailure != want {
			t.Errorf("%.40q of a pod that does not cut it arrives as %q, want %q (%v)", said, stat.FreezeFailure, want, err)
		}
	}
}

func FuzzDecodeStats(f *testing.F) {
	f.Add(EncodeStats([]StatMessage{{"n", "r", Stat{PodName: "p", AverageConcurrent: 1}}}))
	f.Add(EncodeStats([]StatMessage{{"n", "r", Stat{PodName: "p", Judged: &Judged{Good: 300, Failed: 2, Latency: Latency{20: 301}}}}}))
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, data []byte) {
		messages, err := DecodeStats(data, MaxStats)
		if err != nil {
			return
		}
		again, err := DecodeStats(EncodeStats(messages), MaxStats)
		if err != nil {
			t.Fatalf("what was decoded does not decode again: %v", err)
		}
		if len(again) != len(messages) {
			t.Fatalf("%d messages became %d", len(messages), len(again))
		}
	})
}

func TestABearerTokenIsReadBack(t *testing.T) {
	for header, want := range map[string]string{
		Bearer("abc"): "abc", "bearer abc": "abc", "": "", "abc": "", "Basic abc": "",
	} {
		if got := BearerToken(header); got != want {
			t.Errorf("token of %q is %q, want %q", header, got, want)
		}
	}
}

func announcement() Announcement {
	return Announcement{
		Namespace: "default", Revision: "hello-00001", Pod: "hello-00001-x", Ready: true,
		Address:   netip.MustParseAddrPort("10.0.0.7:8012"),
		UserReady: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Sequence: 4,
	}
}

func TestAnAnnouncementSurvivesItsEncoding(t *testing.T) {
	got, err := DecodeAnnouncement(announcement().Encode())
	if err != nil {
		t.Fatal(err)
	}
	if got != announcement() {
		t.Fatalf("got %+v", got)
	}
}

func TestAnUnusableAnnouncementIsRefused(t *testing.T) {
	edit := func(change func(*Announcement)) string {
		a := announcement()
		change(&a)
		return string(a.Encode())
	}
	for name, body := range map[string]string{
		"nothing":                    "",
		"garbage":                    "{",
		"two of them":                string(announcement().Encode()) + "{}",
		"no revision":                edit(func(a *Announcement) { a.Revision = "" }),
		"no namespace":               edit(func(a *Announcement) { a.Namespace = "" }),
		"no pod":                     edit(func(a *Announcement) { a.Pod = "" }),
		"no address":                 edit(func(a *Announcement) { a.Address = netip.AddrPort{} }),
		"the unspecified address":    edit(func(a *Announcement) { a.Address = netip.MustParseAddrPort("0.0.0.0:1") }),
		"a multicast address":        edit(func(a *Announcement) { a.Address = netip.MustParseAddrPort("224.0.0.1:1") }),
		"more than the bound allows": edit(func(a *Announcement) { a.Pod = strings.Repeat("p", MaxAnnouncementBytes) }),
	} {
		if a, err := DecodeAnnouncement([]byte(body)); err == nil {
			t.Errorf("%s: was accepted as %+v", name, a)
		}
	}
}

func FuzzDecodeAnnouncement(f *testing.F) {
	f.Add(string(announcement().Encode()))
	f.Fuzz(func(t *testing.T, body string) {
		a, err := DecodeAnnouncement([]byte(body))
		if err == nil && (a.Revision == "" || !a.Address.IsValid()) {
			t.Fatalf("accepted %+v", a)
		}
	})
}
