// Package install installs what this project needs on a running Kubernetes:
// DNS, the Gateway API, Istio, Ebb and its samples.
//
// Owns: the order and the settings. Reads: the cluster. Writes: objects, by
// kubectl, so that a person can do each step by hand. Never: defines an
// object of Ebb in Go; those are YAML in config/.
package install

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// Kubectl runs kubectl.
type Kubectl struct {
	Path   string
	Config string
}

// Run returns what kubectl prints on standard output; standard error is part of the error.
func (k Kubectl) Run(ctx context.Context, input []byte, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, k.Path, append([]string{"--kubeconfig", k.Config}, args...)...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	if input != nil {
		cmd.Stdin = bytes.NewReader(input)
	}
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out, nil
}

// Apply applies manifests and says how many objects changed.
func (k Kubectl) Apply(ctx context.Context, manifests []byte) (changed int, err error) {
	out, err := k.Run(ctx, manifests, "apply", "--server-side", "--force-conflicts", "--field-manager=ebb-dev", "-f", "-")
	return countChanged(string(out)), err
}

func countChanged(out string) int {
	n := 0
	for line := range strings.Lines(out) {
		if line := strings.TrimSpace(line); line != "" && !strings.HasSuffix(line, " unchanged") {
			n++
		}
	}
	return n
}

// Get reads an object into a value.
func (k Kubectl) Get(ctx context.Context, into any, args ...string) error {
	out, err := k.Run(ctx, nil, append([]string{"get", "-o", "json"}, args...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal(out, into)
}

// Rollout waits until what, such as deployment/activator, serves its newest template. If it does
// not within the limit, the error shows the state of its pods.
func (k Kubectl) Rollout(ctx context.Context, namespace, what string, limit time.Duration) error {
	_, err := k.Run(ctx, nil, "-n", namespace, "rollout", "status", what, "--timeout="+limit.String())
	if err == nil {
		return nil
	}
	pods, _ := k.Run(ctx, nil, "-n", namespace, "get", "pods", "-o", "wide")
	events, _ := k.Run(ctx, nil, "-n", namespace, "get", "events", "--field-selector=type=Warning", "--sort-by=.lastTimestamp",
		"-o", "custom-columns=OBJECT:.involvedObject.name,REASON:.reason,MESSAGE:.message")
	return fmt.Errorf("%w\n%s\n%s", err, pods, lastLines(string(events), 10))
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}
