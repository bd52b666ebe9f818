package main

import (
	"bytes"
	"context"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"time"

	"github.com/chromedp/chromedp"

	"ebb.dev/ebb/test/browser"
	"ebb.dev/ebb/test/fleet"
)

// picture is one of docs/dashboard.md.
type picture struct {
	name, path    string
	width, height int64
	dark          bool
}

var pictures = []picture{
	{"dashboard-services", "#/", 1180, 560, false},
	{"dashboard-services-phone", "#/", 360, 740, false},
	{"dashboard-service", "#/ns/shop/cart", 1180, 1320, false},
	{"dashboard-service-phone", "#/ns/shop/reports", 360, 740, true},
	{"dashboard-cluster", "#/cluster", 1180, 860, true},
}

// signIn puts a token where the page keeps it.
func signIn(token string) chromedp.Action[chromedp.Void] {
	return chromedp.Evaluate[chromedp.Void](fmt.Sprintf("sessionStorage.setItem('ebb-token', %q)", token))
}

// take takes the pictures.
func take(ctx context.Context, browser *browser.Browser, url, folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, p := range pictures {
		tab, err := browser.Tab(p.width, p.height, p.dark)
		if err != nil {
			return err
		}
		var image []byte
		err = tab.Do(chromedp.Navigate(url+"icon.svg"), signIn(fleet.Admin), chromedp.Navigate(url+p.path),
			chromedp.WaitVisible(chromedp.CSS(".list, .timeline, .card")), chromedp.Sleep(2500*time.Millisecond))
		if err == nil {
			image, err = chromedp.Run(tab, chromedp.CaptureScreenshot())
		}
		if err == nil {
			image, err = smaller(image)
		}
		for _, complaint := range tab.Complaints() {
			fmt.Fprintln(os.Stderr, p.name, "complains:", complaint)
		}
		tab.Close()
		if err != nil {
			return fmt.Errorf("take %s: %w", p.name, err)
		}
		if err := os.WriteFile(filepath.Join(folder, p.name+".png"), image, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// smaller packs a picture as well as PNG can.
func smaller(text []byte) ([]byte, error) {
	image, err := png.Decode(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&packed, image)
	return packed.Bytes(), err
}
