package swap

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSwapGoesOnAndOff(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("swap needs root")
	}
	file := filepath.Join(t.TempDir(), "zram")
	device, err := On(t.Context(), file)
	if errors.Is(err, ErrNone) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Off(t.Context(), file) }) // if the test ends early
	on := func() bool {
		text, err := os.ReadFile("/proc/swaps")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(text), device)
	}
	if !on() {
		t.Errorf("%s is no swap", device)
	}
	if again, err := On(t.Context(), file); err != nil || again != device {
		t.Errorf("the second time: %q, %v", again, err)
	}
	for range 2 { // nothing is left for the second time
		if err := Off(t.Context(), file); err != nil {
			t.Fatal(err)
		}
	}
	if on() {
		t.Error("it is still swap")
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the file is left")
	}
}
