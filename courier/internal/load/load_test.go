package load

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/deliver"
	"ebb.dev/ebb/courier/internal/routes"
	"ebb.dev/ebb/wire"
)

func TestCallsThatWaitCountByTheSharesOfTheirRevisionsAndThoseUnderWayDoNot(t *testing.T) {
	split, gone := call.Service{Namespace: "ns", Name: "split"}, call.Service{Namespace: "ns", Name: "gone"}
	find := func(of call.Service) *routes.Route {
		if of == gone {
			return nil
		}
		return &routes.Route{Service: of, Shares: []routes.Share{{Revision: "a", Percent: 75}, {Revision: "b", Percent: 25}}}
	}
	got := Waiting([]deliver.Load{{Service: split, Waiting: 40, Running: 1000}, {Service: gone, Waiting: 7}, {Service: call.Service{Namespace: "ns", Name: "busy"}, Running: 3}}, find)
	if want := map[revision]float64{{"ns", "a"}: 30, {"ns", "b"}: 10}; !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

// The controller may be of the release before, which does not fill the Secret.
func TestWithoutATokenNothingIsSentAndItSaysWhy(t *testing.T) {
	sent := false
	autoscaler := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent = true }))
	defer autoscaler.Close()
	r := &Reporter{URL: autoscaler.URL, Token: func() string { return "" }, client: autoscaler.Client()}
	if err := r.post(t.Context(), nil); err == nil || !strings.Contains(err.Error(), wire.CourierSecret) || sent {
		t.Errorf("%v, sent %v", err, sent)
	}
}
