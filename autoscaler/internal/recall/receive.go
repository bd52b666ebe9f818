package recall

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/wire"
)

// headerForwarded marks incidents that come from another replica, which are not forwarded again.
const headerForwarded = "Ebb-Forwarded"

const (
	// maxBodies bounds the bodies in memory, each of wire.MaxIncidentsBytes.
	maxBodies = 8
	// maxPodBodies bounds those of pods, each of wire.MaxCallsBytes. No pod keeps an activator's
	// from being read.
	maxPodBodies   = 64
	forwardTimeout = time.Second
)

// Owners knows which replica decides for a revision.
type Owners interface {
	Owns(loop.Key) bool
	// Owner returns an IP, "" while no replica decides for the revision.
	Owner(loop.Key) string
}

// Receiver answers POSTs of activators and pods to wire.PathIncidents. Those of revisions that
// another replica decides for go there.
type Receiver struct {
	Records *Records
	Keys    func() wire.Keys
	Owners  Owners
	// Unreached, if set, receives which pods of this replica's revisions an activator could not
	// connect to. It must not block.
	Unreached func(*wire.Unreached)
	// Failed is called with what could not be forwarded. It is forgotten.
	Failed func(error)

	guard             wire.Guard
	signer            wire.Signer
	bodies, podBodies chan struct{}

	client http.Client
}

// NewReceiver returns a Receiver for the given records.
func NewReceiver(records *Records, keys func() wire.Keys, owners Owners, failed func(error)) *Receiver {
	return &Receiver{Records: records, Keys: keys, Owners: owners, Failed: failed, bodies: make(chan struct{}, maxBodies), podBodies: make(chan struct{}, maxPodBodies), client: http.Client{Timeout: forwardTimeout}}
}

// ServeHTTP answers 204, or 401 without the signature of an activator or of the pod's revision,
// 400 for what none sends, 413 for a longer body, and 503 if too many bodies are here already.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost {
		http.Error(w, "use POST", http.StatusMethodNotAllowed)
		return
	}
	namespace, revision, pod := wire.RevisionOf(req.URL)
	bodies, limit := r.podBodies, int64(wire.MaxCallsBytes)
	if !pod {
		namespace, revision = "", wire.ActivatorSubject
		bodies, limit = r.bodies, wire.MaxIncidentsBytes
	}
	signature, ok := r.guard.Admit(w, req, r.Keys(), namespace, revision)
	if !ok {
		return
	}
	select {
	case bodies <- struct{}{}:
		defer func() { <-bodies }()
	default:
		http.Error(w, "too many incidents at once", http.StatusServiceUnavailable)
		return
	}
	body, ok := signature.ReadBody(w, req, limit)
	if !ok {
		return
	}
	all, err := wire.DecodeIncidents(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if pod && !ofOne(&all, namespace, revision) || !pod && len(all.Calls) > 0 && req.Header.Get(headerForwarded) == "" {
		http.Error(w, "the sender cannot know this", http.StatusBadRequest)
		return
	}
	for owner, theirs := range r.take(all, req.Header.Get(headerForwarded) != "") {
		// What was taken already must not be sent again, so a failure is not the sender's to know.
		if err := r.forward(req.Context(), owner, theirs); err != nil {
			r.Failed(err)
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

// ofOne reports whether a body has nothing but records of one revision's requests.
func ofOne(all *wire.Incidents, namespace, revision string) bool {
	return len(all.ColdStarts)+len(all.Refusals)+len(all.Unreached) == 0 && len(all.Calls) <= wire.MaxCalls &&
		!slices.ContainsFunc(all.Calls, func(c wire.Called) bool { return c.Namespace != namespace || c.Revision != revision })
}

// take remembers what is of this replica's revisions, and returns the rest by its owner.
func (r *Receiver) take(all wire.Incidents, forwarded bool) map[string]*wire.Incidents {
	others := map[string]*wire.Incidents{}
	other := func(key loop.Key) *wire.Incidents {
		owner := r.Owners.Owner(key)
		if owner == "" || forwarded {
			return &wire.Incidents{} // nobody remembers it
		}
		if others[owner] == nil {
			others[owner] = &wire.Incidents{}
		}
		return others[owner]
	}
	for i := range all.ColdStarts {
		c := &all.ColdStarts[i]
		if key := (loop.Key{Namespace: c.Namespace, Name: c.Revision}); r.Owners.Owns(key) {
			r.Records.ColdStart(c)
		} else {
			to := other(key)
			to.ColdStarts = append(to.ColdStarts, *c)
		}
	}
	for i := range all.Refusals {
		x := &all.Refusals[i]
		if key := (loop.Key{Namespace: x.Namespace, Name: x.Revision}); r.Owners.Owns(key) {
			r.Records.Refused(x)
		} else {
			to := other(key)
			to.Refusals = append(to.Refusals, *x)
		}
	}
	for i := range all.Unreached {
		u := &all.Unreached[i]
		if key := (loop.Key{Namespace: u.Namespace, Name: u.Revision}); !r.Owners.Owns(key) {
			to := other(key)
			to.Unreached = append(to.Unreached, *u)
		} else if r.Unreached != nil {
			r.Unreached(u)
		}
	}
	for i := range all.Calls {
		c := &all.Calls[i]
		if key := (loop.Key{Namespace: c.Namespace, Name: c.Revision}); r.Owners.Owns(key) {
			r.Records.Called(c)
		} else {
			to := other(key)
			to.Calls = append(to.Calls, *c)
		}
	}
	return others
}

func (r *Receiver) forward(ctx context.Context, owner string, all *wire.Incidents) error {
	body, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode incidents: %w", err)
	}
	url := "http://" + net.JoinHostPort(owner, strconv.Itoa(wire.PortStats)) + wire.PathIncidents
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("forward incidents to %s: %w", owner, err)
	}
	request.Header.Set(headerForwarded, "1")
	response, err := r.signer.Do(&r.client, request, r.Keys().Token("", wire.ActivatorSubject))
	if err != nil {
		return fmt.Errorf("forward incidents to %s: %w", owner, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		return fmt.Errorf("forward incidents to %s: it answered %s", owner, response.Status)
	}
	return nil
}
