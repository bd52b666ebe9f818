// Package ingest receives the load: reports of activators and pods, and the pods' answers to
// scrapes.
//
// Owns: the endpoint for stats and the connections to the pods' stat ports. Reads: stats, after it
// has checked who signed them. Writes: samples to the loop, and to another replica those of the
// revisions that it decides. Never: passes on an invalid value, or a report of a revision that its
// sender has no token for.
package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/wire"
)

// headerForwarded marks stats that come from another replica. They are not forwarded again: two
// replicas that disagree on the owner would send them back and forth.
const headerForwarded = "Ebb-Forwarded"

// largestLoad is above the load of any reporter. A higher value is rejected.
const largestLoad = 1e7

// activatorBodies bounds the number of activators' bodies in memory. Each can have
// wire.MaxStatsBytes. A pod's body is so short that the bound on connections is enough.
const activatorBodies = 32

// maxPodName is the maximum length of an object's name.
const maxPodName = 253

// forwardTimeout bounds a request to another replica.
const forwardTimeout = 500 * time.Millisecond

// Reporter takes samples in.
type Reporter interface {
	Report([]loop.Sample) error
}

// Owners knows which replica decides for a revision.
type Owners interface {
	Owns(loop.Key) bool
	// Owner returns an IP, "" while no replica decides for the revision.
	Owner(loop.Key) string
}

// Server answers POSTs to wire.PathStats.
type Server struct {
	// Keys are those of all tokens as they are now.
	Keys     func() wire.Keys
	Reporter Reporter
	Owners   Owners
	Clock    func() time.Time
	// Said, if set, receives what a pod says of its sleep.
	Said func(key loop.Key, stat *wire.Stat)
	// Regular, if set, receives the regular reports of activators on own revisions.
	Regular func(key loop.Key, stat *wire.Stat)
	// Client forwards; nil stands for one with forwardTimeout.
	Client *http.Client

	signer wire.Signer
	// Guard counts and refuses messages of another time and repeated ones.
	Guard wire.Guard

	// bodies limits the activators' bodies that are read or handled.
	bodies     chan struct{}
	bodiesOnce sync.Once

	// Refused counts rejected requests and stats, by reason.
	Refused struct{ Unauthorized, Malformed, Insane, Forged, NoOwner, Busy atomic.Int64 }
	// Accepted counts stats that went to the loop, Forwarded those that went to another replica.
	Accepted, Forwarded atomic.Int64
}

// ServeHTTP answers 204 when all stats were taken, 401 without a valid signature, 400 on a
// malformed body, 413 on one that is too long, and 503 when some could not be taken now. The sender
// should then try again.
//
// The signature is checked before the body is read. Only an activator's is known to be valid by
// itself. A pod's is valid for the revision that its body names, so that body is short.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "use POST", http.StatusMethodNotAllowed)
		return
	}
	arrived := s.Clock()
	keys := s.Keys()
	signature, err := wire.ReadSignature(r)
	if err != nil || len(keys.Accepted) == 0 {
		s.refuse(w, &s.Refused.Unauthorized, "no valid signature", http.StatusUnauthorized)
		return
	}
	trusted := signature.By(keys, "", wire.ActivatorSubject)
	maxBytes, maxStats := int64(wire.MaxPodStatsBytes), wire.MaxPodStats
	if trusted {
		if err := s.Guard.Check(signature, w.Header()); err != nil {
			refuse(w, err.Error(), http.StatusUnauthorized)
			return
		}
		maxBytes, maxStats = wire.MaxStatsBytes, wire.MaxStats
		s.bodiesOnce.Do(func() { s.bodies = make(chan struct{}, activatorBodies) })
		select {
		case s.bodies <- struct{}{}:
			defer func() { <-s.bodies }()
		case <-r.Context().Done():
			return
		}
	}
	body, err := readBody(r, maxBytes)
	if err != nil {
		s.refuse(w, &s.Refused.Malformed, fmt.Sprintf("read stats: %v", err), http.StatusRequestEntityTooLarge)
		return
	}
	if !signature.Covers(body) {
		s.refuse(w, &s.Refused.Forged, "the signature is of another body", http.StatusUnauthorized)
		return
	}
	messages, ok := s.decode(w, body, maxStats, func(m *wire.StatMessage) bool { return trusted || signature.By(keys, m.Namespace, m.Revision) })
	if !ok {
		return
	}
	if !trusted && len(messages) > 0 {
		if err := s.Guard.Check(signature, w.Header()); err != nil {
			refuse(w, err.Error(), http.StatusUnauthorized)
			return
		}
	}
	forwarded := r.Header.Get(headerForwarded) != ""
	if err := s.take(r.Context(), messages, !trusted, forwarded, arrived, keys); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// decode reads the stats of a body, each of which must be signed. It answers if it cannot.
func (s *Server) decode(w http.ResponseWriter, body []byte, maxStats int, signed func(*wire.StatMessage) bool) ([]wire.StatMessage, bool) {
	messages, err := wire.DecodeStats(body, maxStats)
	if err != nil {
		status := http.StatusBadRequest
		if errors.Is(err, wire.ErrTooManyStats) {
			status = http.StatusRequestEntityTooLarge
		}
		s.refuse(w, &s.Refused.Malformed, err.Error(), status)
		return nil, false
	}
	for i := range messages {
		if !signed(&messages[i]) {
			s.refuse(w, &s.Refused.Forged, "the signature is not of this revision's token", http.StatusUnauthorized)
			return nil, false
		}
	}
	return messages, true
}

