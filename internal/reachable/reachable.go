// Package reachable answers the autoscalers' question which pods of other nodes can be reached from
// here.
//
// Owns: the attempts to connect that it asks for, and a Memory of those that were answered. Reads:
// which addresses may be asked. Writes: to Silent, which did not answer. Never: sends a byte to an
// address, or keeps more of a question than its addresses.
package reachable

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"ebb.dev/ebb/wire"
)

const (
	// patience is how long a pod has to answer. After a time of paused this process did not run
	// meanwhile, so that a pod may have answered in time.
	patience, paused = time.Second, 1500 * time.Millisecond
	// atOnce bounds the questions that are answered at once, each of wire.MaxReach addresses at
	// most.
	atOnce = 8
	// readTimeout bounds how long a question may take to arrive.
	readTimeout = 5 * time.Second
)

// Server answers POST wire.PathReach.
type Server struct {
	Node string // where this process runs
	// Admit returns the signature of a message of who may ask, and answers any other one.
	Admit func(http.ResponseWriter, *http.Request) (*wire.Signature, bool)
	// Knows reports whether an address may be asked.
	Knows func(netip.Addr) bool
	// Memory, if set, has which addresses have answered lately. Of others nothing is said when they
	// do not.
	Memory *Memory
	// Silent, if set, is called with the pods at which nobody answered, and those at which somebody
	// did. It must not block.
	Silent func(silent, answered []netip.Addr)
	// Dial connects to a pod; nil is over TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	once  sync.Once
	slots chan struct{}
}

// ServeHTTP answers 200, what Admit does to a stranger, 400 and 413 to what nobody sends who may
// ask, and 503 to too many questions at once.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "use POST", http.StatusMethodNotAllowed)
		return
	}
	signature, ok := s.Admit(w, r)
	if !ok {
		return
	}
	s.once.Do(func() { s.slots = make(chan struct{}, atOnce) })
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		http.Error(w, "too many questions at once", http.StatusServiceUnavailable)
		return
	}
	// Not every ResponseWriter has deadlines; the real one has.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout))
	body, ok := signature.ReadBody(w, r, wire.MaxReachBytes)
	if !ok {
		return
	}
	question, err := wire.DecodeReachQuestion(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := json.Marshal(s.answer(r.Context(), question))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set(wire.HeaderReachProof, signature.Answer(answer))
	w.Header().Set("Content-Type", "application/json")
	w.Write(answer)
}

// answer asks the pods, all at once.
func (s *Server) answer(ctx context.Context, q wire.ReachQuestion) wire.ReachAnswer {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a := wire.ReachAnswer{Node: s.Node}
	var mutex sync.Mutex
	var asking sync.WaitGroup
	for _, pod := range q.Pods {
		if !s.Knows(pod) {
			continue
		}
		asking.Go(func() {
			life, silent := s.ask(ctx, pod)
			mutex.Lock()
			defer mutex.Unlock()
			if life {
				a.Life = append(a.Life, pod)
				s.Memory.note(pod)
			} else if silent && s.Memory.has(pod) {
				a.Silent = append(a.Silent, pod)
			}
		})
	}
	asking.Wait()
	if time.Since(began) >= paused {
		a.Silent = nil
	}
	if s.Silent != nil && len(a.Silent) > 0 {
		s.Silent(a.Silent, a.Life)
	}
	return a
}

// ask connects to a pod. A connection that is refused is an answer, too. Neither is true if the
// attempt failed here.
func (s *Server) ask(ctx context.Context, pod netip.Addr) (life, silent bool) {
	dial := s.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	conn, err := dial(ctx, "tcp", netip.AddrPortFrom(pod, wire.PortHTTP1).String())
	var failed *net.OpError
	switch {
	case err == nil:
		// With a reset. Otherwise both nodes would keep each question for two minutes among the
		// connections that they track.
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		conn.Close()
		return true, false
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return true, false
	}
	return false, errors.As(err, &failed) && failed.Timeout() || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.EHOSTDOWN)
}
