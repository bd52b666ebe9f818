package forward

import (
	"context"
	"net"
)

func pipes() (dial func(ctx context.Context, addr string) (net.Conn, error), a *acceptor) {
	a = &acceptor{conns: make(chan net.Conn), stop: make(chan struct{})}
	return func(ctx context.Context, _ string) (net.Conn, error) {
		near, far := net.Pipe()
		select {
		case a.conns <- far:
			return near, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-a.stop:
			return nil, net.ErrClosed
		}
	}, a
}

func (a *acceptor) each(serve func(net.Conn)) {
	for {
		select {
		case c := <-a.conns:
			go func() {
				defer c.Close()
				serve(c)
			}()
		case <-a.stop:
			return
		}
	}
}

func (a *acceptor) close() { close(a.stop) }
