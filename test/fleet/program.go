package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"ebb.dev/ebb/internal/testing/process"
)

// Program is a running dashboard.
type Program struct {
	// URL is the page, PID the process.
	URL string
	PID int

	process *process.Process
}

// Build builds the dashboard in a folder, and returns its path.
func Build(ctx context.Context, folder string) (binary string, err error) {
	return filepath.Join(folder, "dashboard"), process.Build(ctx, folder, "dashboard")
}

// Run starts a dashboard in front of an API server.
func Run(binary, apiServer string) (*Program, error) {
	p, err := process.Start(exec.Command(binary), "EBB_API_SERVER="+apiServer, "EBB_LISTEN=127.0.0.1:0", "EBB_LISTEN_METRICS=127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	var built struct{ Address string }
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		alive := p.Alive() // before its last words are read
		if first, _, whole := strings.Cut(p.Output(), "\n"); whole {
			err = json.Unmarshal([]byte(first), &built)
			break
		}
		if !alive || time.Now().After(deadline) {
			break
		}
	}
	if err != nil || built.Address == "" {
		p.Stop()
		return nil, fmt.Errorf("the dashboard does not say where it listens: %v\n%s", err, p.Output())
	}
	return &Program{"http://" + built.Address + "/", p.Process.Pid, p}, nil
}

// Stop ends it, and returns what it logged.
func (p *Program) Stop() string {
	p.process.Finish(os.Interrupt)
	return p.process.Output()
}
