// Package preflight checks whether the cluster can start before anything is
// started: each error says in one sentence what is wrong and how to fix it.
//
// Owns: those sentences. Reads: the machine. Writes: nothing. Never: fixes anything.
package preflight

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Machine is what the checks ask; tests replace it.
type Machine struct {
	UID       func() int
	Look      func(tool string) error
	Free      func(dir string) (uint64, error) // bytes
	Listeners func() ([]Listener, error)
	Holder    func(inode string) string // the program that has the socket open, "" if unknown
}

// Listener is a listening TCP socket.
type Listener struct {
	Address netip.AddrPort
	Inode   string
}

// Needs is what the cluster needs of the machine.
type Needs struct {
	Root  string            // checkout
	Dirs  map[string]uint64 // folder -> bytes that must be free
	Tools map[string]string // program -> how to get it
	Ports []netip.AddrPort
}

// MaxRoot bounds the checkout's path: kubelet makes unix sockets below it, whose path has at most
// 107 bytes.
const MaxRoot = 60

// Root refuses every user but root. It comes first because the other checks may need root too.
func (m Machine) Root() error {
	if m.UID() != 0 {
		return errors.New("this needs root, because it makes network interfaces, mounts and cgroups: run it as root, for example with sudo")
	}
	return nil
}

// Check returns the first need that is not met.
func (m Machine) Check(n Needs) error {
	if len(n.Root) > MaxRoot {
		return fmt.Errorf("the path of this checkout, %s, is %d bytes long and kubelet's sockets need it to be at most %d: move the checkout to a shorter path", n.Root, len(n.Root), MaxRoot)
	}
	for _, tool := range slices.Sorted(maps.Keys(n.Tools)) {
		if m.Look(tool) != nil {
			return fmt.Errorf("the program %s is missing: %s", tool, n.Tools[tool])
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(n.Dirs)) {
		free, err := m.Free(dir)
		if err != nil {
			return fmt.Errorf("read the free space of %s: %w", dir, err)
		}
		if want := n.Dirs[dir]; free < want {
			return fmt.Errorf("the disk is full: %s has %s free and the cluster needs %s: free some space, for example with `go clean -cache`", dir, Size(free), Size(want))
		}
	}
	return m.ports(n.Ports)
}

func (m Machine) ports(wanted []netip.AddrPort) error {
	if len(wanted) == 0 {
		return nil
	}
	listeners, err := m.Listeners()
	if err != nil {
		return fmt.Errorf("list the listening ports: %w", err)
	}
	for _, w := range wanted {
		for _, l := range listeners {
			if l.Address.Port() != w.Port() {
				continue
			}
			if l.Address.Addr().IsUnspecified() || l.Address.Addr().Unmap() == w.Addr() {
				who := "another program"
				if h := m.Holder(l.Inode); h != "" {
					who = h
				}
				return fmt.Errorf("port %d is taken by %s, and the cluster needs it on %s: stop that program and run this again", w.Port(), who, w.Addr())
			}
		}
	}
	return nil
}

// Size is a number of bytes for a person.
func Size(n uint64) string {
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// Free is how many bytes root may still write below dir, or below its nearest parent that exists.
func Free(dir string) (uint64, error) {
	for {
		var s syscall.Statfs_t
		err := syscall.Statfs(dir, &s)
		if err == nil {
			return s.Bavail * uint64(s.Bsize), nil
		}
		if !errors.Is(err, os.ErrNotExist) || dir == "/" {
			return 0, err
		}
		dir = filepath.Dir(dir)
	}
}

// Listeners reads the kernel's tables.
func Listeners() ([]Listener, error) {
	var all []Listener
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found, err := parseTCP(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", table, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

func parseTCP(r io.Reader) ([]Listener, error) {
	const listening = "0A"
	var found []Listener
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[3] != listening {
			continue
		}
		host, port, ok := strings.Cut(f[1], ":")
		raw, err := hex.DecodeString(host)
		number, perr := strconv.ParseUint(port, 16, 16)
		if !ok || err != nil || perr != nil || len(raw)%4 != 0 {
			return nil, fmt.Errorf("unknown address form %q", f[1])
		}
		// Each word of four bytes is in the machine's order, which is reversed.
		for i := 0; i < len(raw); i += 4 {
			raw[i], raw[i+1], raw[i+2], raw[i+3] = raw[i+3], raw[i+2], raw[i+1], raw[i]
		}
		addr, ok := netip.AddrFromSlice(raw)
		if !ok {
			return nil, fmt.Errorf("unknown address form %q", f[1])
		}
		found = append(found, Listener{netip.AddrPortFrom(addr, uint16(number)), f[9]})
	}
	return found, lines.Err()
}

// Holder finds the program that has a socket open.
func Holder(inode string) string {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, l := range links {
		if target, err := os.Readlink(l); err == nil && target == "socket:["+inode+"]" {
			pid := strings.Split(l, "/")[2]
			name, _ := os.ReadFile("/proc/" + pid + "/comm")
			return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), pid)
		}
	}
	return ""
}
