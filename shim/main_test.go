package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"ebb.dev/ebb/internal/testing/reserve"
)

// build builds the shim as it is shipped.
func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "shim")
	command := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, ".")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

func TestTheShim(t *testing.T) {
	binary := build(t)
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	// It is copied into each pod that has it.
	if mib := float64(info.Size()) / (1 << 20); mib > 8 {
		t.Errorf("the binary has %.1f MiB, want at most 8", mib)
	}
	run := func(env string, args ...string) (string, int) {
		command := exec.Command(binary, args...)
		command.Env = append(os.Environ(), strings.Fields(env)...)
		out, _ := command.CombinedOutput()
		return string(out), command.ProcessState.ExitCode()
	}

	t.Run("tells what is wrong", func(t *testing.T) {
		for _, test := range []struct {
			env  string
			args []string
			want string
		}{
			{"", nil, "shim: variable SHIM_MODE: must be http, streaming or serializing\nshim: no program"},
			{"SHIM_MODE=streaming", []string{"cat"}, `shim: unknown arguments ["cat"]: put the program after "--"`},
			{"SHIM_MODE=streaming", []string{"--", "no-such-program"}, "shim: find the program no-such-program: executable file not found in $PATH\n"},
			{"", []string{"install", "/nowhere"}, "shim: install the shim in /nowhere: open /nowhere/"},
		} {
			if out, status := run(test.env, test.args...); status != 1 || !strings.HasPrefix(out, test.want) {
				t.Errorf("%s %q: status %d, %s", test.env, test.args, status, out)
			}
		}
		if out, status := run("", "--help"); status != 0 || !strings.Contains(out, "SHIM_MODE=streaming shim -- tr a-z A-Z") {
			t.Errorf("help: status %d, %s", status, out)
		}
		if out, status := run("SHIM_MODE=http PORT=1", "--", "sh", "-c", "exit 42"); status != 42 || !strings.HasSuffix(out, "shim: the program ended with status 42\n") {
			t.Errorf("a program that fails: status %d, %s", status, out)
		}
	})

	t.Run("installs itself", func(t *testing.T) {
		dir := t.TempDir()
		for range 2 { // the second time over the first
			if out, status := run("", "install", dir); status != 0 {
				t.Fatalf("status %d, %s", status, out)
			}
		}
		files, _ := os.ReadDir(dir)
		if info, err := os.Stat(filepath.Join(dir, "shim")); err != nil || info.Mode().Perm() != 0o755 || len(files) != 1 {
			t.Errorf("%v %v, %v", files, info, err)
		}
		if out, err := exec.Command(filepath.Join(dir, "shim"), "--help").Output(); err != nil || len(out) == 0 {
			t.Errorf("the copy: %v", err)
		}
	})

	t.Run("answers the requests that have come when it is told to end", func(t *testing.T) {
		port := strconv.Itoa(int(reserve.Port(t).Port()))
		command := exec.Command(binary, "--", "sh", "-c", "cat; echo $SHIM_MODE$K_SERVICE")
		command.Env = append(os.Environ(), "SHIM_MODE=streaming", "PORT="+port, "K_SERVICE=hello")
		stderr, err := command.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		defer command.Process.Kill()
		log := bufio.NewScanner(stderr)
		log.Scan() // it serves
		read, write := io.Pipe()
		answered := make(chan string)
		begun := make(chan struct{})
		go func() {
			response, err := http.Post("http://127.0.0.1:"+port, "", read)
			if err != nil {
				close(begun)
				answered <- err.Error()
				return
			}
			io.ReadFull(response.Body, make([]byte, 2))
			close(begun)
			text, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err != nil {
				text = append(text, err.Error()...)
			}
			answered <- string(text)
		}()
		io.WriteString(write, "bo")
		<-begun
		command.Process.Signal(syscall.SIGTERM)
		io.WriteString(write, "dy")
		write.Close()
		if text := <-answered; text != "dyhello\n" {
			t.Errorf("the answer ends with %q", text)
		}
		for log.Scan() {
		}
		if err := command.Wait(); err != nil {
			t.Errorf("it ended with %v: %s", err, log.Text())
		}
	})
}
