package preflight

import (
	"errors"
	"maps"
	"net/netip"
	"strings"
	"testing"
)

func machine() Machine {
	return Machine{
		UID:       func() int { return 0 },
		Look:      func(string) error { return nil },
		Disk:      func(string) (Disk, error) { return Disk{Size: 200 << 30, Free: 100 << 30}, nil },
		Listeners: func() ([]Listener, error) { return nil, nil },
		Holder:    func(string) string { return "" },
	}
}

func TestRootIsNeeded(t *testing.T) {
	m := machine()
	if err := m.Root(); err != nil {
		t.Fatalf("root is refused: %v", err)
	}
	m.UID = func() int { return 1000 }
	if err := m.Root(); err == nil || !strings.Contains(err.Error(), "as root") {
		t.Fatalf("a common user is not told to be root: %v", err)
	}
}

func TestCheckSaysWhatAndHowToMendIt(t *testing.T) {
	node := netip.MustParseAddrPort("10.88.0.1:6443")
	needs := Needs{
		Root:  "/root/ebb",
		Dirs:  map[string]uint64{"/root/ebb/.dev": 4 << 30},
		Tools: map[string]string{"go": "install Go 1.26"},
		Ports: []netip.AddrPort{node},
	}
	listen := func(address string) func() ([]Listener, error) {
		return func() ([]Listener, error) { return []Listener{{netip.MustParseAddrPort(address), "77"}}, nil }
	}
	for name, c := range map[string]struct {
		change func(*Machine, *Needs)
		want   []string // nil: no error
	}{
		"a machine that has everything": {change: func(*Machine, *Needs) {}},
		"a path too long for kubelet's sockets": {
			change: func(_ *Machine, n *Needs) { n.Root = "/" + strings.Repeat("x", MaxRoot) },
			want:   []string{"path of this checkout", "move the checkout"},
		},
		"a missing program": {
			change: func(m *Machine, _ *Needs) { m.Look = func(string) error { return errors.New("no") } },
			want:   []string{"program go is missing", "install Go 1.26"},
		},
		"a full disk": {
			change: func(m *Machine, _ *Needs) {
				m.Disk = func(string) (Disk, error) { return Disk{Free: 1 << 29}, nil }
			},
			want: []string{"disk is full", "0.5 GiB free", "4.0 GiB", "free some space"},
		},
		"a disk that is full with all folders on it": {
			change: func(m *Machine, n *Needs) {
				n.Dirs["/root/.cache"] = 97 << 30
			},
			want: []string{"disk is full", "100.0 GiB free for /root/.cache, /root/ebb/.dev", "needs 101.0 GiB"},
		},
		"folders on two disks": {
			change: func(m *Machine, n *Needs) {
				n.Dirs["/root/.cache"] = 97 << 30
				m.Disk = func(dir string) (Disk, error) { return Disk{Device: uint64(len(dir)), Free: 100 << 30}, nil }
			},
		},
		"a disk that has room, but for what the kubelet wants": {
			change: func(m *Machine, n *Needs) {
				n.Kept = map[string]uint64{"/root/ebb/.dev": 1}
				m.Disk = func(string) (Disk, error) { return Disk{Size: 200 << 30, Free: 5 << 30}, nil }
			},
			want: []string{"5.0 GiB free", "needs 6.0 GiB", "2.0 GiB of that to stay free", "the kubelet deletes images"},
		},
		"a port taken on every address": {
			change: func(m *Machine, _ *Needs) {
				m.Listeners = listen("0.0.0.0:6443")
				m.Holder = func(inode string) string { return "nginx (pid 42) of inode " + inode }
			},
			want: []string{"port 6443", "nginx (pid 42) of inode 77", "stop that program"},
		},
		"a port taken on every address of both families": {
			change: func(m *Machine, _ *Needs) { m.Listeners = listen("[::]:6443") },
			want:   []string{"port 6443", "another program"},
		},
		"a port taken on the very address, in IPv6 clothes": {
			change: func(m *Machine, _ *Needs) { m.Listeners = listen("[::ffff:10.88.0.1]:6443") },
			want:   []string{"port 6443"},
		},
		"the same port on another address": {
			change: func(m *Machine, _ *Needs) { m.Listeners = listen("127.0.0.1:6443") },
		},
		"another port": {
			change: func(m *Machine, _ *Needs) { m.Listeners = listen("0.0.0.0:8080") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, n := machine(), needs
			n.Dirs = maps.Clone(needs.Dirs)
			c.change(&m, &n)
			err := m.Check(n)
			if c.want == nil {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if err == nil {
				t.Fatal("not refused")
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one sentence: %q", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
}

func TestListenersOfTheKernelsTable(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:192B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0
   1: 0100007F:192B 0100007F:A000 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100 0 0 10 0
   2: 0000000000000000FFFF00000100580A:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4713 1
`
	got, err := parseTCP(strings.NewReader(table))
	if err != nil {
		t.Fatal(err)
	}
	want := []Listener{
		{netip.MustParseAddrPort("127.0.0.1:6443"), "4711"},
		{netip.MustParseAddrPort("[::ffff:10.88.0.1]:80"), "4713"},
	}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Fatalf("got %v, want %v: an established connection is no listener", got, want)
	}
	if _, err := parseTCP(strings.NewReader("head\n 0: zz:1 x 0A 0 0 0 0 0 0 0\n")); err == nil {
		t.Error("an unknown form is taken silently")
	}
}

func TestTheDiskIsThatOfTheNearestFolderThatExists(t *testing.T) {
	dir := t.TempDir()
	here, err := DiskOf(dir)
	if err != nil || here.Free == 0 || here.Free > here.Size {
		t.Fatalf("got %+v, %v", here, err)
	}
	if below, err := DiskOf(dir + "/not/yet/there"); err != nil || below.Device != here.Device || below.Size != here.Size {
		t.Fatalf("got %+v, %v, want %+v", below, err, here)
	}
}
