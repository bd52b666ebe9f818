package announce

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"ebb.dev/ebb/wire"
)

type recorded struct {
	words  []wire.Announcement
	offers int
	wanted bool
}

func (r *recorded) Announce(a wire.Announcement) bool { r.words = append(r.words, a); return true }
func (r *recorded) SlotFree(wire.Announcement) bool   { r.offers++; return r.wanted }

var key = []byte("0123456789abcdef0123456789abcdef")

func good() wire.Announcement {
	return wire.Announcement{Namespace: "ns", Revision: "rev", Pod: "pod", Address: netip.MustParseAddrPort("10.0.0.7:8012"), Ready: true, Sequence: 1}
}

func keys() wire.Keys { return wire.Keys{Current: key, Accepted: [][]byte{key}} }

func sign(t *testing.T, r *http.Request, token string, body []byte) {
	t.Helper()
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	if err := new(wire.Signer).Sign(r, token); err != nil {
		t.Fatal(err)
	}
}

func TestAnnouncements(t *testing.T) {
	slot := good()
	slot.SlotFree = true
	elsewhere := good()
	elsewhere.Address = netip.MustParseAddrPort("169.254.169.254:80")
	for _, c := range []struct {
		name   string
		method string
		path   string
		from   string
		token  string
		body   []byte
		wanted bool
		status int
		taken  int
	}{
		{name: "a good one", body: good().Encode(), status: 204, taken: 1},
		{name: "over a mapped address", from: "[::ffff:10.0.0.7]:4000", body: good().Encode(), status: 204, taken: 1},
		{name: "a free slot that is wanted", body: slot.Encode(), wanted: true, status: 204},
		{name: "a free slot that nobody wants", body: slot.Encode(), status: wire.SlotDeclined},
		{name: "no token", token: "-", body: good().Encode(), status: 401},
		{name: "another revision's token", token: wire.Token(key, "ns", "other"), body: good().Encode(), status: 401},
		{name: "another key's token", token: wire.Token([]byte("x"), "ns", "rev"), body: good().Encode(), status: 401},
		{name: "an address that is not the sender's", body: elsewhere.Encode(), status: 403},
		{name: "garbage", body: []byte("garbage"), status: 400},
		{name: "endless", body: bytes.Repeat([]byte(" "), 1<<20), status: 400},
		{name: "GET", method: "GET", body: nil, status: 405},
		{name: "another path", path: "/x", body: good().Encode(), status: 404},
	} {
		t.Run(c.name, func(t *testing.T) {
			backends := &recorded{wanted: c.wanted}
			server := &Server{Backends: backends, Keys: keys}
			method, path, token := "POST", wire.PathAnnounce, wire.Token(key, "ns", "rev")
			if c.method != "" {
				method = c.method
			}
			if c.path != "" {
				path = c.path
			}
			if c.token != "" {
				token = c.token
			}
			r := httptest.NewRequest(method, path, bytes.NewReader(c.body))
			r.RemoteAddr = "10.0.0.7:4000"
			if c.from != "" {
				r.RemoteAddr = c.from
			}
			if token != "-" {
				sign(t, r, token, c.body)
			}
			answer := httptest.NewRecorder()
			server.ServeHTTP(answer, r)
			if answer.Code != c.status || len(backends.words) != c.taken {
				t.Errorf("got %d %q, %d taken; want %d, %d", answer.Code, answer.Body, len(backends.words), c.status, c.taken)
			}
			if c.status == 401 && server.Unauthorized.Load() != 1 {
				t.Error("a wrong token is not counted")
			}
		})
	}
}

func TestBeforeTheKeyIsKnownNothingIsBelieved(t *testing.T) {
	server := &Server{Backends: &recorded{}, Keys: func() wire.Keys { return wire.Keys{} }}
	r := httptest.NewRequest("POST", wire.PathAnnounce, bytes.NewReader(good().Encode()))
	r.RemoteAddr = "10.0.0.7:4000"
	sign(t, r, wire.Token(nil, "ns", "rev"), good().Encode())
	answer := httptest.NewRecorder()
	server.ServeHTTP(answer, r)
	if answer.Code != 401 {
		t.Errorf("got %d", answer.Code)
	}
}

// Whatever is sent: no panic, no answer beyond the documented ones, and what is taken is what its
// token allows.
func FuzzServeHTTP(f *testing.F) {
	f.Add(string(good().Encode()), wire.Token(key, "ns", "rev"), "10.0.0.7:1")
	f.Add(`{"namespace":"ns","revision":"rev","pod":"p","address":"10.0.0.7:8012"}`, "", "")
	f.Add(`{"namespace":"ns","slotFree":true}`, "x", "[::1]:2")
	f.Add("", "", "nonsense")
	f.Fuzz(func(t *testing.T, body, token, from string) {
		backends := &recorded{}
		server := &Server{Backends: backends, Keys: keys}
		r := httptest.NewRequest("POST", wire.PathAnnounce, strings.NewReader(body))
		r.RemoteAddr = from
		r.Header["Authorization"] = []string{wire.Bearer(token)}
		answer := httptest.NewRecorder()
		server.ServeHTTP(answer, r)
		switch answer.Code {
		case http.StatusNoContent:
			for _, a := range backends.words {
				if wire.Token(key, a.Namespace, a.Revision) != strings.TrimSpace(token) {
					t.Errorf("took %+v with the token %q", a, token)
				}
			}
		case wire.SlotDeclined, http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden:
		default:
			t.Errorf("answered %d", answer.Code)
		}
	})
}
