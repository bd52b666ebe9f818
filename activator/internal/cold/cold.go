// Package cold is what a revision's annotations want for requests that find no pod: a page for
// browsers, another Service after a while, an answer for those that are not worth a pod, and how
// many may wait how long.
//
// Owns: the judgement of one request by these rules. Reads: what a Revision means, once for each
// change of it. Writes: nothing. Never: looks at a clock, at other revisions, or at a
// request of a revision without such annotations.
package cold

import (
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/forward"
)

// refreshAfter is after how many seconds a browser asks again, and a client that is told to.
const refreshAfter = 2

// maxAgentBytes is how much of a User-Agent is looked at.
const maxAgentBytes = 512

// Rules are those of one revision. They are immutable. Nil has none.
type Rules struct {
	// Page is the answer for browsers, after PageAfter; without a Body there is none.
	Page      forward.Reply
	PageAfter time.Duration
	// Fallback is the Service that gets requests after FallbackAfter; "" is none.
	// FallbackRevision is its revision, "" if that is not known.
	Fallback, FallbackRevision string
	FallbackAfter              time.Duration
	// MaxWaiting is how many requests may wait, MaxWait how long; 0 is no limit of the revision's.
	MaxWaiting int64
	MaxWait    time.Duration
	// NeverWake is the answer to requests that wake no pod.
	NeverWake forward.Reply

	paths  []names.PathPattern
	agents []string
}

// Of returns the rules of a Revision, nil if it has none. resolved are the annotations of its
// status: what the controller knows of the objects that it names.
func Of(c names.Cold, resolved map[string]string) *Rules {
	page := c.Page
	if c.PageFrom != (names.ConfigMapKey{}) {
		page = resolved[names.WaitingPageAnnotation]
	}
	r := Rules{
		Fallback: c.Fallback, FallbackAfter: c.FallbackAfter, FallbackRevision: resolved[names.FallbackRevisionAnnotation],
		MaxWaiting: c.MaxWaiting, MaxWait: c.MaxWait,
		paths: c.NeverWakePaths, agents: c.NeverWakeAgents,
	}
	if page != "" && len(page) <= names.MaxPageBytes {
		r.Page, r.PageAfter = pageReply(page, c.PageStatus), c.PageAfter
	}
	if len(r.paths)+len(r.agents) > 0 {
		r.NeverWake = neverWakeReply(c.NeverWakeStatus)
	}
	if r.Page.Body == "" && r.Fallback == "" && r.MaxWaiting == 0 && r.MaxWait == 0 && r.NeverWake.Status == 0 {
		return nil
	}
	return &r
}

func pageReply(page string, status int) forward.Reply {
	again := strconv.Itoa(refreshAfter)
	header := []forward.Header{
		{Name: "Cache-Control", Value: "no-store"},
		{Name: "X-Content-Type-Options", Value: "nosniff"},
		{Name: "Refresh", Value: again},
	}
	if status == 503 { // with another status the field means nothing (RFC 9110, section 10.2.3)
		header = append(header, forward.Header{Name: "Retry-After", Value: again})
	}
	return forward.Reply{Status: status, Type: "text/html; charset=utf-8", Body: page, Header: header}
}

func neverWakeReply(status int) forward.Reply {
	reply := forward.Reply{Status: status, Header: []forward.Header{{Name: "Cache-Control", Value: "no-store"}}}
	if status != 204 {
		reply.Body = "there is no pod, and such a request wakes none"
	}
	if status == 503 {
		reply.Header = append(reply.Header, forward.Header{Name: "Retry-After", Value: "60"})
	}
	return reply
}

// WakesNone reports whether a request wakes no pod. It takes one pass over path and agent for each
// pattern, and admission bounds those.
func (r *Rules) WakesNone(path, agent string) bool {
	if r == nil || r.NeverWake.Status == 0 {
		return false
	}
	for _, p := range r.paths {
		if p.Match(path) {
			return true
		}
	}
	agent = agent[:min(len(agent), maxAgentBytes)]
	for _, part := range r.agents {
		if containsFold(agent, part) {
			return true
		}
	}
	return false
}

// Waiting is how many requests may wait; 0 is no limit of the revision's.
func (r *Rules) Waiting() int64 {
	if r == nil {
		return 0
	}
	return r.MaxWaiting
}

// containsFold reports whether text contains part, whatever the case of ASCII letters.
func containsFold(text, part string) bool {
	for i := 0; i+len(part) <= len(text); i++ {
		if lower(text[i]) == lower(part[0]) && strings.EqualFold(text[i:i+len(part)], part) {
			return true
		}
	}
	return false
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}
