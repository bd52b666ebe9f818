package podkey

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/wire"
)

func TestTheTokenFollowsTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "key")
		k := New(path, "hello-00001")
		put := func(key []byte) {
			if err := os.WriteFile(path, key, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := k.Token(); got != "" {
			t.Errorf("a token without a key: %q", got)
		}
		put(nil)
		if got := k.Token(); got != "" {
			t.Errorf("a token of an empty key: %q", got)
		}
		for _, key := range []string{"the first key", "the next key"} {
			namespaceKey := wire.NamespaceKey([]byte(key), "default")
			put(namespaceKey)
			time.Sleep(again)
			if got, want := k.Token(), wire.Token([]byte(key), "default", "hello-00001"); got != want {
				t.Errorf("%s: got %q, want %q", key, got, want)
			}
		}
		last := k.Token()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(again)
		if got := k.Token(); got != last {
			t.Errorf("without the file: %q", got)
		}
	})
}
