package wire

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// MaxBirthBytes bounds the body of an answer to GET PathBirths.
const MaxBirthBytes = 1024

// Birth is what the autoscaler knows of how a pod came to be, for the activator's account of a cold
// start. A zero time is a step that it does not know.
type Birth struct {
	// Asked is when the scale-up that the pod belongs to had been written, Scheduled when a node
	// was seen to be chosen: both by the autoscaler's clock.
	Asked     time.Time `json:"asked,omitzero"`
	Scheduled time.Time `json:"scheduled,omitzero"`
	// Started is when the last of the pod's containers began to run, in whole seconds, as
	// Kubernetes has it.
	Started time.Time `json:"started,omitzero"`
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
