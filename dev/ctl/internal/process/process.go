// Package process starts and stops the cluster's programs and remembers them.
//
// Owns: the pid files in one folder. Reads: /proc. Writes: pid files and logs.
// Never: signals a process that it has not recorded itself, nor a later process with
// the same number.
package process

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Program is a program that runs in the background.
type Program struct {
	Name  string
	Path  string
	Args  []string
	Enter []string // a command that goes where the program shall run and becomes Path with Args
	Env   []string // added to the environment
	Dir   string   // working directory, / by default
	Log   string   // file that takes both outputs
	Salt  string   // anything else that, when changed, asks for a restart
	Clear string   // file to remove before a start: the socket of a killed program looks ready
	Ready func(context.Context) error
	Limit time.Duration // how long Ready may fail
}

// Table keeps the pid files of one cluster.
type Table struct{ Dir string }

// record is a pid file. The same number may belong to another process by now, after a reboot or
// because numbers are reused; start and boot tell the two apart.
type record struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // field 22 of /proc/PID/stat: clock ticks since the boot
	Boot  string `json:"boot"`
	Want  string `json:"want"` // digest of what was started
	Path  string `json:"path"`
	// For another start.
	Enter []string `json:"enter,omitempty"`
	Clear string   `json:"clear,omitempty"`
}

func (t Table) file(name string) string { return filepath.Join(t.Dir, name+".json") }

