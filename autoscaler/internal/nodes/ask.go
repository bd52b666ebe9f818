package nodes

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strconv"
	"syscall"
	"time"

	"ebb.dev/ebb/autoscaler/alive"
	"ebb.dev/ebb/wire"
)

// answer is what an attempt to connect says of a node.
type answer uint8

const (
	nothing answer = iota // the attempt failed here
	silence
	life
)

// question is one to a node.
type question struct {
	node      string
	addresses []string
	answers   bool // one of them has answered before, or one there has answered another replica
	asked     time.Duration
	epoch     int
}

// ask asks some pods of a node, a few not before the first one has had its time. One that answers
// is enough.
func (w *Watcher) ask(ctx context.Context, q question) {
	limited, cancel := context.WithTimeout(ctx, alive.AskTime)
	defer cancel()
	type said struct {
		ip string
		answer
	}
	answers := make(chan said, len(q.addresses))
	begin := func(some []string) {
		for _, ip := range some {
			go func() { answers <- said{ip, w.connect(limited, ip)} }()
		}
	}
	first := len(q.addresses)
	if first <= maxAtOnce {
		first = 1
	}
	begin(q.addresses[:first])
	later, best := time.NewTimer(prompt), said{}
	defer later.Stop()
	for left := first; best.answer < life; {
		select {
		case one := <-answers:
			if left--; one.answer > best.answer {
				best = one
			}
		case <-later.C:
		}
		if best.answer < life && first < len(q.addresses) {
			begin(q.addresses[first:])
			left, first = left+len(q.addresses)-first, len(q.addresses)
		}
		if left == 0 {
			break
		}
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if f := w.asking[q.node]; f.n > 1 {
		f.n--
		w.asking[q.node] = f
	} else {
		delete(w.asking, q.node)
	}
	switch now := w.timeLocked(); {
	case best.answer == life:
		w.noteLocked(best.ip, now)
		w.watch.Spoke(q.node, now)
	case best.answer == silence && q.answers && ctx.Err() == nil && q.epoch == w.epoch && now-q.asked <= late:
		w.watch.Unanswered(q.node, w.Self, q.asked, now)
	}
}

// connect asks one pod. Also a connection that is refused is an answer.
func (w *Watcher) connect(ctx context.Context, ip string) answer {
	port := cmp.Or(w.Port, wire.PortMetrics)
	switch {
	case w.Activator != nil && w.Activator(ip):
		port = wire.PortAnnounce
	case w.isAgent(ip):
		port = wire.PortNodeAgent
	}
	conn, err := w.Dial(ctx, net.JoinHostPort(ip, strconv.Itoa(port)))
	var dial *net.OpError
	switch {
	case err == nil:
		// With a reset. Otherwise both nodes would keep each question for two minutes among the
		// connections that they track.
		if tcp, ok := conn.(interface{ SetLinger(seconds int) error }); ok {
			_ = tcp.SetLinger(0)
		}
		conn.Close()
		return life
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return life
	case errors.As(err, &dial) && dial.Timeout(), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.EHOSTDOWN):
		return silence
	}
	return nothing
}
