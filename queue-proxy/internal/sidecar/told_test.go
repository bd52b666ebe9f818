package sidecar

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

func TestWhatTheContainerTellsIsReportedAndNotShownToClients(t *testing.T) {
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			fmt.Fprint(w, "queue 7\n")
			return
		}
		w.Header().Set("Ebb-Load", "waiting=3")
		w.Header().Set("X-Other", "stays")
	}, func(c *wire.Sidecar) {
		c.Told = []wire.ToldMetric{{Name: "queue", Port: c.UserPort, Path: "/metrics"}, {Name: "waiting"}}
	})
	_, _, header := r.get("/")
	if header.Get("Ebb-Load") != "" || header.Get("X-Other") != "stays" {
		t.Errorf("the client got %v", header)
	}
	eventually.Seen(t, "the pod reports both", func() (wire.Told, bool) {
		resp, err := http.Get("http://127.0.0.1:" + strconv.Itoa(portOf(t, r.sideAddr("load reports"))) + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		scraped, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		stat, err := wire.DecodeStat("", scraped)
		if err != nil {
			t.Fatal(err)
		}
		return stat.Told, stat.Told == (wire.Told{Known: 3, Values: [wire.MaxTold]float64{7, 3}})
	})
}

func TestAHeaderThatNobodyScalesByReachesTheClient(t *testing.T) {
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Ebb-Load", "waiting=3")
		w.Header().Set("Ebb-Busy", "1m")
	}, nil)
	if _, _, header := r.get("/"); header.Get("Ebb-Load") != "waiting=3" || header.Get("Ebb-Busy") != "1m" {
		t.Errorf("the client got %v", header)
	}
	if busy := r.busy(time.Now()); busy != wire.NotBusy {
		t.Errorf("a pod that may not say so is busy: %d", busy)
	}
}
