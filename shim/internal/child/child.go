// Package child owns every process that the shim starts, and reaps those that they leave behind.
//
// Owns: the processes' groups, pipes and exit statuses. Reads: nothing. Writes: signals. Never:
// knows what a process is for.
package child

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// linger is how long output is read that a process has left open when it ended. Its group is dead
// by then; only a process that left the group can hold the pipe.
const linger = time.Second

// Family is all processes below this one. One goroutine waits for them, because a process that is
// the container's first must reap orphans too, and os/exec would compete with it for the statuses.
type Family struct {
	// mutex keeps a process from being reaped before it is known, and from being signalled after.
	mutex    sync.Mutex
	children map[int]*Child
}

// New makes this process the parent of the orphans among its descendants. There is one Family in a
// process.
func New() *Family {
	const setChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER, for containers that share a PID namespace
	syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0)
	f := &Family{children: map[int]*Child{}}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		for range ended {
			f.reap()
		}
	}()
	return f
}

// reap collects all processes that have ended.
func (f *Family) reap() {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for pid := endedChild(); pid > 0; pid = endedChild() {
		c := f.children[pid]
		if c != nil {
			// The number belongs to the group as long as its leader is not reaped.
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		}
		var status syscall.WaitStatus
		for {
			if _, err := syscall.Wait4(pid, &status, 0, nil); err != syscall.EINTR {
				break
			}
		}
		if c != nil {
			delete(f.children, pid)
			c.status = status
			close(c.done)
			c.limitReads()
		}
	}
}

// endedChild returns a child that has ended, and leaves it a zombie; 0 if there is none.
func endedChild() int {
	const all, exited, peek = 0, 4, 0x01000000 // P_ALL, WEXITED, WNOWAIT
	var info [128]byte                         // siginfo_t
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, all, 0, uintptr(unsafe.Pointer(&info[0])), exited|syscall.WNOHANG|peek, 0, 0)
		switch errno {
		case 0:
			return int(int32(binary.NativeEndian.Uint32(info[16:]))) // si_pid, on 64-bit systems
		case syscall.EINTR:
		default:
			return 0
		}
	}
}

// Command says what to start.
type Command struct {
	Path string // as Find returned it
	Args []string
	Env  []string
	// Feed says that the process gets a standard input from Child.Stdin; otherwise it is empty.
	Feed bool
	// Inherit says that the process writes to this process's own output; otherwise to Child.Stdout
	// and Child.Stderr.
	Inherit bool
}

// Find looks a program up, as a shell does. The error says what is wrong.
func Find(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		var fault *exec.Error
		if errors.As(err, &fault) {
			err = fault.Err
		}
		return "", fmt.Errorf("find the program %s: %w", program, err)
	}
	return path, nil
}

// Child is one process and its group.
type Child struct {
	Stdin          *os.File // nil unless it is fed
	Stdout, Stderr *Output  // nil if it inherits

	family *Family
	pid    int
	done   chan struct{}
	status syscall.WaitStatus // when done is closed
}

// Output is what a process writes. After the process has ended a Read waits no longer than linger.
type Output struct {
	file  *os.File
	child *Child
}

// ErrHeld is returned by a Read of an output that another process holds open.
var ErrHeld = errors.New("a process that was left behind holds the output open")

func (o *Output) Read(p []byte) (int, error) {
	select {
	case <-o.child.done:
		_ = o.file.SetReadDeadline(time.Now().Add(linger))
	default:
	}
	n, err := o.file.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = ErrHeld
	}
	return n, err
}

// Close ends a Read that waits.
func (o *Output) Close() error { return o.file.Close() }

func (c *Child) limitReads() {
	for _, o := range []*Output{c.Stdout, c.Stderr} {
		if o != nil {
			_ = o.file.SetReadDeadline(time.Now().Add(linger)) // fails if it is closed
		}
	}
}

// Start starts a process in a group of its own. The caller closes what it is given.
func (f *Family) Start(command Command) (_ *Child, err error) {
	c := &Child{family: f, done: make(chan struct{})}
	var theirs, ours []*os.File // ends of pipes
	defer func() {
		closeAll(theirs)
		if err != nil {
			closeAll(ours)
		}
	}()
	pipe := func(write bool) (*os.File, *os.File, error) {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		if write {
			r, w = w, r
		}
		ours, theirs = append(ours, r), append(theirs, w)
		return r, w, nil
	}
	var files [3]*os.File
	if command.Feed {
		if c.Stdin, files[0], err = pipe(true); err != nil {
			return nil, err
		}
	} else {
		if files[0], err = os.Open(os.DevNull); err != nil {
			return nil, err
		}
		theirs = append(theirs, files[0])
	}
	if files[1], files[2] = os.Stdout, os.Stderr; !command.Inherit {
		c.Stdout, c.Stderr = &Output{child: c}, &Output{child: c}
		for i, o := range []*Output{c.Stdout, c.Stderr} {
			if o.file, files[1+i], err = pipe(false); err != nil {
				return nil, err
			}
		}
	}
	f.mutex.Lock()
	defer f.mutex.Unlock()
	p, err := os.StartProcess(command.Path, command.Args, &os.ProcAttr{Env: command.Env, Files: files[:],
		Sys: &syscall.SysProcAttr{Setpgid: true}})
	if err != nil {
		return nil, err
	}
	c.pid = p.Pid
	_ = p.Release() // reap waits for it
	f.children[c.pid] = c
	return c, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// Pid is the number of the process.
func (c *Child) Pid() int { return c.pid }

// Done is closed when the process has ended and its group is dead.
func (c *Child) Done() <-chan struct{} { return c.done }

// Signal sends a signal to the whole group, if the process has not ended.
func (c *Child) Signal(s syscall.Signal) {
	c.family.mutex.Lock()
	defer c.family.mutex.Unlock()
	select {
	case <-c.done:
	default:
		_ = syscall.Kill(-c.pid, s) // it may have ended meanwhile
	}
}

// End asks the group to end, kills it after grace, and waits until it is gone.
func (c *Child) End(grace time.Duration) {
	select {
	case <-c.done:
		return
	default:
	}
	c.Signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		c.Signal(syscall.SIGKILL)
		<-c.done
	}
}

// Exit says how the process has ended: its status, or -1 and the signal.
type Exit struct {
	Status int
	Signal syscall.Signal
}

// Exit is to be called when Done is closed.
func (c *Child) Exit() Exit {
	if c.status.Signaled() {
		return Exit{-1, c.status.Signal()}
	}
	return Exit{Status: c.status.ExitStatus()}
}

// OK reports whether the process has ended well.
func (e Exit) OK() bool { return e == Exit{} }

func (e Exit) String() string {
	if e.Status < 0 {
		return fmt.Sprintf("was ended by the signal %d (%s)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("ended with status %d", e.Status)
}

var _ io.ReadCloser = (*Output)(nil)
