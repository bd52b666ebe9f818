package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"ebb.dev/ebb/test/browser"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/test/fleet"
)

// stage is what tests of the page use: a cluster, the real program in front of it, a browser.
type stage struct {
	folder  string
	binary  string
	browser *browser.Browser
	// many is a cluster of 500 Services, few one of 30.
	many, few scene
}

type scene struct {
	fleet   *fleet.Fleet
	program *fleet.Program
}

// open starts a cluster and the program.
func open(binary string, services int) (s scene, err error) {
	if s.fleet, err = fleet.Start(services); err != nil {
		return s, err
	}
	if s.program, err = fleet.Run(binary, s.fleet.URL.String()); err != nil {
		s.fleet.Stop()
	}
	return s, err
}

func (s scene) close() (logged string) {
	logged = s.program.Stop()
	s.fleet.Stop()
	return logged
}

var build = sync.OnceValues(func() (*stage, error) {
	chromium, err := browser.Start(context.Background())
	if err != nil {
		return nil, err
	}
	s := &stage{browser: chromium}
	if s.folder, err = os.MkdirTemp("", "ebb-dashboard-"); err == nil {
		s.binary, err = fleet.Build(context.Background(), s.folder)
	}
	if err == nil {
		s.many, err = open(s.binary, 500)
	}
	if err == nil {
		s.few, err = open(s.binary, 30)
	}
	return s, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if s, err := build(); s != nil {
		s.browser.Stop()
		os.RemoveAll(s.folder)
		if err == nil {
			s.many.close()
			s.few.close()
		}
	}
	os.Exit(code)
}

func onStage(t *testing.T) *stage {
	t.Helper()
	s, err := build()
	if errors.Is(err, browser.ErrNone) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// reader is somebody in front of a page.
type reader struct {
	*testing.T
	*browser.Tab
	url string
}

// opens opens the page for the holder of a token.
func (s *stage) opens(t *testing.T, url, token, path string, width, height int64, dark bool) *reader {
	t.Helper()
	tab, err := s.browser.Tab(width, height, dark)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{t, tab, url}
	t.Cleanup(func() {
		for _, complaint := range tab.Complaints() {
			t.Error("the browser complains: " + complaint)
		}
		tab.Close()
	})
	r.do(chromedp.Navigate(url + "icon.svg"))
	if token != "" {
		r.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf("sessionStorage.setItem('ebb-token', %q)", token)))
	}
	r.do(chromedp.Navigate(url + path))
	return r
}

func (s *stage) adminOpens(t *testing.T, path string) *reader {
	t.Helper()
	return s.opens(t, s.few.program.URL, fleet.Admin, path, 1180, 800, false)
}

func (r *reader) do(actions ...chromedp.Action[chromedp.Void]) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Tab, 30*time.Second)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		r.Fatal(err)
	}
}

// is waits until an expression is true. While the page is exchanged for another, nothing is.
func (r *reader) is(expression string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Tab, 30*time.Second)
	defer cancel()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		got, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
		if err == nil && got {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			text, _ := chromedp.Run(r.Tab, chromedp.Evaluate[string]("document.body.innerText.slice(0, 1500)"))
			r.Fatalf("%s is not so: %v\n%s", expression, err, text)
		}
	}
}

// sees waits until texts can be read.
func (r *reader) sees(texts ...string) {
	r.Helper()
	for _, text := range texts {
		r.is(fmt.Sprintf("document.body.innerText.includes(%q)", text))
	}
}

func (r *reader) presses(keys ...string) {
	r.Helper()
	for _, key := range keys {
		r.do(chromedp.KeyEvent(key))
	}
}

func value[T any](r *reader, expression string) T {
	r.Helper()
	got, err := chromedp.Run(r.Tab, chromedp.Evaluate[T](expression))
	if err != nil {
		r.Fatalf("%s: %v", expression, err)
	}
	return got
}

const rows = "document.querySelectorAll('.list .row a').length"

