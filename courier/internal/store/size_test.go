package store

import (
	"math"
	"testing"
	"time"
)

// Somebody changes store-bytes: whatever admission lets in, the courier starts, and has what it
// had.
func TestAStoreBecomesSmallerAndLarger(t *testing.T) {
	dir := t.TempDir()
	for i, size := range []int64{8 << 30, 64 << 20, math.MaxInt64, 64 << 20} {
		kept, err := Open(t.Context(), Options{Dir: dir, Bytes: size, Queue: time.Hour, Results: time.Hour, Dead: time.Hour, Timeout: time.Minute})
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		if _, err := kept.Queue(t.Context(), service); err != nil {
			t.Fatal(err)
		}
		added(t, kept, service)
		info, err := kept.calls.Info(t.Context())
		if err != nil || info.State.Msgs != uint64(i+1) {
			t.Errorf("%d bytes: %+v, %v, want %d calls", size, info, err, i+1)
		}
		kept.Close()
	}
}
