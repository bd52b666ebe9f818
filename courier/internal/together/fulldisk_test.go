package together

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/store"
)

// The disk is a real one of 32 MiB, smaller than the bound of the store.
func TestAFullDiskRefusesCallsAndLosesNone(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small disk")
	}
	dir := t.TempDir()
	if err := syscall.Mount("courier-test", dir, "tmpfs", 0, "size=32m"); err != nil {
		t.Skipf("no small disk can be mounted: %v", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	options := store.Options{Dir: dir, Bytes: 1 << 30, Queue: time.Hour, Results: time.Hour, Dead: time.Hour, Synced: true}
	kept, err := store.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	of := call.Service{Namespace: "ns", Name: "svc"}
	var accepted []string
	for range 1000 {
		c := &call.Call{Service: of, ID: call.NewID(), Host: "h", Method: "POST", Path: "/"}
		if _, err = kept.Add(t.Context(), c, make([]byte, 100<<10)); err != nil {
			break
		}
		accepted = append(accepted, c.ID)
	}
	if err == nil || len(accepted) < 10 {
		t.Fatalf("%d calls of 100 KiB fit on a disk of 32 MiB: %v", len(accepted), err)
	}
	kept.Close()
	if out, err := exec.Command("mount", "-o", "remount,size=256m", dir).CombinedOutput(); err != nil {
		t.Fatalf("make the disk larger: %v: %s", err, out)
	}
	if kept, err = store.Open(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	for _, id := range accepted {
		if _, err := kept.Call(t.Context(), of, id); err != nil {
			t.Errorf("an accepted call is lost: %v", err)
		}
	}
	if _, err := kept.Add(t.Context(), &call.Call{Service: of, ID: call.NewID(), Host: "h", Method: "POST", Path: "/"}, nil); err != nil {
		t.Errorf("with room on the disk: %v", err)
	}
}
