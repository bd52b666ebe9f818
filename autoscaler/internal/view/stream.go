package view

import (
	"encoding/json"
	"hash/maphash"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/internal/frontproxy"
	"ebb.dev/ebb/internal/shares"
)

const (
	// usualStream and maxStream are how long a stream lasts, in seconds.
	usualStream, maxStream = 1800, 3600
	// lookEvery is how often a stream looks for news.
	lookEvery = time.Second
	// bookmarkEvery shows that a silent stream is alive.
	bookmarkEvery = 15 * time.Second
	// allowedFor is how often a stream asks again whether its caller may read.
	allowedFor = 20 * time.Second
	// writeWithin is how long a slow reader may take for what it is sent at once.
	writeWithin = 15 * time.Second
)

// event is a line of a stream.
type event struct {
	Type   string `json:"type"`
	Object any    `json:"object"`
}

// stream sends events until the caller leaves, may no longer read, or the stream's time is over.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, caller frontproxy.User, q question) {
	places, who := []*shares.Pool{s.streams}, owner(caller)
	if q.full() {
		places = append(places, s.fullStreams)
	}
	for _, place := range places {
		if !place.Take(who, 1) {
			fail(w, busy("too many streams are open, of this user or of all"))
			return
		}
		defer place.Give(who, 1)
	}
	control := http.NewResponseController(w)
	control.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out := &lines{w: w, control: control, encoder: json.NewEncoder(w)}
	follow := s.followAll(q)
	if q.full() {
		follow = s.followOne(q, who)
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	began := time.Now()
	checked := began
	for {
		if !follow(r, out) || !out.flush() {
			return
		}
		select {
		case <-look.C:
		case <-r.Context().Done():
			return
		case <-s.stopped:
			return
		}
		now := time.Now()
		if now.Sub(began) >= q.ends {
			return
		}
		if now.Sub(checked) >= allowedFor {
			checked = now
			if err := s.allow(r.Context(), caller, q); err != nil {
				out.fail(err)
				return
			}
		}
		if now.Sub(out.wrote) >= bookmarkEvery {
			out.send("BOOKMARK", v1alpha1.ServiceView{TypeMeta: metav1.TypeMeta{Kind: v1alpha1.Kind, APIVersion: v1alpha1.GroupVersion.String()},
				Revisions: []v1alpha1.RevisionView{}})
		}
	}
}

// followAll returns a function that sends what changed on the board since its last call.
func (s *Server) followAll(q question) func(*http.Request, *lines) bool {
	var seen uint64
	first := true
	return func(r *http.Request, out *lines) bool {
		entries, round, _ := s.board.now(r.Context())
		for _, e := range entries {
			if q.namespace != "" && q.namespace != e.namespace || !first && e.changed <= seen {
				continue
			}
			switch {
			case !e.deleted.IsZero():
				if !first {
					out.send("DELETED", e.text)
				}
			case first || e.added > seen:
				out.send("ADDED", e.text)
			default:
				out.send("MODIFIED", e.text)
			}
			if out.failed {
				return false
			}
		}
		seen, first = round, false
		return true
	}
}

// followOne returns a function that sends the whole view of a Service if it changed.
func (s *Server) followOne(q question, who string) func(*http.Request, *lines) bool {
	sent := false
	var hash uint64
	return func(r *http.Request, out *lines) bool {
		if !take(r.Context(), s.questions, who) {
			return r.Context().Err() == nil // a later look tells it
		}
		v, _, err := s.one(r.Context(), q.scope)
		s.questions.Give(who, 1)
		switch {
		case apierrors.IsNotFound(err) && sent:
			sent = false
			out.send("DELETED", v1alpha1.ServiceView{TypeMeta: metav1.TypeMeta{Kind: v1alpha1.Kind, APIVersion: v1alpha1.GroupVersion.String()},
				ObjectMeta: metav1.ObjectMeta{Namespace: q.namespace, Name: q.service}, Revisions: []v1alpha1.RevisionView{}})
		case err != nil: // it is not there, or those who know it do not answer
		default:
			text, _ := json.Marshal(still(*v))
			now := maphash.Bytes(s.board.seed, text)
			if !sent {
				out.send("ADDED", v)
			} else if now != hash {
				out.send("MODIFIED", v)
			}
			sent, hash = true, now
		}
		return !out.failed
	}
}

// lines are what was sent to one reader.
type lines struct {
	w       http.ResponseWriter
	control *http.ResponseController
	encoder *json.Encoder
	wrote   time.Time
	pending bool
	failed  bool
}

func (l *lines) send(kind string, object any) {
	if !l.pending {
		l.pending, l.wrote = true, time.Now()
		l.control.SetWriteDeadline(l.wrote.Add(writeWithin))
	}
	if err := l.encoder.Encode(event{kind, object}); err != nil {
		l.failed = true
	}
}

func (l *lines) fail(err error) {
	if known, ok := err.(apierrors.APIStatus); ok {
		status := known.Status()
		status.Kind, status.APIVersion = "Status", "v1"
		l.send("ERROR", status)
		l.flush()
	}
}

// flush sends what is held back. The first time it sends the head of the answer.
func (l *lines) flush() bool {
	if !l.pending && !l.wrote.IsZero() {
		return true
	}
	if l.wrote.IsZero() {
		l.wrote = time.Now()
	}
	l.pending = false
	return !l.failed && l.control.Flush() == nil
}
