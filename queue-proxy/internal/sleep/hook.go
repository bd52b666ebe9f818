package sleep

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	"ebb.dev/ebb/standby"
)

// maxAnswer bounds what is read of the body of the answer to a hook, maxHead the head.
const maxAnswer, maxHead = 4 << 10, 64 << 10

// hookClient keeps no connections: one that slept is of no use. It follows no redirect, which might
// lead out of the pod.
var hookClient = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHead},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// Call returns a function that calls a hook. An answer of 2xx is success, and nothing else is.
func Call(h standby.Hook, userPort int) func(context.Context) error {
	port := h.Port
	if port == 0 {
		port = userPort
	}
	url := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) + h.Path
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeoutCause(ctx, h.Bound, fmt.Errorf("it did not end within %s", h.Bound))
		defer cancel()
		if err := call(ctx, h.Method, url); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return fmt.Errorf("%s %s: %w", h.Method, url, err)
		}
		return nil
	}
}

func call(ctx context.Context, method, url string) error {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return err
	}
	resp, err := hookClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("it answered %s", resp.Status)
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer)); err != nil {
		return err
	}
	return nil
}
