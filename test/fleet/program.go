package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Program is a running dashboard.
type Program struct {
	// URL is the page, PID the process.
	URL string
	PID int

	command *exec.Cmd
	log     chan string
}

// Build builds the dashboard in a folder, and returns its path.
func Build(ctx context.Context, folder string) (binary string, err error) {
	binary = filepath.Join(folder, "dashboard")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "ebb.dev/ebb/dashboard").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the dashboard: %w\n%s", err, out)
	}
	return binary, nil
}

// Run starts a dashboard in front of an API server.
func Run(binary, apiServer string) (*Program, error) {
	p := &Program{command: exec.Command(binary), log: make(chan string, 1)}
	p.command.Env = append(os.Environ(), "EBB_API_SERVER="+apiServer, "EBB_LISTEN=127.0.0.1:0", "EBB_LISTEN_METRICS=127.0.0.1:0")
	p.command.Stderr = os.Stderr
	out, err := p.command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the dashboard: %w", err)
	}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start the dashboard: %w", err)
	}
	p.PID = p.command.Process.Pid
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	var built struct{ Address string }
	if err == nil {
		err = json.Unmarshal([]byte(first), &built)
	}
	if err != nil || built.Address == "" {
		_ = p.command.Process.Kill()
		return nil, fmt.Errorf("the dashboard said %q first: %v", first, err)
	}
	p.URL = "http://" + built.Address + "/"
	go func() {
		rest, _ := io.ReadAll(lines)
		p.log <- first + string(rest)
	}()
	return p, nil
}

// Stop ends it, and returns what it logged.
func (p *Program) Stop() string {
	_ = p.command.Process.Signal(os.Interrupt)
	late := time.AfterFunc(20*time.Second, func() { _ = p.command.Process.Kill() })
	defer late.Stop()
	logged := <-p.log
	_ = p.command.Wait()
	return logged
}
