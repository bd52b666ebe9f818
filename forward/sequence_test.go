package forward

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	sequenceLasts = flag.Duration("sequence-lasts", 0, "how long TestNobodyGetsAnothersAnswer goes on; by default 8s")
	sequenceCount = flag.Int("sequence-exchanges", 0, "how many exchanges TestNobodyGetsAnothersAnswer makes, instead of a time")
	sequenceSeed  = flag.Uint64("sequence-seed", 0, "seed of TestNobodyGetsAnothersAnswer; by default another each time")
	sequenceWorld = flag.Int("sequence-world", -1, "run only this world of the seed, a hundred times")
)

// Whatever a program sends, and whenever, and however exchanges end: an answer is made of the bytes
// of its own exchange, or it is an error. This is about sequences of exchanges, since a fault in
// one exchange shows in the next on the same connection.
//
// Each byte of a request and of its answer carries the exchange's number, and bytes that no request
// asked for are marked. On HTTP/1.1 nobody can tell unasked bytes from an answer if they come after
// the next request was sent. Those are only bounded: a program seen to do so is not given another
// request on such a connection.
func TestNobodyGetsAnothersAnswer(t *testing.T) {
	seed, lasts := *sequenceSeed, *sequenceLasts
	if seed == 0 {
		seed = rand.Uint64()
	}
	if lasts == 0 {
		lasts = 8 * time.Second
	}
	var total sequenceTally
	var worlds int
	var mu sync.Mutex
	until, told := time.Now().Add(lasts), time.Now()
	next := func(more sequenceTally) (n int, goesOn bool) {
		mu.Lock()
		defer mu.Unlock()
		total.add(more)
		worlds++
		if time.Since(told) > time.Minute {
			told = time.Now()
			t.Logf("%s; seed %d", total, seed)
		}
		switch {
		case *sequenceWorld >= 0:
			return *sequenceWorld, worlds <= 100
		case *sequenceCount > 0:
			return worlds, total.exchanges < *sequenceCount
		}
		return worlds, time.Now().Before(until)
	}
	var all sync.WaitGroup
	for range 12 * runtime.GOMAXPROCS(0) { // they mostly wait
		all.Go(func() {
			world, goesOn := next(sequenceTally{})
			for goesOn && !t.Failed() {
				var tally sequenceTally
				if !t.Run(fmt.Sprint(world), func(t *testing.T) { tally = runSequence(t, seed, world) }) {
					t.Errorf("to repeat it: go test ./forward -run TestNobodyGetsAnothersAnswer -sequence-seed %d -sequence-world %d", seed, world)
				}
				world, goesOn = next(tally)
			}
		})
	}
	all.Wait()
	t.Logf("%s; seed %d", total, seed)
	if total.faults == 0 || total.own == 0 {
		t.Errorf("nothing was tested: %s", total)
	}
}

// sequenceTally counts what became of exchanges.
type sequenceTally struct{ exchanges, faults, own, errors, late int }

func (s *sequenceTally) add(o sequenceTally) {
	s.exchanges, s.faults, s.own = s.exchanges+o.exchanges, s.faults+o.faults, s.own+o.own
	s.errors, s.late = s.errors+o.errors, s.late+o.late
}

func (s sequenceTally) String() string {
	return fmt.Sprintf("%d exchanges, %d of them with a fault: %d got their own answer, %d an error, %d what came too late to tell",
		s.exchanges, s.faults, s.own, s.errors, s.late)
}

// sequence is one world: clients, one or two forwarders, and a program.
type sequence struct {
	t       *testing.T
	http2   bool
	hops    int
	tls     [2]bool // between forwarders, before the program
	patient bool    // nobody sends while unasked bytes are on their way
	faults  float64 // the share of exchanges that do not end as they should
	strays  float64 // the share of those after which come unasked bytes, at least
	slots   chan struct{}
	quiet   sync.RWMutex // held by those who send, if patient
	front   string
	config  *tls.Config // of clients of the program, and of the second forwarder
	own     *tls.Config

	near sync.Map // local address of a connection to the program -> *net.TCPConn
	next atomic.Int64
	mu   sync.Mutex
	left int // unasked bytes that are on their way
	none sync.Cond
	turn map[int]*turn
	all  []*turn
	told bool // one fault has been reported
}

