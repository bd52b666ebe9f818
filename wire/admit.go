package wire

import (
	"fmt"
	"io"
	"net/http"
	"slices"
)

// Admit returns the signature of a message that is signed with the token of a revision, or of
// ActivatorSubject and the like, is of the present, and has not come before. It answers 401 to any
// other one.
func (g *Guard) Admit(w http.ResponseWriter, r *http.Request, keys Keys, namespace, revision string) (*Signature, bool) {
	return g.admit(w, r, func(s *Signature) bool { return s.By(keys, namespace, revision) }, subject(namespace, revision))
}

// AdmitTokens is Admit for a receiver that knows no keys, but the tokens of a subject.
func (g *Guard) AdmitTokens(w http.ResponseWriter, r *http.Request, tokens []string, subject string) (*Signature, bool) {
	return g.admit(w, r, func(s *Signature) bool { return slices.ContainsFunc(tokens, s.ByToken) }, "the "+subject)
}

func (g *Guard) admit(w http.ResponseWriter, r *http.Request, by func(*Signature) bool, whose string) (*Signature, bool) {
	s, err := ReadSignature(r)
	switch {
	case err != nil:
	case !by(s):
		err = fmt.Errorf("the message is not signed with the token of %s", whose)
	default:
		err = g.Check(s, w.Header())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return nil, false
	}
	return s, true
}

func subject(namespace, revision string) string {
	if namespace == "" {
		return "the " + revision
	}
	return "revision " + namespace + "/" + revision
}

// ReadBody returns the body that the signature is of. It answers 413 to one of more than limit
// bytes, and 401 to any other one.
func (s *Signature) ReadBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return nil, false
	}
	if !s.Covers(body) {
		http.Error(w, "the signature is of another body", http.StatusUnauthorized)
		return nil, false
	}
	return body, true
}
