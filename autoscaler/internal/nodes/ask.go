package nodes

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"syscall"
	"time"

	"ebb.dev/ebb/autoscaler/alive"
	"ebb.dev/ebb/wire"
)

const (
	// maxAtOnce bounds the pods of a node that are asked in one question: one of them may just have
	// gone. The others are asked if the first one takes more than prompt. While no more than
	// maxSlow nodes are slow to answer, all of them are asked again: the first few may be of one
	// tenant, whose NetworkPolicy has them answer nobody.
	maxAtOnce, maxSlow = 3, 16
	prompt             = 100 * time.Millisecond
	// maxOverlap bounds the questions to a node that are under way: one more each period.
	maxOverlap = 3
)

// questions are those to nodes that are under way.
type questions struct {
	asking map[string]flight
	// doubted is the node that was asked last of those in doubt, turn that of the others.
	doubted, turn string
}

// flight are questions to one node.
type flight struct {
	n           int
	first, last time.Duration
}

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

// askLocked asks the nodes that are to be asked now. Those in doubt do not wait until all others
// were asked.
func (w *Watcher) askLocked(ctx context.Context, now time.Duration) {
	var doubted, others []string
	for _, name := range w.watch.Ask(now) {
		if one, _ := w.watch.Node(name); inDoubt(one.State) {
			doubted = append(doubted, name)
		} else {
			others = append(others, name)
		}
	}
	w.askInTurnLocked(ctx, doubted, &w.own.doubted, now)
	w.askInTurnLocked(ctx, others, &w.own.turn, now)
}

// askInTurnLocked asks nodes, by name, of which no more than maxCalls are being asked then. It
// begins after the one that it asked last, so each gets its turn, however many there are and
// however many are dead.
func (w *Watcher) askInTurnLocked(ctx context.Context, names []string, last *string, now time.Duration) {
	asking, slow := w.own.asking, 0
	for _, node := range names {
		if asking[node].n > 0 {
			slow++
		}
	}
	room := maxCalls - slow
	for _, node := range after(*last, names) {
		f, pods, most := asking[node], w.places.pods[node], maxAtOnce
		if one, _ := w.watch.Node(node); slow <= maxSlow && one.State != alive.Lost && (f.n > 0 || one.State != alive.Well) {
			most = maxKnown
		}
		switch {
		case room <= 0:
			return
		case len(pods) == 0, f.n == maxOverlap, f.n > 0 && now-f.last < minPeriod:
			continue
		case f.n == 0:
			f.first = now
			room--
		}
		asking[node] = flight{f.n + 1, f.first, now}
		chosen, answers := w.places.choose(pods, most)
		go w.ask(ctx, question{node, chosen, answers || w.places.open(node, now), now, w.epoch})
		*last = node
	}
}

// after returns names, which are in order, from the one after last.
func after(last string, names []string) []string {
	at, found := slices.BinarySearch(names, last)
	if found {
		at++
	}
	return slices.Concat(names[at:], names[:at])
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
	if f := w.own.asking[q.node]; f.n > 1 {
		f.n--
		w.own.asking[q.node] = f
	} else {
		delete(w.own.asking, q.node)
	}
	switch now := w.timeLocked(); {
	case best.answer == life:
		if w.places.note(best.ip, now); w.config.Agent(best.ip) {
			w.watch.Opened(q.node, now)
		} else {
			w.watch.Spoke(q.node, now)
		}
	case best.answer == silence && q.answers && ctx.Err() == nil && q.epoch == w.epoch && now-q.asked <= late:
		w.watch.Unanswered(q.node, w.config.Self, q.asked, now)
		w.hasNews()
	}
}

// connect asks one pod. Also a connection that is refused is an answer.
func (w *Watcher) connect(ctx context.Context, ip string) answer {
	port := cmp.Or(w.config.Port, wire.PortMetrics)
	switch {
	case w.config.Activator(ip):
		port = wire.PortAnnounce
	case w.config.Agent(ip):
		port = wire.PortNodeAgent
	}
	conn, err := w.config.Dial(ctx, net.JoinHostPort(ip, strconv.Itoa(port)))
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