func TestAllServicesAreShownAndKeysWork(t *testing.T) {
	s := onStage(t)
	r := s.opens(t, s.many.program.URL, fleet.Admin, "", 1180, 800, false)
	r.is(rows + " === 500")
	r.sees("500 Services", "Not ready", "Live", "stable average")
	r.is("document.querySelectorAll('.list .spark .line').length > 250")
	if first := value[string](r, "document.querySelector('.list .row a').textContent"); first != "ledger" {
		t.Errorf("the first Service is %s, not the one that needs somebody", first)
	}

	r.presses("/")
	r.do(chromedp.KeyEvent("cart"))
	r.is(rows + " === 1")
	r.presses(kb.Escape, "j")
	r.is("document.activeElement.textContent === 'cart'")
	r.presses(kb.Enter)
	r.is("location.hash === '#/ns/shop/cart' && document.querySelector('h1')?.textContent.startsWith('cart')")
	r.presses(kb.Escape)
	r.is("location.hash === '#/' && " + rows + " === 500")

	r.presses("j", "j", "k")
	r.is("[...document.querySelectorAll('.list .row a')].indexOf(document.activeElement) === 0")
	r.presses("?")
	r.is("document.querySelector('dialog[open]')")
	r.presses(kb.Escape)
	r.is("!document.querySelector('dialog[open]')")

	r.do(chromedp.Click(chromedp.CSS(".row.head .c-load button")))
	r.is("document.querySelector('.c-load[aria-sort=descending]')")
	loads := value[[]float64](r, "[...document.querySelectorAll('.list .row:not(.head) .c-load span')].filter((_, i) => i < 5 || i === 200).map((e) => Number(e.textContent.replaceAll(' ', '').replace('k', '')))")
	if len(loads) != 6 || slices.Min(loads[:5]) <= loads[5] { // loads move while rows stay
		t.Errorf("the first five loads and the 200th are %v", loads)
	}
	r.do(chromedp.Click(chromedp.CSS(".chip.bad")))
	r.is(rows + " === 2")
	r.sees("checkout", "ledger", "could not be pulled")
	r.presses("c")
	r.sees("Components")
}

func TestAServiceTellsWhyAtEachMoment(t *testing.T) {
	r := onStage(t).adminOpens(t, "#/ns/shop/cart")
	r.sees("Why, now, cart-00002", "Most requests go to cart-00002", "Stable average", "cart-00003", "next", "10 %", "Refused requests", "the queue of the revision is full", "RoutesReady", "ScaledUp")
	r.sees("Rollout", "cart-00003 6 of 120", "cart-00002 0 of 1 080", "cart-00003 47 ms", "cart-00002 24 ms")
	r.is("document.querySelectorAll('.plot canvas').length === 4 && document.querySelectorAll('.lane i').length > 1")

	r.do(chromedp.Focus(chromedp.CSS(".plots")))
	r.presses(kb.ArrowLeft, kb.ArrowLeft)
	r.sees("Why, at ")
	before := value[string](r, "document.querySelector('.plots').getAttribute('aria-valuetext')")
	if !strings.Contains(before, " in flight, ") || !strings.Contains(before, " wanted, ") || !strings.Contains(before, ": ") {
		t.Errorf("a reader of the screen hears %q", before)
	}
	r.presses(kb.Home)
	r.is("document.querySelector('.plots').getAttribute('aria-valuenow') === '0'")
	r.do(chromedp.KeyEvent(kb.ArrowRight, chromedp.KeyModifiers(chromedp.ModifierShift)))
	r.is("Number(document.querySelector('.plots').getAttribute('aria-valuenow')) > 0")
	r.presses(kb.End)
	r.sees("Why, now")
	middle := value[[]float64](r, "(({ x, y, width, height }) => [x + width / 2, y + height / 2])(document.querySelector('.plot .u-over').getBoundingClientRect())")
	r.do(chromedp.MouseEvent("mouseMoved", middle[0], middle[1]))
	r.sees("Why, at ")

	r.do(chromedp.Click(chromedp.Search("//button[contains(., '00003')]")), chromedp.Click(chromedp.Search("//button[text()='Latency']")))
	r.sees("p99", "Why")
	r.is("document.querySelectorAll('.ribbon').length === 1")

	r.do(chromedp.Focus(chromedp.CSS(".fall summary")))
	r.presses(kb.Enter)
	r.sees("the autoscaler asks for a pod", "trace 4bf92f3577b34da6a3ce929d0e0e4736")
	if widths := value[float64](r, "[...document.querySelectorAll('.fall .track')].reduce((most, t) => Math.max(most, t.lastElementChild.getBoundingClientRect().right - t.getBoundingClientRect().right), -1e9)"); widths > 4 {
		t.Errorf("a waterfall is %v px longer than its track", widths)
	}
}

