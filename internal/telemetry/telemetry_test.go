package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func TestALogLineIsOneJSONObjectThatNamesItsComponent(t *testing.T) {
	var out bytes.Buffer
	log, level := NewLogger(&out, "activator")
	log.Debug("not written")
	level.Set(slog.LevelDebug)
	log.Debug("written", "revision", "hello-00001")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%q: %v", out.String(), err)
	}
	for key, want := range map[string]string{"component": "activator", "message": "written", "severity": "DEBUG", "revision": "hello-00001"} {
		if line[key] != want {
			t.Errorf("%s is %v, want %s", key, line[key], want)
		}
	}
}

func TestProfilesAnswerOnlyWhenSwitchedOn(t *testing.T) {
	on := false
	handler := Profiles(func() bool { return on })
	get := func() *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/debug/pprof/cmdline", nil))
		return answer
	}
	if answer := get(); answer.Code != http.StatusNotFound || !strings.Contains(answer.Body.String(), "runtime-profiling") {
		t.Errorf("off: got %d %q", answer.Code, answer.Body)
	}
	on = true
	if answer := get(); answer.Code != http.StatusOK {
		t.Errorf("on: got %d", answer.Code)
	}
}

func TestARequestInFlightEndsBeforeTheServerDoes(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan struct{})
	served := make(chan error, 1)
	go func() {
		served <- Serve(ctx, listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(began)
			<-ctx.Done() // answers only after the server was told to stop
			io.WriteString(w, "done")
		}))
	}()
	answered := make(chan string, 1)
	go func() {
		response, err := http.Get("http://" + listener.Addr().String())
		if err != nil {
			answered <- err.Error()
			return
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		answered <- string(body)
	}()
	<-began
	cancel()
	if got := <-answered; got != "done" {
		t.Errorf("the request in flight got %q", got)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestAnonymousMemoryIsWhatTheProcessAllocated(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has /proc/self/status")
	}
	before := anonymousMemory()
	const size = 64 << 20
	block := bytes.Repeat([]byte{1}, size)
	after := anonymousMemory()
	runtime.KeepAlive(block)
	if grown := after - before; !(before > 0) || !(grown > size/2) {
		t.Errorf("anonymous memory was %.0f bytes and grew by %.0f, want about %d", before, grown, size)
	}
}

// A component whose log cannot be written, because the node's disk is full, goes on.
func TestALogOnAFullDiskStopsNothing(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if _, err := full.WriteString("x"); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	log, _ := NewLogger(full, "component")
	for range 1000 {
		log.Info("a line")
	}
}
