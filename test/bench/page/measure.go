package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"ebb.dev/ebb/test/browser"
	"ebb.dev/ebb/test/fleet"
	"ebb.dev/ebb/test/internal/result"
)

// painted notes when the frames are drawn that have the first Services with their load, more than
// fit on a screen, and all of them.
const painted = `window.painted = [];
new MutationObserver((_, observer) => {
  const drawn = document.querySelector(".list .spark .line") ? document.querySelectorAll(".list .row a").length : 0;
  const note = () => requestAnimationFrame(() => setTimeout(() => window.painted.push(performance.now())));
  if (drawn && !window.first) window.first = true, note();
  if (drawn < %d) return;
  observer.disconnect();
  note();
}).observe(document, { childList: true, subtree: true })`

func (b *bench) measure(ctx context.Context, chromium *browser.Browser, cluster *fleet.Fleet, dashboard *fleet.Program) error {
	paints, err := b.paint(chromium, dashboard)
	if err != nil {
		return err
	}
	script, err := scripts(ctx, dashboard.URL)
	if err != nil {
		return err
	}
	streams, closeAll := b.openPages(ctx, dashboard.URL)
	defer closeAll()
	questions, err := b.ask(ctx, cluster, dashboard.URL)
	if err != nil {
		return err
	}
	rss, err := resident(dashboard.PID)
	if err != nil {
		return err
	}
	if err := b.out.Line(result.Fields{"pages": b.open, "streams": streams, "api_p50_ms": result.Median(questions), "api_p99_ms": result.Quantile(questions, 0.99)}); err != nil {
		return err
	}
	return b.out.Summary(result.Fields{"services": b.services, "first_paint_ms": result.Median(paints), "script_kb": float64(script) / 1000,
		"api_p99_ms": result.Quantile(questions, 0.99), "dashboard_rss_mib": rss})
}

// paint loads the page again and again, each time in a browser that has nothing in its cache.
func (b *bench) paint(chromium *browser.Browser, dashboard *fleet.Program) (all []float64, err error) {
	for range b.loads {
		tab, err := chromium.Tab(1180, 800, false)
		if err != nil {
			return nil, err
		}
		err = tab.Do(chromedp.Navigate(dashboard.URL+"icon.svg"), signIn(fleet.Admin))
		if err == nil {
			_, err = chromedp.Call(tab, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: fmt.Sprintf(painted, b.services)})
		}
		if err == nil {
			err = tab.Do(chromedp.Navigate(dashboard.URL))
		}
		var ms []float64
		if err == nil {
			ms, err = chromedp.Run(tab, chromedp.Poll[[]float64]("window.painted.length === 2 && window.painted"))
		}
		first := 0.0
		if err == nil {
			first, err = chromedp.Run(tab, chromedp.Evaluate[float64]("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
		}
		tab.Close()
		if err != nil {
			return nil, fmt.Errorf("load the page: %w", err)
		}
		all = append(all, ms[0])
		if err := b.out.Line(result.Fields{"first_services_ms": ms[0], "all_services_ms": ms[1], "first_contentful_ms": first}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// scripts adds up the scripts that the page names, and those that it fetches later.
func scripts(ctx context.Context, url string) (total int, err error) {
	names := []string{"app.js", "html.js", "session.js", "api.js", "live.js", "format.js", "model.js", "parts.js", "services.js", "service.js", "timeline.js", "chart.js", "coldstarts.js",
		"cluster.js", "vendor/preact.mjs", "vendor/hooks.mjs", "vendor/htm.mjs", "vendor/uPlot.iife.min.js"}
	for _, name := range names {
		text, err := get(ctx, url+name, "")
		if err != nil {
			return 0, err
		}
		total += len(text)
	}
	return total, nil
}

func get(ctx context.Context, url, token string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d", url, answer.StatusCode)
	}
	return text, err
}

// openPages opens the streams of pages, each of a person of its own, and returns how many the
// dashboard took.
func (b *bench) openPages(ctx context.Context, url string) (streams int, closeAll func()) {
	ctx, cancel := context.WithCancel(ctx)
	client := &http.Client{Transport: &http.Transport{}}
	var reading sync.WaitGroup
	for i := range b.open {
		for _, path := range []string{"apis/view.ebb.dev/v1alpha1/services", "apis/serving.knative.dev/v1/services"} {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+path+"?watch=true", nil)
			if err != nil {
				continue
			}
			r.Header.Set("Authorization", fmt.Sprintf("Bearer %s-%d", fleet.Admin, i))
			answer, err := client.Do(r)
			if err != nil {
				continue
			}
			if answer.StatusCode == http.StatusOK {
				streams++
			}
			reading.Go(func() {
				defer answer.Body.Close()
				_, _ = bufio.NewReader(answer.Body).WriteTo(io.Discard) // until it is closed
			})
		}
	}
	return streams, func() {
		cancel()
		reading.Wait()
	}
}

// ask asks for views, four at a time, and returns how long each took in milliseconds.
func (b *bench) ask(ctx context.Context, cluster *fleet.Fleet, url string) ([]float64, error) {
	names := cluster.Names()
	var mu sync.Mutex
	var all []float64
	var failed error
	var asking sync.WaitGroup
	for worker := range 4 {
		asking.Go(func() {
			for i := worker; i < b.questions; i += 4 {
				namespace, name, _ := strings.Cut(names[i%len(names)], "/")
				if name == fleet.Broken {
					continue
				}
				began := time.Now()
				_, err := get(ctx, url+"apis/view.ebb.dev/v1alpha1/namespaces/"+namespace+"/services/"+name, fleet.Admin)
				mu.Lock()
				all = append(all, result.Milliseconds(time.Since(began)))
				if err != nil {
					failed = err
				}
				mu.Unlock()
			}
		})
	}
	asking.Wait()
	return all, failed
}

// resident is the resident memory of a process in MiB.
func resident(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "\nVmRSS:")
	var kib float64
	if _, err := fmt.Sscanf(rest, "%g kB", &kib); err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return kib / 1024, nil
}
