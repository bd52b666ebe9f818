// Package podkey makes the token by which this pod speaks for its revision.
//
// Owns: nothing. Reads: the file of the namespace's key, which the kubelet replaces when the key is
// rotated. Writes: nothing. Never: sends the key.
package podkey

import (
	"bytes"
	"os"
	"sync"
	"time"

	"ebb.dev/ebb/wire"
)

// again is how often the file is read at most. The kubelet takes a minute to show a new key, and
// the key before it is accepted for an hour.
const again = 10 * time.Second

// Key is the key of a namespace, in a file.
type Key struct {
	path, revision string

	mu    sync.Mutex
	token string
	read  time.Time
}

// New returns the key at path for a pod of revision.
func New(path, revision string) *Key { return &Key{path: path, revision: revision} }

// Token returns the token as of now, and "" while there is no key.
func (k *Key) Token() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.token != "" && time.Since(k.read) < again {
		return k.token
	}
	// A file that is away keeps the token: the kubelet may be replacing it.
	if key, err := os.ReadFile(k.path); err == nil && len(bytes.TrimSpace(key)) > 0 {
		k.token, k.read = wire.PodToken(bytes.TrimSpace(key), k.revision), time.Now()
	}
	return k.token
}
