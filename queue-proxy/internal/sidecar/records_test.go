package sidecar

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/wire"
)

// The autoscaler gets a record of each asynchronous call, and of other requests if they or the
// Service ask for it, under the token of the revision, without what a query may hold.
func TestRecordsOfRequestsReachTheAutoscaler(t *testing.T) {
	for which, want := range map[string]int{"none": 0, "asynchronous": 2, "all": 3} {
		t.Run(which, func(t *testing.T) {
			bodies := make(chan wire.Incidents, 10)
			autoscaler := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != wire.PathIncidents {
					return
				}
				body, _ := io.ReadAll(r.Body)
				signature, err := wire.ReadSignature(r)
				namespace, revision, ok := wire.RevisionOf(r.URL)
				if err != nil || !signature.ByToken("the token") || !signature.Covers(body) || !ok || namespace == "" || revision == "" {
					t.Errorf("%s: %v", r.URL, err)
				}
				all, err := wire.DecodeIncidents(body)
				if err != nil {
					t.Error(err)
				}
				bodies <- all
			}))
			defer autoscaler.Close()
			r := startRig(t, func(http.ResponseWriter, *http.Request) {}, func(c *wire.Sidecar) {
				c.DrainQuiet, c.Records, c.Token, c.Autoscaler = time.Millisecond, which, "the token", strings.TrimPrefix(autoscaler.URL, "http://")
			})
			accepted := time.Now().Add(-time.Minute).UTC()
			r.get("/probe", "K-Network-Probe", "queue")
			r.get("/later?password=x", wire.HeaderCallID, "abc", wire.HeaderAttempt, "3", wire.HeaderAccepted, accepted.Format(time.RFC3339Nano))
			r.get("/now", wire.HeaderRecord, "1", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
			r.get("/whenever")
			r.stop()
			err := <-r.done
			r.done <- err
			close(bodies)
			var got []wire.Called
			for all := range bodies {
				got = append(got, all.Calls...)
			}
			if len(got) != want {
				t.Fatalf("%d records: %+v", len(got), got)
			}
			if want == 0 {
				return
			}
			c := got[0]
			if c.Path != "/later" || c.Call != "abc" || c.Attempt != 3 || !c.Accepted.Equal(accepted) || c.Status != 200 || c.Method != "GET" ||
				c.Pod != r.cfg.Pod || c.Revision != r.cfg.Revision || c.Ran <= 0 || c.At.IsZero() {
				t.Errorf("%+v", c)
			}
			if asked := got[1]; asked.Path != "/now" || asked.Trace != "0af7651916cd43dd8448eb211c80319c" || asked.Call != "" || !asked.Accepted.IsZero() {
				t.Errorf("one that asks for it: %+v", asked)
			}
		})
	}
}
