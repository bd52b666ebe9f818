package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The parts are told by a server that works for a known time, behind the loopback interface.
func TestTheTimeInAPodIsDividedByItsPackets(t *testing.T) {
	const works = 3 * time.Millisecond
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		begun := time.Now()
		for time.Since(begun) < works {
		}
		w.Header().Set("X-Work-Begun", strconv.FormatInt(begun.UnixNano(), 10))
		w.Header().Set("X-Work-Ended", strconv.FormatInt(time.Now().UnixNano(), 10))
	}))
	defer server.Close()
	loopback, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skip(err)
	}
	p, err := partsOn(context.Background(), loopback, netip.MustParseAddrPort(server.Listener.Addr().String()), server.URL, 20)
	if errors.Is(err, syscall.EPERM) {
		t.Skip("it may not see packets: it needs root")
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(p.before) < 18 || slices.Min(p.before) < 0 || slices.Min(p.after) < 0 {
		t.Errorf("of %d requests the shortest parts are %v and %v ms, want none below 0", len(p.before), slices.Min(p.before), slices.Min(p.after))
	}
	if least := slices.Min(p.in); least < 3 {
		t.Errorf("the shortest time in the function is %v ms, want at least 3", least)
	}
	if text := p.fields(); text["before_ms"].(float64) <= 0 || text["after_ms"].(float64) <= 0 {
		t.Errorf("the fields are %v", text)
	}
}

func TestPacketsThatCarryNothingDoNotCount(t *testing.T) {
	// 10.88.0.1:4660 to 10.88.0.9:8012, with one byte and without
	head := []byte{0x45, 0, 0, 41, 0, 0, 0, 0, 64, 6, 0, 0, 10, 88, 0, 1, 10, 88, 0, 9,
		0x12, 0x34, 0x1f, 0x4c, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0, 'x'}
	p, ok := parsePacket(head)
	if !ok || p.from.String() != "10.88.0.1:4660" || p.to.String() != "10.88.0.9:8012" {
		t.Errorf("got %v, %v", p, ok)
	}
	head[3] = 40
	if _, ok := parsePacket(head[:40]); ok {
		t.Error("a packet without bytes counts")
	}
	head[9] = 17
	if _, ok := parsePacket(head); ok {
		t.Error("a packet of UDP counts")
	}
}

func TestExchangesPairARequestWithItsAnswer(t *testing.T) {
	client, pod := netip.MustParseAddrPort("10.0.0.1:1000"), netip.MustParseAddrPort("10.0.0.2:80")
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	other := netip.MustParseAddrPort("10.0.0.1:2000")
	got := exchanges([]packet{
		{at(1), client, pod}, {at(1), client, pod}, // each packet is seen twice on a bridge
		{at(2), other, pod}, {at(3), pod, other}, // a probe
		{at(4), pod, client}, {at(5), pod, client}, // an answer in two packets
		{at(6), client, pod}, {at(9), pod, client},
	}, client)
	want := []exchange{{at(1), at(4)}, {at(6), at(9)}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAWorkBelongsToTheExchangeAroundIt(t *testing.T) {
	ms := func(from, to int64) exchange { return exchange{time.UnixMilli(from), time.UnixMilli(to)} }
	// The packets of the second request are lost.
	got := around([]exchange{ms(2, 3), ms(12, 13), ms(22, 23)}, []exchange{ms(1, 4), ms(21, 24)})
	want := [][2]exchange{{ms(2, 3), ms(1, 4)}, {ms(22, 23), ms(21, 24)}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A packet comes from whoever sends to this machine.
func FuzzParsePacket(f *testing.F) {
	f.Add([]byte(strings.Repeat("\x45", 60)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, ok := parsePacket(data); ok && !p.from.IsValid() {
			t.Errorf("%v is no packet", p)
		}
	})
}