func TestOtherStatesReadWell(t *testing.T) {
	s := onStage(t)
	for path, texts := range map[string][]string{
		"#/ns/shop/reports":     {"Has 2 pods asleep; the next request wakes one", "Standby", "is kept"},
		"#/ns/media/thumbnails": {"Queueing", " requests wait for a free slot", "2.4 s"},
		"#/ns/shop/newsletter":  {"Is at zero; the next request starts a pod", "None of the newest requests was refused."},
		"#/ns/shop/checkout":    {"Not ready: Revision", "manifest unknown", "ImagePullFailed", "So there is no load to show"},
		"#/ns/shop/ledger":      {"There was never a figure, because no pod was ever ready. Not ready: Revision", "manifest unknown"},
		"#/ns/shop/archive":     {"The autoscaler remembers no pod and no request."},
		"#/cluster":             {"webhook has too few replicas · 3 nodes", "400 MiB of them in memory", "compressed, 8 GiB of swap", "Cordoned"},
	} {
		t.Run(path, func(t *testing.T) { s.adminOpens(t, path).sees(texts...) })
	}
}

// What a canvas shows can be read only where it is drawn.
func TestAMinuteIsDividedIntoSeconds(t *testing.T) {
	r := onStage(t).adminOpens(t, "")
	r.do(chromedp.Evaluate[chromedp.Void](`{
		const fillText = CanvasRenderingContext2D.prototype.fillText;
		window.drawn = new Set();
		CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) { window.drawn.add(text); return fillText.call(this, text, ...rest); };
	}`))
	r.is(rows + " === 30")
	times := func(path string) []string {
		r.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf("drawn.clear(); location.hash = %q", path)))
		r.is("[...drawn].some((text) => text.includes(':'))")
		return value[[]string](r, "[...drawn].filter((text) => text.includes(':'))")
	}
	if ticks := times("#/ns/shop/wishlist"); len(ticks) < 4 || len(ticks[0]) != len("15:04:05") {
		t.Errorf("a minute has the ticks %v", ticks)
	}
	r.sees("The last minute")
	if ticks := times("#/ns/shop/cart"); len(ticks) < 4 || len(ticks[0]) != len("15:04") {
		t.Errorf("ten minutes have the ticks %v", ticks)
	}
	r.sees("The last 10 minutes")
}

