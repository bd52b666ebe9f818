package wire

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// MaxBirthBytes bounds the body of an answer to GET PathBirths.
const MaxBirthBytes = 1024

// Birth is what the autoscaler knows of a pod's start, for the activator's account of a cold start.
// A zero time means that the step is not known.
type Birth struct {
	// Asked is when the scale-up for the pod was written. Scheduled is when the autoscaler saw that
	// a node was chosen. Both are by the autoscaler's clock.
	Asked     time.Time `json:"asked,omitzero"`
	Scheduled time.Time `json:"scheduled,omitzero"`
	// Started is when the last of the pod's containers started, in whole seconds, from the pod's
	// status.
	Started time.Time `json:"started,omitzero"`
	// Pulled says that the node pulled an image for the pod. It is looked up only where the
	// containers started a second or more after Scheduled.
	Pulled bool `json:"pulled,omitempty"`
}

// DecodeBirth reads one Birth, at most MaxBirthBytes of it.
func DecodeBirth(r io.Reader) (Birth, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxBirthBytes+1))
	if err != nil {
		return Birth{}, fmt.Errorf("read birth: %w", err)
	}
	if len(data) > MaxBirthBytes {
		return Birth{}, fmt.Errorf("birth is longer than %d bytes", MaxBirthBytes)
	}
	var b Birth
	if err := json.Unmarshal(data, &b); err != nil {
		return Birth{}, fmt.Errorf("birth is not the expected JSON: %w", err)
	}
	return b, nil
}
