package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"
)

// runtime reports what the runtime contract promises a program: its arguments, working directory,
// user, standard input, files and limits.
func (h *handler) runtime(w http.ResponseWriter, _ *http.Request) {
	folder, _ := os.Getwd()
	stdin := "open"
	if _, err := os.Stdin.Read(make([]byte, 1)); err == io.EOF {
		stdin = "EOF"
	}
	files := map[string]string{}
	for _, name := range []string{"/tmp", "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx",
		"/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/console", "/proc/self/fd", "/etc/resolv.conf"} {
		info, err := os.Stat(name)
		if err != nil {
			files[name] = "absent"
			continue
		}
		files[name] = strings.TrimSuffix(info.Mode().Type().String(), "---------") + " " + info.Mode().Perm().String()
		if info.Mode()&fs.ModeSticky != 0 {
			files[name] += " sticky"
		}
	}
	writeJSON(w, map[string]any{
		"args": os.Args[1:], "folder": folder, "user": os.Getuid(), "stdin": stdin, "files": files,
		"memory": first("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
		"cpu":    first("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
	})
}

// first returns the content of the first file that exists: cgroup v1 and v2 use different names.
func first(names ...string) string {
	for _, name := range names {
		if content, err := os.ReadFile(name); err == nil {
			return strings.TrimSpace(string(content))
		}
	}
	return ""
}

func (h *handler) alive(w http.ResponseWriter, _ *http.Request) {
	if h.broken.Load() {
		http.Error(w, "broken by a request", http.StatusInternalServerError)
	}
}

// grpcHealth returns SERVING without a gRPC library, which would make this image several times as
// large. Benchmarks measure its start.
func (h *handler) grpcHealth(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		http.Error(w, "this path expects gRPC", http.StatusUnsupportedMediaType)
		return
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20)); err != nil {
		return
	}
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	serving := []byte{0, 0, 0, 0, 2, 0x08, 0x01} // a frame of two bytes: field 1 is 1
	if _, err := w.Write(serving); err != nil {
		return
	}
	if r.PathValue("method") == "Watch" { // continues until the client cancels
		if http.NewResponseController(w).Flush() == nil {
			<-r.Context().Done()
		}
	}
	w.Header().Set("Grpc-Status", "0")
}

// fetching keeps connections to the page's server open.
var fetching = &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}

// fetch reads a page.
func fetch(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", url, err)
	}
	response, err := fetching.Do(request)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", url, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("fetch %s: %s", url, response.Status)
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return fmt.Errorf("fetch %s: %w", url, err)
	}
	return nil
}
