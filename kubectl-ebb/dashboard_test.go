package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The dashboard is served with the credentials of the kubeconfig, to whoever has the printed key.
func TestTheDashboardIsForWhoeverHasTheKey(t *testing.T) {
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.URL.Path, r.Header.Get("Authorization"))
	}))
	defer api.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{apiVersion: v1, kind: Config, clusters: [{name: x, cluster: {server: %q, insecure-skip-tls-verify: true}}], contexts: [{name: x, context: {cluster: x, user: x}}], "+
		"users: [{name: x, user: {token: of-the-kubeconfig}}], current-context: x}", api.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	read, write := io.Pipe()
	root := newCommand(write, time.Now)
	root.SetArgs([]string{"dashboard", "--kubeconfig", kubeconfig})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	lines := bufio.NewScanner(read)
	address, key := "", ""
	for address == "" && lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); strings.HasPrefix(line, "http://127.0.0.1:") {
			address, key, _ = strings.Cut(line, "#key=")
		}
	}
	go io.Copy(io.Discard, read)
	for given, want := range map[string]string{
		key:                 "/apis/serving.knative.dev/v1/services Bearer of-the-kubeconfig",
		"of-the-kubeconfig": "sign in first",
		"":                  "sign in first",
	} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"apis/serving.knative.dev/v1/services", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+given)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("with the token %q: %d %s %v", given, answer.StatusCode, body, err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
