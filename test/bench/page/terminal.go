package main

import (
	"bytes"
	"fmt"
	"html"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/chromedp/chromedp"

	"ebb.dev/ebb/test/browser"
)

// shot is a picture of a terminal: a command and the first answer in a golden file of its test.
type shot struct{ name, command, golden string }

var shots = []shot{
	{"terminal-explain", "kubectl ebb explain cart", "explain-history.txt"},
	{"terminal-coldstarts", "kubectl ebb coldstarts cart", "coldstarts.txt"},
	{"terminal-calls", "kubectl ebb calls cart", "calls.txt"},
}

const terminal = `<!doctype html><meta charset="utf-8"><style>body{margin:0;background:#16181d;color:#d6d9de}
pre{display:inline-block;margin:0;padding:16px 20px;font:13px/1.45 "DejaVu Sans Mono",monospace}b{color:#7dd3fc}</style><pre><b>$ %s</b>
%s</pre>`

// takeTerminal takes the pictures of docs/kubectl-ebb.md.
func takeTerminal(browser *browser.Browser, folder string) error {
	for _, s := range shots {
		text, err := os.ReadFile(filepath.Join("kubectl-ebb/testdata", s.golden))
		if err != nil {
			return err
		}
		text, _, _ = bytes.Cut(text, []byte("----\n"))
		columns, rows := 0, 2
		for line := range strings.Lines(string(text)) {
			columns, rows = max(columns, len([]rune(line))), rows+1
		}
		tab, err := browser.Tab(int64(min(columns, 190))*8+56, int64(rows)*19+34, true)
		if err != nil {
			return err
		}
		page := fmt.Sprintf(terminal, html.EscapeString(s.command), html.EscapeString(string(text)))
		var image []byte
		if err = tab.Do(chromedp.Navigate("data:text/html;charset=utf-8," + url.PathEscape(page))); err == nil {
			image, err = chromedp.Run(tab, chromedp.CaptureScreenshot())
		}
		if err == nil {
			image, err = smaller(image)
		}
		tab.Close()
		if err != nil {
			return fmt.Errorf("take %s: %w", s.name, err)
		}
		if err := os.WriteFile(filepath.Join(folder, s.name+".png"), image, 0o644); err != nil {
			return err
		}
	}
	return nil
}
