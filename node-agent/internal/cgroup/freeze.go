package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// look is how often the kernel is asked whether all tasks are frozen. Tasks freeze when they next
// return to user mode, most of them at once.
const look = 200 * time.Microsecond

// lowest is the nice value of the thread that compresses.
const lowest = 19

// Freeze freezes the containers of a pod. When it returns nil, none of their tasks runs. When it
// returns an error, some of them may be frozen. A task that waits for a disk or a network file
// system cannot be frozen; ctx bounds how long that is tried.
func (t *Tree) Freeze(ctx context.Context, uid string, ids []string) error {
	dirs, err := t.containers(uid, ids)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := t.mark(dir); err != nil {
			return err
		}
		if err := t.write(t.freezer, path.Join(dir, t.files.state), t.files.freeze); err != nil {
			return err
		}
	}
	for _, dir := range dirs {
		if err := t.await(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree) await(ctx context.Context, dir string) error {
	for {
		text, err := t.read(t.freezer, path.Join(dir, t.files.event))
		if err != nil {
			return err
		}
		if strings.Contains(text, t.files.frozen) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("a task did not freeze in time: it may wait for a disk")
		case <-time.After(look):
		}
		// In version 1 a task that was forked meanwhile has to be told again.
		if err := t.write(t.freezer, path.Join(dir, t.files.state), t.files.freeze); err != nil {
			return err
		}
	}
}

// Thaw thaws the containers of a pod that Freeze froze. A pod that is gone needs no thawing.
func (t *Tree) Thaw(uid string) error {
	pod, err := t.pod(uid)
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	dirs, err := t.list(pod)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		if t.marked(dir) {
			errs = append(errs, t.thaw(dir))
		}
	}
	return errors.Join(errs...)
}

// ThawAll thaws every container of the node that Freeze froze, of whichever process, and returns
// how many there were. What others froze stays frozen: a runtime pauses a container to save it.
func (t *Tree) ThawAll() (int, error) {
	dirs, err := t.all()
	errs := []error{err}
	thawed := 0
	for _, dir := range dirs {
		text, err := t.read(t.freezer, path.Join(dir, t.files.state))
		if err != nil && !errors.Is(err, ErrGone) {
			errs = append(errs, err)
		}
		if err != nil || strings.TrimSpace(text) == t.files.thaw || !t.marked(dir) {
			continue
		}
		thawed++
		errs = append(errs, t.thaw(dir))
	}
	return thawed, errors.Join(errs...)
}

func (t *Tree) thaw(dir string) error {
	err := t.write(t.freezer, path.Join(dir, t.files.state), t.files.thaw)
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err == nil {
		t.unmark(dir)
	}
	return err
}

// Compress moves the memory of frozen containers to swap, as far as the kernel can. It takes up to
// some hundred milliseconds and ends early with ctx.
func (t *Tree) Compress(ctx context.Context, uid string, ids []string) error {
	dirs, err := t.containers(uid, ids)
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		amount := "0"
		if t.files == version2 {
			text, err := t.read(t.memory, path.Join(dir, "memory.current"))
			if err != nil {
				return err
			}
			amount = strings.TrimSpace(text)
		}
		file, err := t.memory.OpenFile(path.Join(dir, t.files.compress), os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("compress: %w", gone(err))
		}
		err = writeUntil(ctx, file, amount)
		_ = file.Close()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// EAGAIN and EBUSY: something was moved, but not all of it.
		if err != nil && !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EBUSY) {
			errs = append(errs, fmt.Errorf("compress: write %s: %w", file.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// writeUntil writes to a file of the kernel that works during the write. When ctx ends, a signal
// interrupts the write.
func writeUntil(ctx context.Context, file *os.File, text string) error {
	var thread atomic.Int64
	written := make(chan error, 1)
	go func() {
		// The thread is not unlocked: it ends with the goroutine, and no late signal hits another.
		runtime.LockOSThread()
		// Threads that freeze and thaw go first.
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, lowest)
		thread.Store(int64(unix.Gettid()))
		_, err := unix.Write(int(file.Fd()), []byte(text))
		thread.Store(0)
		written <- err
	}()
	var again <-chan time.Time
	done := ctx.Done()
	for {
		select {
		case err := <-written:
			return err
		case <-done:
			done = nil
		case <-again:
		}
		// A signal that comes before the write has begun does not interrupt it, so it is repeated.
		if id := thread.Load(); id != 0 {
			_ = unix.Tgkill(unix.Getpid(), int(id), unix.SIGURG)
		}
		again = time.After(time.Millisecond)
	}
}

// HasSwap reports whether the node has swap, as /proc/meminfo tells.
func HasSwap(meminfo string) bool {
	for line := range strings.Lines(meminfo) {
		if size, ok := strings.CutPrefix(line, "SwapTotal:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(size), " kB"))
			return err == nil && kib > 0
		}
	}
	return false
}

func (t *Tree) write(root *os.Root, name, text string) error {
	file, err := root.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, gone(err))
	}
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, gone(err))
	}
	return nil
}

func (t *Tree) read(root *os.Root, name string) (string, error) {
	text, err := root.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", name, gone(err))
	}
	return string(text), nil
}

// gone names the errors of a cgroup that was removed before or after its file was opened.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}
