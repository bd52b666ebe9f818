package recall

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/wire"
)

// headerForwarded marks incidents that come from another replica, which are not forwarded again.
const headerForwarded = "Ebb-Forwarded"

const (
	// mostBodies bounds the bodies in memory, each of wire.MaxIncidentsBytes.
	mostBodies     = 8
	forwardTimeout = time.Second
)

// Owners knows which replica decides for a revision.
type Owners interface {
	Owns(loop.Key) bool
	// Owner returns an IP, "" while no replica decides for the revision.
	Owner(loop.Key) string
}

// Receiver answers POSTs of activators to wire.PathIncidents. Those of revisions that another
// replica decides for go there.
type Receiver struct {
	Records *Records
	Keys    func() wire.Keys
	Owners  Owners
	// Failed is called with what could not be forwarded. It is forgotten.
	Failed func(error)

	guard  wire.Guard
	signer wire.Signer
	bodies chan struct{}
	client http.Client
}

// NewReceiver returns a Receiver for the given records.
func NewReceiver(records *Records, keys func() wire.Keys, owners Owners, failed func(error)) *Receiver {
	return &Receiver{Records: records, Keys: keys, Owners: owners, Failed: failed, bodies: make(chan struct{}, mostBodies), client: http.Client{Timeout: forwardTimeout}}
}

// ServeHTTP answers 204, or 401 without an activator's signature, 400 for what no activator sends,
// 413 for a longer body, and 503 if too many bodies are here already: the sender tries again.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	signature, err := wire.ReadSignature(req)
	switch {
	case req.Method != http.MethodPost:
		http.Error(w, "use POST", http.StatusMethodNotAllowed)
		return
	case err != nil || !signature.By(r.Keys(), "", wire.ActivatorSubject):
		http.Error(w, "the signature is not of the activators' token", http.StatusUnauthorized)
		return
	}
	if err := r.guard.Check(signature, w.Header()); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	select {
	case r.bodies <- struct{}{}:
		defer func() { <-r.bodies }()
	default:
		http.Error(w, "too many incidents at once", http.StatusServiceUnavailable)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, wire.MaxIncidentsBytes))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	if !signature.Covers(body) {
		http.Error(w, "the signature is of another body", http.StatusUnauthorized)
		return
	}
	all, err := wire.DecodeIncidents(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
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
