package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
)

// Bounds of a POST to PathReach and of its answer.
const (
	MaxReach      = 64
	MaxReachBytes = 8 << 10
)

// HeaderReachProof has the proof that an activator, or a node agent, gave the answer to a
// ReachQuestion.
const HeaderReachProof = "Ebb-Reach-Proof"

// ReachQuestion is what an autoscaler asks an activator or a node agent: at which of these pods
// does somebody answer? It may have none, to ask where the activator runs.
type ReachQuestion struct {
	Pods []netip.Addr `json:"pods"`
}

// ReachAnswer is the answer. A pod that it does not know, or that it could not ask, is in neither
// list.
type ReachAnswer struct {
	// Node is where the activator or the agent runs, "" if it does not know.
	Node string `json:"node,omitempty"`
	// Life are the pods whose node's kernel answered, also if it refused a connection. Silent are
	// those where nobody answered in time. A node agent lists only pods there that have answered it
	// in the minute before.
	Life   []netip.Addr `json:"life,omitempty"`
	Silent []netip.Addr `json:"silent,omitempty"`
}

var errReach = errors.New("a question or an answer about pods is not valid")

// DecodeReachQuestion reads a question.
func DecodeReachQuestion(data []byte) (ReachQuestion, error) {
	var q ReachQuestion
	if err := json.Unmarshal(data, &q); err != nil {
		return ReachQuestion{}, fmt.Errorf("read a question about pods: %w", err)
	}
	return q, validPods(q.Pods)
}

// DecodeReachAnswer reads an answer.
func DecodeReachAnswer(data []byte) (ReachAnswer, error) {
	var a ReachAnswer
	if err := json.Unmarshal(data, &a); err != nil {
		return ReachAnswer{}, fmt.Errorf("read an answer about pods: %w", err)
	}
	return a, errors.Join(validTexts(a.Node), validPods(a.Life), validPods(a.Silent))
}

func validPods(all []netip.Addr) error {
	if len(all) > MaxReach {
		return fmt.Errorf("%w: it has %d pods, more than %d", errReach, len(all), MaxReach)
	}
	for _, a := range all {
		if !a.IsValid() || a.Zone() != "" {
			return fmt.Errorf("%w: the address %.40q", errReach, a.String())
		}
	}
	return nil
}
