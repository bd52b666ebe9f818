// Package browser runs pages in headless Chromium, for tests and benchmarks.
//
// Owns: the browser's process and its profile. Reads: pages. Writes: nothing. Never: goes anywhere
// but where it is told to.
package browser

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// ErrNone is returned where there is no Chromium. Tests are skipped for it, or fail if CI=true.
var ErrNone = errors.New("there is no chromium in the path: apt-get install chromium")

// Browser is a running Chromium.
type Browser struct {
	context.Context
	cancel context.CancelFunc
}

// Start starts Chromium.
func Start(ctx context.Context) (*Browser, error) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		return nil, ErrNone
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true))
	ctx, endProcess := chromedp.NewExecAllocator(ctx, options...)
	ctx, endBrowser := chromedp.NewContext(ctx)
	b := &Browser{Context: ctx, cancel: func() { endBrowser(); endProcess() }}
	if err := chromedp.Do(ctx); err != nil {
		b.cancel()
		return nil, fmt.Errorf("start Chromium: %w", err)
	}
	return b, nil
}

// ForTest starts Chromium until the test ends. Without Chromium the test is skipped, or fails if
// CI=true.
func ForTest(t testing.TB) *Browser {
	t.Helper()
	b, err := Start(context.Background())
	if errors.Is(err, ErrNone) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Stop)
	return b
}

// Stop ends Chromium.
func (b *Browser) Stop() { b.cancel() }

// Tab is one page.
type Tab struct {
	context.Context
	// Close ends it.
	Close context.CancelFunc

	mu         sync.Mutex
	complaints []string
}

// Tab opens an empty page of a size, light or dark, with an empty storage.
func (b *Browser) Tab(width, height int64, dark bool) (*Tab, error) {
	ctx, cancel := chromedp.NewContext(b.Context, chromedp.WithNewBrowserContext())
	t := &Tab{Context: ctx, Close: cancel}
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	console := chromedp.Console(ctx)
	go t.listen(console)
	err := chromedp.Do(ctx, chromedp.EmulateViewport(width, height))
	if err == nil {
		_, err = chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("open a tab: %w", err)
	}
	return t, nil
}

// Do runs actions in it.
func (t *Tab) Do(actions ...chromedp.Action[chromedp.Void]) error { return chromedp.Do(t, actions...) }

// listen keeps what the browser complains about: errors of scripts, and what the policy forbids.
func (t *Tab) listen(console iter.Seq2[chromedp.ConsoleMessage, error]) {
	for m, err := range console {
		if err != nil {
			return
		}
		// Without TLS, browsers ignore one of the headers, and say so.
		if strings.HasPrefix(m.Text, "The Cross-Origin-Opener-Policy header has been ignored") {
			continue
		}
		// An answer with an error's status, or none, is what some tests are about.
		if m.Type == "log" || m.Type == "info" || m.Type == "debug" || strings.HasPrefix(m.Text, "Failed to load resource: ") {
			continue
		}
		t.mu.Lock()
		t.complaints = append(t.complaints, fmt.Sprintf("%s: %s (%s:%d)", m.Type, m.Text, m.URL, m.Line))
		t.mu.Unlock()
	}
}

// Complaints are what the browser complained about.
func (t *Tab) Complaints() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.complaints)
}