func (p Program) digest() string {
	h := sha256.New()
	for _, s := range slices.Concat([]string{p.Path, p.Salt}, p.Args, p.Env, p.Enter) {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	// The path is a link into the cache; the file behind it is what runs.
	if target, err := filepath.EvalSymlinks(p.Path); err == nil {
		fmt.Fprint(h, target)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Start makes the program run as described. If it already does, Start leaves it alone; if it runs
// with other arguments, Start restarts it. It reports whether it started the program.
func (t Table) Start(ctx context.Context, p Program) (started bool, err error) {
	want := p.digest()
	if r, ok := t.running(p.Name); ok {
		if r.Want == want {
			return false, t.Wait(ctx, p)
		}
		if err := t.Stop(ctx, p.Name, 10*time.Second); err != nil {
			return false, err
		}
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return false, err
	}
	defer log.Close()
	if err := removeOld(p.Clear); err != nil {
		return false, err
	}
	cmd := command(p.Enter, p.Path, p.Args)
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = cmp.Or(p.Dir, "/")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("start %s: %w", p.Name, err)
	}
	pid := cmd.Process.Pid
	start, err := startTicks(pid)
	if errors.Is(err, os.ErrProcessDone) {
		return false, ended(p, cmd.Wait())
	}
	if err == nil {
		err = t.write(p.Name, record{PID: pid, Start: start, Boot: boot(), Want: want, Path: p.Path, Enter: p.Enter, Clear: p.Clear})
	}
	if err != nil {
		_ = cmd.Process.Kill()
		return false, fmt.Errorf("record %s: %w", p.Name, err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	ready := make(chan error, 1)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { ready <- t.Wait(waiting, p) }()
	select {
	case err := <-ready:
		return true, err
	case err := <-exited:
		cancel()
		<-ready
		_ = os.Remove(t.file(p.Name))
		return false, ended(p, err)
	}
}

// command runs the path with its arguments, through enter if there is one. Either way it has the
// number of the process that is started: what enter names has to end in an exec.
func command(enter []string, path string, args []string) *exec.Cmd {
	all := slices.Concat(enter, []string{path}, args)
	return exec.Command(all[0], all[1:]...)
}

func removeOld(file string) error {
	if file == "" {
		return nil
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func ended(p Program, status error) error {
	return fmt.Errorf("%s ended at once (%v): %s; its log is %s", p.Name, status, lastLine(p.Log), p.Log)
}

// Wait waits until a program is ready.
func (t Table) Wait(ctx context.Context, p Program) error {
	if p.Ready == nil {
		return nil
	}
	limit := p.Limit
	if limit == 0 {
		limit = 90 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := p.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %s: %w; its log is %s", p.Name, limit, err, p.Log)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Running says whether the recorded program still runs.
func (t Table) Running(name string) bool {
	_, ok := t.running(name)
	return ok
}

// PIDs are the process ids of the named programs that run.
func (t Table) PIDs(names ...string) []int {
	var pids []int
	for _, name := range names {
		if r, ok := t.running(name); ok {
			pids = append(pids, r.PID)
		}
	}
	return pids
}

// Stop ends a recorded program with SIGTERM and, after the grace period, with SIGKILL. It is not an
// error if the program does not run or was never recorded.
func (t Table) Stop(ctx context.Context, name string, grace time.Duration) error {
	r, ok := t.running(name)
	if ok {
		if err := kill(r, syscall.SIGTERM); err != nil {
			return fmt.Errorf("stop %s (pid %d): %w", name, r.PID, err)
		}
		if !gone(ctx, r, grace) {
			if err := kill(r, syscall.SIGKILL); err != nil {
				return fmt.Errorf("kill %s (pid %d): %w", name, r.PID, err)
			}
			if !gone(ctx, r, 10*time.Second) {
				return fmt.Errorf("%s (pid %d) does not end even when killed", name, r.PID)
			}
		}
	}
	if err := os.Remove(t.file(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Away kills a recorded program and starts it again, as it was started, once the duration is over
// or ctx is done.
func (t Table) Away(ctx context.Context, name string, d time.Duration) error {
	r, ok := t.running(name)
	if !ok {
		return fmt.Errorf("%s does not run", name)
	}
	proc := fmt.Sprintf("/proc/%d/", r.PID)
	arguments, err := os.ReadFile(proc + "cmdline")
	if err != nil {
		return err
	}
	environment, err := os.ReadFile(proc + "environ")
	if err != nil {
		return err
	}
	dir, err := os.Readlink(proc + "cwd")
	if err != nil {
		return err
	}
	log, err := os.Readlink(proc + "fd/1")
	if err != nil {
		return err
	}
	split := func(text []byte) []string { return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00") }
	out, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := kill(r, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %s (pid %d): %w", name, r.PID, err)
	}
	if !gone(context.WithoutCancel(ctx), r, 10*time.Second) {
		return fmt.Errorf("%s (pid %d) does not end even when killed", name, r.PID)
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	if err := removeOld(r.Clear); err != nil {
		return err
	}
	cmd := command(r.Enter, r.Path, split(arguments)[1:])
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = split(environment), dir, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s again: %w", name, err)
	}
	r.PID = cmd.Process.Pid
	if r.Start, err = startTicks(r.PID); err != nil {
		return fmt.Errorf("%s ended at once: %s", name, lastLine(log))
	}
	return t.write(name, r)
}

// Freeze stops a recorded program until the duration is over or ctx is done.
func (t Table) Freeze(ctx context.Context, name string, d time.Duration) error {
	r, ok := t.running(name)
	if !ok {
		return fmt.Errorf("%s does not run", name)
	}
	if err := kill(r, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop %s (pid %d): %w", name, r.PID, err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return kill(r, syscall.SIGCONT)
}

// Names lists what is recorded, running or not.
func (t Table) Names() []string {
	files, _ := filepath.Glob(filepath.Join(t.Dir, "*.json"))
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	return names
}

func (t Table) running(name string) (record, bool) {
	text, err := os.ReadFile(t.file(name))
	if err != nil {
		return record{}, false
	}
	var r record
	if json.Unmarshal(text, &r) != nil || r.PID <= 1 || r.Boot != boot() {
		return record{}, false
	}
	return r, alive(r)
}

func (t Table) write(name string, r record) error {
	if err := os.MkdirAll(t.Dir, 0o755); err != nil {
		return err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	part := t.file(name) + ".part"
	if err := os.WriteFile(part, text, 0o644); err != nil {
		return err
	}
	return os.Rename(part, t.file(name))
}

func alive(r record) bool {
	start, err := startTicks(r.PID)
	return err == nil && start == r.Start
}

func kill(r record, s syscall.Signal) error {
	if !alive(r) {
		return nil
	}
	err := syscall.Kill(r.PID, s)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

func gone(ctx context.Context, r record, within time.Duration) bool {
	end := time.Now().Add(within)
	for alive(r) {
		if time.Now().After(end) {
			return false
		}
		select {
		case <-ctx.Done():
			return !alive(r)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return true
}

// startTicks says when a process started. A zombie counts as ended when its last thread has: until
// then, other threads of it may hold its ports.
func startTicks(pid int) (string, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", err
	}
	ticks, err := parseStat(string(text))
	if err != nil {
		return "", fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	return ticks, nil
}

// parseStat reads the content of /proc/PID/stat.
func parseStat(text string) (startTicks string, err error) {
	// The second field is the name in brackets and may contain any character.
	fields := strings.Fields(text[strings.LastIndex(text, ")")+1:])
	if len(fields) < 20 {
		return "", errors.New("it has an unknown form")
	}
	const threads = 17 // field 20 of /proc/PID/stat
	if fields[0] == "X" || fields[0] == "Z" && (fields[threads] == "0" || fields[threads] == "1") {
		return "", os.ErrProcessDone
	}
	return fields[19], nil
}

func boot() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// lastLine is the newest line of a log, for error messages.
func lastLine(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	last := lines[len(lines)-1]
	if len(last) > 400 {
		last = last[:400] + "..."
	}
	return last
}
