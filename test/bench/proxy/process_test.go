package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
)

func TestNoPortIsHandedOutTwiceNorChosenByTheSystem(t *testing.T) {
	from, to := 32768, 60999
	data, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	fmt.Sscan(string(data), &from, &to)
	seen := map[int]bool{}
	for range 100 {
		p := freePort()
		if p == 0 || seen[p] || p >= from && p <= to {
			t.Fatalf("port %d (returned before: %t), the system's range is %d to %d", p, seen[p], from, to)
		}
		seen[p] = true
	}
}

func TestPortsOutsideOfTheSystemsRange(t *testing.T) {
	for chosen, want := range map[string]string{
		"32768\t60999\n": "10000 20000",
		"1024 40000":     "40001 25535",
		"20000 65535":    "10000 10000",
		"":               "10000 20000",
	} {
		if low, size := outside(chosen); fmt.Sprint(low, " ", size) != want {
			t.Errorf("%q: got %d and %d of them, want %s", chosen, low, size, want)
		}
	}
}

// It is not enough that some process listens: it must be the one that was started, and it must keep
// running.
func TestAProcessThatDoesNotListenIsNotTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken, free := l.Addr().String(), fmt.Sprintf("127.0.0.1:%d", freePort())
	for name, test := range map[string]struct{ script, addr, want string }{
		"another does":    {"exec sleep 60", taken, "another process listens there"},
		"it ends":         {"echo no room; exit 3", free, "it has ended (exit status 3)\nno room"},
		"it ends at once": {"exit 3", taken, "another process listens there"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := launch(t.Context(), "it", "/bin/sh", []string{"-c", test.script}, nil, test.addr)
			if err == nil {
				p.stop()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	if !listensOn(os.Getpid(), taken) || listensOn(os.Getpid(), free) {
		t.Error("cannot tell which process listens")
	}
}
