// Package place has the paths of the development cluster's files.
//
// Owns: the names of its folders. Reads: the environment, for the cache.
// Writes: nothing. Never: looks at what is in the folders.
package place

import (
	"os"
	"path/filepath"
)

// Run holds what must not outlive a reboot or have a long path: pid files, sockets, and the name of
// the checkout that the machine's cluster belongs to. The path of a unix socket has at most 107
// bytes, and the path of a checkout may be long.
const Run = "/run/ebb-dev"

// Places are the folders of one checkout's cluster.
type Places struct {
	Root  string // the checkout
	Dev   string // its .dev: everything of the running cluster
	Run   string // see the constant
	Cache string // built binaries and downloads, shared by all checkouts
}

// Of returns the places for a checkout.
func Of(root string, getenv func(string) string) Places {
	cache := getenv("XDG_CACHE_HOME")
	if cache == "" {
		home := getenv("HOME")
		if home == "" {
			home = "/root"
		}
		cache = filepath.Join(home, ".cache")
	}
	return Places{
		Root:  root,
		Dev:   filepath.Join(root, ".dev"),
		Run:   Run,
		Cache: filepath.Join(cache, "ebb"),
	}
}

// NodeNames are what the nodes of a cluster with several are called, in their order.
var NodeNames = []string{"a", "b", "c", "d", "e", "f", "g", "h"}

// Node returns the places of a node: a folder of each kind for its own files, with the same names
// in it. A cluster's only node, "", has no folders of its own.
func (p Places) Node(name string) Places {
	if name != "" {
		p.Dev, p.Run = p.In("node-"+name), filepath.Join(p.Run, name)
	}
	return p
}

// In joins elements to the checkout's .dev.
func (p Places) In(elements ...string) string {
	return filepath.Join(append([]string{p.Dev}, elements...)...)
}

// Bin is the folder of the programs that the cluster runs, linked from the cache.
func (p Places) Bin(name string) string { return p.In("bin", name) }

// Log is the log file of a process or a step.
func (p Places) Log(name string) string { return p.In("log", name+".log") }

// Kubeconfig is the administrator's.
func (p Places) Kubeconfig() string { return p.In("kubeconfig") }

// Socket is containerd's.
func (p Places) Socket() string { return filepath.Join(p.Run, "containerd.sock") }

// Pids is the folder of pid files.
func (p Places) Pids() string { return filepath.Join(p.Run, "pids") }

// Owner names the checkout that the machine's cluster belongs to.
func (p Places) Owner() string { return filepath.Join(p.Run, "checkout") }

// Make creates the folders that must be there before anything starts.
func (p Places) Make() error {
	for _, dir := range []string{p.In("bin"), p.In("log"), p.In("conf"), p.Cache, p.Pids()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}
