package guard

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/test/eventually"
)

// The test binary is the agent, too: the guard has to see a real process die and stall.
func TestMain(m *testing.M) {
	if path := os.Getenv("EBB_TEST_AGENT"); path != "" {
		if err := NewPost().Serve(context.Background(), path); err != nil {
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func startAgent(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	agent := exec.Command(os.Args[0])
	agent.Env = append(os.Environ(), "EBB_TEST_AGENT="+path)
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { agent.Process.Kill(); agent.Wait() })
	return agent
}

func startGuard(t *testing.T, path string) (thaws *atomic.Int64) {
	thaws = &atomic.Int64{}
	g := &Guard{Socket: path, Log: slog.New(slog.DiscardHandler), ThawAll: func() (int, error) { thaws.Add(1); return 1, nil }}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- g.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return thaws
}

// quiet reports whether no thaw comes for longer than the guard waits between two of them.
func quiet(thaws *atomic.Int64) bool {
	before := thaws.Load()
	time.Sleep(5 * retryTime)
	return thaws.Load() == before
}

func TestTheGuardThawsWhileNoAgentIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "guard")
	thaws := startGuard(t, path)
	eventually.True(t, "it thaws again and again", func() bool { return thaws.Load() > 2 })
	agent := startAgent(t, path)
	eventually.True(t, "it leaves a healthy agent alone", func() bool { return quiet(thaws) })
	agent.Process.Kill()
	agent.Wait()
	before := thaws.Load()
	eventually.True(t, "it thaws after the agent died", func() bool { return thaws.Load() > before })
}

func TestAnAgentThatStallsIsKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "guard")
	agent := startAgent(t, path)
	thaws := startGuard(t, path)
	eventually.True(t, "it leaves a healthy agent alone", func() bool { return quiet(thaws) })
	before := thaws.Load()
	agent.Process.Signal(syscall.SIGSTOP)
	state, _ := agent.Process.Wait()
	if status := state.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Errorf("the agent ended with %v", status)
	}
	eventually.True(t, "it thaws", func() bool { return thaws.Load() > before })
}

func TestNothingIsAllowedWithoutAGuard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "guard")
	post := NewPost()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- post.Serve(ctx, path) }()
	if post.Allowed() {
		t.Error("allowed before a guard came")
	}
	g := &Guard{Socket: path, Log: slog.New(slog.DiscardHandler), ThawAll: func() (int, error) { return 0, nil }}
	guard, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { left <- g.Run(guard) }()
	eventually.True(t, "it is allowed with a guard", post.Allowed)
	away := post.Away()
	leave()
	<-left
	eventually.True(t, "it is not allowed once the guard is gone", func() bool { return !post.Allowed() })
	<-away
	<-post.Away() // stays closed
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A DaemonSet whose agent cannot start must not walk through all cgroups of its node all the time.
func TestTheGuardOfNoAgentRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		var frozen atomic.Int64
		g := &Guard{Socket: filepath.Join(t.TempDir(), "guard"), Log: slog.New(slog.DiscardHandler), ThawAll: func() (int, error) {
			looks++
			return int(frozen.Swap(0)), nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		time.AfterFunc(5*time.Minute, func() { frozen.Store(1) })
		if err := g.Run(ctx); err != nil {
			t.Error(err)
		}
		if looks < 60 || looks > 120 || frozen.Load() > 0 {
			t.Errorf("%d looks in ten minutes, %d left frozen", looks, frozen.Load())
		}
	})
}
