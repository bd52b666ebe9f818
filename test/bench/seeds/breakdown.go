package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

// breakdown divides the time of a request in its pod: before the function, in it, and after it. The
// kernel tells when the request's packet went to the pod and when the answer's came from it, the
// function when it began and ended, by the same clock. One request at a time goes straight to the
// pod, to queue-proxy of Ebb's and to the container of the floor's.
func (b *bench) breakdown(ctx context.Context) error {
	arms, err := b.pair(ctx, nil)
	if err != nil {
		return err
	}
	ports := []int{queueProxyPort, plainPort}
	const requests = 500
	for round := range max(2, b.rounds()) {
		for i := range arms {
			if round%2 == 1 {
				i = len(arms) - 1 - i
			}
			pod, err := b.pod(ctx, arms[i])
			if err != nil {
				return err
			}
			address, err := netip.ParseAddrPort(net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(ports[i])))
			if err != nil {
				return fmt.Errorf("address of the pod %s: %w", pod.Name, err)
			}
			parts, err := partsOf(ctx, address, arms[i].url+"?size=4&stamp=1", requests)
			if err != nil {
				return fmt.Errorf("%s: %w", arms[i].name, err)
			}
			fields := parts.fields()
			fields["arm"], fields["round"], fields["requests"] = arms[i].name, round+1, len(parts.in)
			if err := b.line(fields); err != nil {
				return err
			}
		}
	}
	return nil
}

// parts are the times of requests in a pod, in milliseconds.
type parts struct{ before, in, after []float64 }

func (p parts) fields() result.Fields {
	return result.Fields{"before_ms": result.Median(p.before), "in_ms": result.Median(p.in), "after_ms": result.Median(p.after),
		"before_p90_ms": result.Quantile(p.before, 0.9), "after_p90_ms": result.Quantile(p.after, 0.9),
		"before_p10_ms": result.Quantile(p.before, 0.1), "after_p10_ms": result.Quantile(p.after, 0.1)}
}

// partsOf sends requests on one connection.
func partsOf(ctx context.Context, address netip.AddrPort, url string, requests int) (parts, error) {
	on, err := between(address.Addr())
	if err != nil {
		return parts{}, err
	}
	return partsOn(ctx, on, address, url, requests)
}

func partsOn(ctx context.Context, on *net.Interface, address netip.AddrPort, url string, requests int) (parts, error) {
	tap, err := listen(on)
	if err != nil {
		return parts{}, err
	}
	stopped := make(chan struct{})
	go tap.read(stopped)
	works, local, err := stamped(ctx, address, url, requests)
	close(stopped)
	<-tap.done
	if err := errors.Join(err, syscall.Close(tap.socket)); err != nil {
		return parts{}, err
	}
	pairs := around(works, exchanges(tap.seen, local))
	if len(pairs) < requests*9/10 {
		return parts{}, fmt.Errorf("the network showed only %d of %d requests with their answers", len(pairs), requests)
	}
	var p parts
	for _, pair := range pairs {
		work, seen := pair[0], pair[1]
		p.before = append(p.before, result.Milliseconds(work.in.Sub(seen.in)))
		p.in = append(p.in, result.Milliseconds(work.out.Sub(work.in)))
		p.after = append(p.after, result.Milliseconds(seen.out.Sub(work.out)))
	}
	return p, nil
}

// stamped sends the requests and returns when the function began and ended each, and the address
// that they came from.
func stamped(ctx context.Context, address netip.AddrPort, url string, requests int) (all []exchange, local netip.AddrPort, err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address.String())
	if err != nil {
		return nil, local, fmt.Errorf("connect to the pod: %w", err)
	}
	local = conn.LocalAddr().(*net.TCPAddr).AddrPort()
	local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	dialed := false
	transport := &http.Transport{DisableCompression: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		if dialed {
			return nil, errors.New("the pod closed the connection that is observed")
		}
		dialed = true
		return conn, nil
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: answerTime}
	for range requests {
		reply := probe.Get(ctx, client, url)
		if !reply.OK() {
			return nil, local, errors.New(reply.String())
		}
		var s exchange
		var problems [2]error
		s.in, problems[0] = stamp(reply.Header.Get("X-Work-Begun"))
		s.out, problems[1] = stamp(reply.Header.Get("X-Work-Ended"))
		if err := errors.Join(problems[:]...); err != nil {
			return nil, local, fmt.Errorf("the image does not tell when it worked: %w", err)
		}
		all = append(all, s)
	}
	return all, local, nil
}

func stamp(text string) (time.Time, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	return time.Unix(0, n), err
}
