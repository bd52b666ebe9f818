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
	Disk      func(dir string) (Disk, error)
	Listeners func() ([]Listener, error)
	Holder    func(inode string) string // the program that has the socket open, "" if unknown
}

// Disk is a file system.
type Disk struct {
	Device     uint64 // folders with the same one share what is free
	Size, Free uint64 // bytes
}

// Listener is a listening TCP socket.
type Listener struct {
	Address netip.AddrPort
	Inode   string
}

// Needs is what the cluster needs of the machine.
type Needs struct {
	Root  string            // checkout
	Dirs  map[string]uint64 // folder -> bytes that will be written
	Kept  map[string]uint64 // folder -> percent of its disk that must stay free
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
	if err := m.room(n); err != nil {
		return err
	}
	return m.ports(n.Ports)
}

// room refuses if a disk has too little free for all folders that are on it.
func (m Machine) room(n Needs) error {
	type use struct {
		dirs         []string
		free         uint64
		writes, kept uint64
	}
	uses := map[uint64]*use{}
	for _, dir := range slices.Sorted(maps.Keys(n.Dirs)) {
		disk, err := m.Disk(dir)
		if err != nil {
			return fmt.Errorf("read the free space of %s: %w", dir, err)
		}
		u := uses[disk.Device]
		if u == nil {
			u = &use{}
			uses[disk.Device] = u
		}
		u.dirs, u.free = append(u.dirs, dir), disk.Free
		u.writes += n.Dirs[dir]
		u.kept = max(u.kept, disk.Size/100*n.Kept[dir])
	}
	for _, device := range slices.Sorted(maps.Keys(uses)) {
		u := uses[device]
		if want := u.writes + u.kept; u.free < want {
			why := ""
			if u.kept > 0 {
				why = fmt.Sprintf(", %s of that to stay free, because the kubelet deletes images when there is less", Size(u.kept))
			}
			return fmt.Errorf("the disk is full: it has %s free for %s and the cluster needs %s%s: free some space, for example with `go clean -cache`",
				Size(u.free), strings.Join(u.dirs, ", "), Size(want), why)
		}
	}
	return nil
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

// DiskOf is the file system that dir is on, or its nearest parent that exists. Free is what the
// kubelet counts, too.
func DiskOf(dir string) (Disk, error) {
	for {
		var f syscall.Stat_t
		var s syscall.Statfs_t
		err := syscall.Stat(dir, &f)
		if err == nil {
			err = syscall.Statfs(dir, &s)
		}
		if err == nil {
			return Disk{Device: f.Dev, Size: s.Blocks * uint64(s.Bsize), Free: s.Bavail * uint64(s.Bsize)}, nil
		}
		if !errors.Is(err, os.ErrNotExist) || dir == "/" {
			return Disk{}, err
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