// runSequence runs the world of this number.
func runSequence(t *testing.T, seed uint64, number int) sequenceTally {
	random := rand.New(rand.NewPCG(seed, uint64(number)))
	s := &sequence{t: t, turn: map[int]*turn{}}
	s.none.L = &s.mu
	s.http2 = random.IntN(4) == 0
	s.hops = 1 + random.IntN(2)
	s.tls = [2]bool{random.IntN(6) == 0, random.IntN(6) == 0}
	s.patient = random.IntN(2) == 0
	// A program that is not trusted any more has no kept connections, and the rest of its world
	// shows little. So some are rarely at fault.
	s.faults = []float64{0.05, 0.2, 0.5}[random.IntN(3)]
	s.strays = []float64{0, 0.5}[random.IntN(2)]
	s.slots = make(chan struct{}, 1+random.IntN(4))
	clients := max(2, cap(s.slots)+random.IntN(2))
	s.start()
	var all sync.WaitGroup
	for i := range clients {
		random := rand.New(rand.NewPCG(random.Uint64(), uint64(i)))
		all.Go(func() {
			c := s.newClient(random)
			defer c.close()
			for range 60 / clients {
				s.take(c, s.draw(random))
			}
		})
	}
	all.Wait()
	s.mu.Lock()
	for s.left > 0 {
		s.none.Wait()
	}
	s.mu.Unlock()
	return s.count()
}

func (s *sequence) String() string {
	protocol := "HTTP/1.1"
	if s.http2 {
		protocol = "HTTP/2"
	}
	return fmt.Sprintf("%s, %d forwarders, TLS between them %v, TLS to the program %v, patient %v, %d at once",
		protocol, s.hops, s.tls[0] && s.hops == 2, s.tls[1], s.patient, cap(s.slots))
}

// start starts the program, and one or two forwarders in front of it.
func (s *sequence) start() {
	s.config, s.own = sequenceTLS()
	address := s.program()
	for hop := s.hops - 1; hop >= 0; hop-- {
		last := hop == s.hops-1
		options := UpstreamOptions{}
		if last && s.tls[1] || !last && s.tls[0] {
			options.TLS = s.config
		}
		if last {
			options.Dial = s.dial
		}
		up := NewUpstream(address, options)
		s.t.Cleanup(up.Close)
		server := &Server{Handler: sequencePolicy{up}, TLS: s.own}
		l := listenLocal(s.t)
		serve := server.Serve
		if hop == 1 && s.tls[0] {
			serve = server.ServeTLS
		}
		books := keepBooks(server)
		go serve(l)
		s.t.Cleanup(func() {
			server.Close()
			books.closed(s.t)
		})
		address = l.Addr().String()
	}
	s.front = address
}

var sequenceTLS = sync.OnceValues(func() (client, server *tls.Config) {
	known := httptest.NewTLSServer(http.NotFoundHandler()) // it has a certificate that its client knows
	known.Close()
	client = known.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	client.ServerName = "example.com"
	return client, &tls.Config{Certificates: known.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}
})

// dial remembers the socket, to see what has arrived there.
func (s *sequence) dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := dialTCP(ctx, address)
	if err == nil {
		s.near.Store(c.LocalAddr().String(), c)
	}
	return c, err
}

// sequencePolicy forwards everything, and sends a request that got 503 once more.
type sequencePolicy struct{ up *Upstream }

func (p sequencePolicy) Admit(r *Request) Decision {
	r.Timeouts = Timeouts{Total: time.Minute}
	if total, err := time.ParseDuration(r.Header("Total")); err == nil {
		r.Timeouts = Timeouts{Total: total, Action: EndResponse}
	}
	return Decision{Upstream: p.up}
}

func (p sequencePolicy) OnResponse(r *Request, response *Response) (Decision, bool) {
	if again, _ := r.Data.(bool); again || response.Status != 503 || !response.Replayable {
		return Decision{}, false
	}
	r.Data = true
	return Decision{Upstream: p.up}, true
}

func (sequencePolicy) Done(*Request, *Result) {}

// take makes one exchange, when it is its turn.
func (s *sequence) take(c sequenceClient, v *turn) {
	s.slots <- struct{}{}
	defer func() { <-s.slots }()
	switch {
	case s.patient && v.faulty():
		s.quiet.Lock()
		defer s.quiet.Unlock()
	case s.patient:
		s.quiet.RLock()
		defer s.quiet.RUnlock()
	}
	v.began = time.Now()
	got := c.ask(v)
	got.ended = time.Now()
	s.mu.Lock()
	v.got = got
	s.mu.Unlock()
	if s.patient && v.faulty() {
		v.settle()
	}
}