func (s *Server) refuse(w http.ResponseWriter, counter *atomic.Int64, why string, status int) {
	counter.Add(1)
	refuse(w, why, status)
}

// refuse answers and closes the connection, so that the rest of the body is not read.
func refuse(w http.ResponseWriter, why string, status int) {
	w.Header().Set("Connection", "close")
	http.Error(w, why, status)
}

// readBody reads a body of at most maxBytes. It reads nothing if Content-Length is larger.
func readBody(r *http.Request, maxBytes int64) ([]byte, error) {
	if r.ContentLength > maxBytes {
		return nil, fmt.Errorf("the body has %d bytes, more than %d", r.ContentLength, maxBytes)
	}
	var body bytes.Buffer
	if r.ContentLength > 0 {
		body.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	n, err := body.ReadFrom(io.LimitReader(r.Body, maxBytes+1))
	if err == nil && n > maxBytes {
		err = fmt.Errorf("the body has more than %d bytes", maxBytes)
	}
	return body.Bytes(), err
}

func (s *Server) take(ctx context.Context, messages []wire.StatMessage, onePod, forwarded bool, arrived time.Time, keys wire.Keys) error {
	own := make([]loop.Sample, 0, len(messages))
	var others map[string][]wire.StatMessage
	var lost int
	for i := range messages {
		m := &messages[i]
		if !sane(m.Stat) || m.Stat.PodName == "" || len(m.Stat.PodName) > maxPodName {
			s.Refused.Insane.Add(1)
			continue
		}
		key := loop.Key{Namespace: m.Namespace, Name: m.Revision}
		if s.Owners == nil || s.Owners.Owns(key) {
			if onePod && s.Said != nil {
				s.Said(key, &m.Stat)
			}
			if !onePod && !m.Stat.OutOfTurn && s.Regular != nil {
				s.Regular(key, &m.Stat)
			}
			own = append(own, Sample(key, m.Stat, onePod, arrived))
			continue
		}
		owner := s.Owners.Owner(key)
		if owner == "" || forwarded {
			// There is no owner now, or the sender and this replica disagree on the owner.
			s.Refused.NoOwner.Add(1)
			lost++
			continue
		}
		if others == nil {
			others = map[string][]wire.StatMessage{}
		}
		others[owner] = append(others[owner], *m)
	}
	s.Accepted.Add(int64(len(own)))
	if len(own) > 0 {
		if err := s.Reporter.Report(own); err != nil {
			s.Refused.Busy.Add(1)
			return err
		}
	}
	for owner, theirs := range others {
		if err := s.forward(ctx, owner, theirs, onePod, keys); err != nil {
			return err
		}
		s.Forwarded.Add(int64(len(theirs)))
	}
	if lost > 0 {
		return fmt.Errorf("no replica decides for %d of the revisions at the moment", lost)
	}
	return nil
}

// Sample converts a stat for the loop. It leaves out the load that another reporter has counted.
func Sample(key loop.Key, stat wire.Stat, onePod bool, arrived time.Time) loop.Sample {
	return loop.Sample{Key: key, Arrived: arrived, Sample: revision.Sample{Reporter: stat.PodName, Timestamp: stat.Timestamp, OutOfTurn: stat.OutOfTurn,
		Report: decide.Report{
			Concurrency:       math.Max(0, stat.AverageConcurrent-stat.AverageProxiedConcurrent),
			RequestsPerSecond: math.Max(0, stat.Requests-stat.ProxiedRequests),
			Queued:            stat.Queued,
			OnePod:            onePod,
		}}}
}

// sane reports whether every value of a stat is a possible load: not NaN, infinite, negative or
// absurd.
func sane(s wire.Stat) bool {
	for _, f := range [...]float64{s.AverageConcurrent, s.AverageProxiedConcurrent, s.Requests, s.ProxiedRequests, s.Queued, s.Completed, s.BusySeconds} {
		if !(f >= 0 && f <= largestLoad) {
			return false
		}
	}
	return true
}

func (s *Server) forward(ctx context.Context, owner string, messages []wire.StatMessage, onePod bool, keys wire.Keys) error {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	url := "http://" + net.JoinHostPort(owner, strconv.Itoa(wire.PortStats)) + wire.PathStats
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(wire.EncodeStats(messages)))
	if err != nil {
		return fmt.Errorf("forward stats to %s: %w", owner, err)
	}
	// It is signed with the reporter's token, so that the owner trusts it no more than this replica
	// did.
	token := keys.Token("", wire.ActivatorSubject)
	if onePod {
		token = keys.Token(messages[0].Namespace, messages[0].Revision)
	}
	request.Header.Set(headerForwarded, "1")
	client := s.Client
	if client == nil {
		client = http.DefaultClient
	}
	response, err := s.signer.Do(client, request, token)
	if err != nil {
		return fmt.Errorf("forward stats to %s: %w", owner, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return fmt.Errorf("forward stats to %s: it answered %s: %s", owner, response.Status, strings.TrimSpace(string(text)))
	}
	return nil
}
