package process

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"ebb.dev/ebb/test/eventually"
)

// nobody listens there.
const free = "127.0.0.1:1"

// It is not enough that some process listens: it must be the one that was started, and it must keep
// running.
func TestAProcessThatDoesNotListenIsNotTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	for name, test := range map[string]struct{ script, address, want string }{
		"another does":    {"exec sleep 60", taken, "another process listens there"},
		"it ends":         {"echo no room; exit 3", free, "it has ended (exit status 3)\nno room"},
		"it ends at once": {"exit 3", taken, "another process listens there"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Start(exec.Command("/bin/sh", "-c", test.script))
			if err != nil {
				t.Fatal(err)
			}
			defer p.Stop()
			if err := p.AwaitListening(t.Context(), test.address); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	if !listensOn(os.Getpid(), taken) || listensOn(os.Getpid(), free) {
		t.Error("cannot tell which process listens")
	}
}

func TestAProcessEndsByItsSignalAndKeepsItsOutput(t *testing.T) {
	p, err := Start(exec.Command("/bin/sh", "-c", `trap 'kill $!; echo "bye $WHO" >&2; exit 4' TERM; sleep 60 & echo begun; wait`), "WHO=all")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	eventually.True(t, "it waits", func() bool { return p.Output() == "begun\n" })
	p.Finish(syscall.SIGTERM)
	if p.Alive() || p.ProcessState.ExitCode() != 4 || p.Output() != "begun\nbye all\n" {
		t.Errorf("it ended with %v and %q", p.ProcessState, p.Output())
	}
}
