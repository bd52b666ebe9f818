package child

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ebb.dev/ebb/test/eventually"
)

// family is one for all tests, as in a program.
var family = New()

func start(t *testing.T, feed bool, script string) *Child {
	t.Helper()
	path, err := Find("sh")
	if err != nil {
		t.Fatal(err)
	}
	c, err := family.Start(Command{Path: path, Args: []string{"sh", "-c", script}, Env: os.Environ(), Feed: feed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.End(0)
		c.Stdout.Close()
		c.Stderr.Close()
	})
	return c
}

func ended(t *testing.T, c *Child) Exit {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(time.Minute):
		t.Fatal("the process did not end")
	}
	return c.Exit()
}

// gone waits until no process has the number, not even a zombie.
func gone(t *testing.T, pid int) {
	t.Helper()
	eventually.True(t, fmt.Sprintf("process %d is gone", pid), func() bool { return syscall.Kill(pid, 0) != nil })
}

func TestAProcessReadsAndWritesAndEndsWithAStatus(t *testing.T) {
	c := start(t, true, "cat; echo told >&2; exit 3")
	go func() {
		io.WriteString(c.Stdin, "words")
		c.Stdin.Close()
	}()
	out, err := io.ReadAll(c.Stdout)
	if string(out) != "words" || err != nil {
		t.Errorf("it wrote %q, %v", out, err)
	}
	var lines []string
	Lines(c.Stderr, func(line string) { lines = append(lines, line) })
	if !slices.Equal(lines, []string{"told"}) {
		t.Errorf("stderr %q", lines)
	}
	if e := ended(t, c); e.Status != 3 || e.OK() || e.String() != "ended with status 3" {
		t.Errorf("it %s", e)
	}
	gone(t, c.Pid())
}

func TestTheGroupIsKilledWhenItDoesNotEnd(t *testing.T) {
	c := start(t, false, "trap '' TERM; sleep 1000 & echo $!; while :; do wait; done")
	var below int
	if _, err := fmt.Fscan(c.Stdout, &below); err != nil {
		t.Fatal(err)
	}
	c.End(0)
	if e := ended(t, c); e.Signal != syscall.SIGKILL || e.String() != "was ended by the signal 9 (killed)" {
		t.Errorf("it %s", e)
	}
	gone(t, below)
	c.Signal(syscall.SIGKILL) // reaches nobody
}

func TestWhatAProcessLeavesInItsGroupIsKilled(t *testing.T) {
	c := start(t, false, "sleep 1000 & echo $!")
	out, err := io.ReadAll(c.Stdout)
	if err != nil {
		t.Fatalf("its child holds the output: %v", err)
	}
	below, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	if e := ended(t, c); !e.OK() {
		t.Errorf("it %s", e)
	}
	gone(t, below)
}

// An orphan has another parent than the process that started it: this one, which must reap it.
func TestOrphansAreReaped(t *testing.T) {
	if _, err := Find("setsid"); err != nil {
		t.Skip("there is no setsid")
	}
	c := start(t, true, "setsid sh -c 'echo $$; exec sleep 0.05' & read nothing; exit 0")
	var orphan int
	if _, err := fmt.Fscan(c.Stdout, &orphan); err != nil {
		t.Fatal(err)
	}
	c.Stdin.Close()
	ended(t, c)
	gone(t, orphan)
}

func TestAReadDoesNotWaitForAProcessThatHasLeftTheGroup(t *testing.T) {
	if _, err := Find("setsid"); err != nil {
		t.Skip("there is no setsid")
	}
	c := start(t, true, "setsid sh -c 'echo $$; exec sleep 1000' & read nothing; exit 0")
	var left int
	if _, err := fmt.Fscan(c.Stdout, &left); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(left, syscall.SIGKILL)
	c.Stdin.Close()
	ended(t, c)
	if _, err := io.ReadAll(c.Stdout); err != ErrHeld {
		t.Errorf("got %v, want %v", err, ErrHeld)
	}
}

func TestManyProcessesAtATimeEachEndWithTheirOwnStatus(t *testing.T) {
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			c := start(t, false, fmt.Sprintf("exit %d", i))
			if e := ended(t, c); e.Status != i {
				t.Errorf("process %d %s", i, e)
			}
		})
	}
	all.Wait()
}

func TestAProgramThatIsNotThereIsNamed(t *testing.T) {
	if _, err := Find("no-such-program"); err == nil || err.Error() != "find the program no-such-program: executable file not found in $PATH" {
		t.Errorf("got %v", err)
	}
	if _, err := family.Start(Command{Path: "/no/such/file", Args: []string{"x"}}); err == nil {
		t.Error("it started")
	}
}

func TestLinesAreBroken(t *testing.T) {
	var lines []string
	long := strings.Repeat("x", maxLine)
	Lines(strings.NewReader("a\r\n\n"+long+"yz\nend"), func(line string) { lines = append(lines, line) })
	if !slices.Equal(lines, []string{"a", long, "yz", "end"}) {
		t.Errorf("got %d lines: %.40q", len(lines), lines)
	}
}

func TestLinesBeyondTheRateAreCountedAndTold(t *testing.T) {
	r, now := NewRate(2), time.Unix(0, 0)
	for i, want := range []bool{true, true, false, false} {
		if pass, missed := r.Pass(now); pass != want || missed != 0 {
			t.Errorf("line %d: %v, %d missed", i, pass, missed)
		}
	}
	if pass, missed := r.Pass(now.Add(time.Second)); !pass || missed != 2 {
		t.Errorf("the next second: %v, %d missed, want 2", pass, missed)
	}
}