func TestErrorsSayWhatToDo(t *testing.T) {
	s := onStage(t)
	url := s.few.program.URL
	open := func(t *testing.T, token, path string) *reader {
		t.Helper()
		return s.opens(t, url, token, path, 1000, 700, false)
	}
	r := open(t, "", "")
	r.sees("Sign in", "kubectl create token")
	r.do(chromedp.SendKeys(chromedp.CSS("#token"), fleet.Admin+"\r"))
	r.is(rows + " === 30")
	if value[bool](r, "location.href.includes('token')") {
		t.Error("the token is in the address")
	}
	r.do(chromedp.Click(chromedp.Search("//button[text()='Sign out']")))
	r.sees("Bearer token")
	if value[int](r, "sessionStorage.length + localStorage.length") != 0 || value[string](r, "document.cookie") != "" {
		t.Error("the token is still kept")
	}

	r = open(t, fleet.Tenant, "")
	r.sees("You may not read Services of all namespaces.", "Name a namespace in which you may.")
	r.do(chromedp.SendKeys(chromedp.CSS("[name=namespace]"), "shop\r"))
	r.sees("Services of shop", "cart")
	for _, c := range []struct {
		token, path string
		texts       []string
	}{
		{"an-old-token", "", []string{"Your token is not accepted.", "It may have expired."}},
		{fleet.Tenant, "#/ns/media", []string{"You may not read Services in the namespace media.", "somebody else’s"}},
		{fleet.Tenant, "#/ns/media/thumbnails", []string{"You may not read Services in the namespace media."}},
		{fleet.Tenant, "#/cluster", []string{"You may not read nodes. An administrator of the cluster may."}},
		{fleet.Tenant, "#/ns/shop/nobody", []string{"There is no Service nobody in the namespace shop.", "It may have been deleted"}},
		{fleet.Admin, "#/ns/nowhere", []string{"There is no Service in the namespace nowhere."}},
	} {
		t.Run(c.path, func(t *testing.T) { open(t, c.token, c.path).sees(c.texts...) })
	}

	away, err := fleet.Run(s.binary, "http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	defer away.Stop()
	s.opens(t, away.URL, fleet.Admin, "", 1000, 700, false).sees("The API server does not answer.", "It is tried again.")
}

// A page whose stream breaks says so, and goes on by itself; one that nobody looks at asks nothing.
func TestAPageSaysWhenItIsNotLive(t *testing.T) {
	s := onStage(t)
	scene, err := open(s.binary, 10)
	if err != nil {
		t.Fatal(err)
	}
	end := sync.OnceValue(scene.close)
	defer end()
	own := scene.fleet
	r := s.opens(t, scene.program.URL, fleet.Admin, "", 1000, 700, false)
	r.sees("Live")
	own.AutoscalerAway.Store(true)
	own.Break()
	r.sees("Not live: as of ", "No autoscaler answers.", "cart")
	own.AutoscalerAway.Store(false)
	r.is("document.querySelector('.fresh.live') && !document.body.innerText.includes('No autoscaler answers')")

	hide := func(hidden bool) {
		r.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf("Object.defineProperty(document, 'hidden', {value: %v, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))", hidden)))
	}
	streams := func(want int64) {
		t.Helper()
		eventually.Seen(t, fmt.Sprintf("%d streams are open", want), func() (int64, bool) {
			open := own.Streams.Load()
			return open, open == want
		})
	}
	streams(1)
	hide(true)
	streams(0)
	hide(false)
	streams(1)

	own.Expired.Store(true)
	own.Break()
	r.sees("Your token is not accepted.")
	if logged := end(); strings.Contains(logged, fleet.Admin) {
		t.Errorf("a token is in the log: %s", logged)
	}
}

// contrast finds texts that differ too little from what is behind them.
const contrast = `(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colours) => { canvas.clearRect(0, 0, 1, 1); for (const c of colours) { canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); } return canvas.getImageData(0, 0, 1, 1).data; };
  const light = (d) => { const [r, g, b] = [...d].slice(0, 3).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const poor = new Set();
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.checkVisibility() || e.closest(".visually-hidden, .skip, svg")) continue;
    const behind = [];
    for (let p = e; p; p = p.parentElement) behind.unshift(getComputedStyle(p).backgroundColor);
    const style = getComputedStyle(e);
    const a = light(rgb(["#fff", ...behind])), b = light(rgb(["#fff", ...behind, style.color]));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.add(e.className + " " + e.textContent.trim().slice(0, 30) + " " + ratio.toFixed(2));
  }
  return [...poor];
})()`

func TestThePageFitsAPhoneAndCanBeReadInLightAndDark(t *testing.T) {
	s := onStage(t)
	for _, dark := range []bool{false, true} {
		for path, text := range map[string]string{"": "30 Services", "#/ns/shop/cart": "Refused requests", "#/ns/shop/checkout": "ImagePullFailed", "#/cluster": "Components"} {
			t.Run(fmt.Sprint(path, dark), func(t *testing.T) { s.fits(t, path, text, dark) })
		}
	}
}

// fits looks at a page on a phone.
func (s *stage) fits(t *testing.T, path, text string, dark bool) {
	r := s.opens(t, s.few.program.URL, fleet.Admin, path, 360, 740, dark)
	r.sees(text)
	if wide := value[int](r, "document.documentElement.scrollWidth"); wide > 360 {
		t.Errorf("%q is %d px wide", path, wide)
	}
	if poor := value[[]string](r, contrast); len(poor) > 0 {
		t.Errorf("%q, dark %v: %s", path, dark, strings.Join(poor, "; "))
	}
	if nameless := value[[]string](r, `[...document.querySelectorAll("button, a, input, [role=slider]")].filter((e) => !(e.textContent.trim() || e.ariaLabel || e.labels?.length || e.querySelector("[alt]"))).map((e) => e.outerHTML)`); len(nameless) > 0 {
		t.Errorf("%q: without a name: %v", path, nameless)
	}
}
