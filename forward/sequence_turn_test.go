package forward

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"
)

// ending is a way in which an exchange can end.
type ending string

const (
	endsPlain   ending = "plain"
	endsHead    ending = "HEAD answered with a body"
	ends204     ending = "204 with a body"
	ends304     ending = "304 with a body"
	endsHints   ending = "103 with a body"
	endsMore    ending = "more than Content-Length"
	endsChunks  ending = "more after the last chunk"
	endsEarly   ending = "answered before the request was read"
	endsUnread  ending = "answered, and the request never read"
	endsStalled ending = "a timeout in the middle"
	endsSilent  ending = "a timeout before the answer"
	endsRefused ending = "an upgrade refused"
	endsSwitch  ending = "an upgrade"
	endsAgain   ending = "503, and sent again"
	endsAsked   ending = "100 Continue"
	endsUnasked ending = "answered without 100 Continue"
	endsReset   ending = "a reset in the middle"
	endsClosed  ending = "closed when the answer was whole"
	endsGone    ending = "closed without an answer"
	endsLeft    ending = "the client leaves"
	endsHalf    ending = "the client leaves with its body half sent"
)

// strayEndings always have bytes that nobody asked for.
var strayEndings = []ending{endsHead, ends204, ends304, endsHints, endsMore, endsChunks}

var endings1 = []ending{endsEarly, endsUnread, endsStalled, endsSilent, endsRefused, endsSwitch, endsAgain, endsAsked, endsUnasked,
	endsReset, endsClosed, endsGone, endsLeft, endsHalf}

// HTTP/2 has no upgrades, and net/http's client does not wait for 100 Continue there.
var endings2 = []ending{endsEarly, endsUnread, endsStalled, endsSilent, endsAgain, endsReset, endsClosed, endsGone, endsLeft, endsHalf}

// delay is how long after an answer unasked bytes come, and for how many of 1000 that or less.
type delay struct {
	of    int
	after time.Duration
}

var delays = []delay{{550, 0}, {720, 100 * time.Microsecond}, {890, time.Millisecond}, {980, 5 * time.Millisecond}, {998, 20 * time.Millisecond}, {1000, 150 * time.Millisecond}}

// turn is one exchange: what is to happen, and what did.
type turn struct {
	number  int
	http2   bool
	method  string
	ends    ending
	size    int // of the answer's body
	sends   int // bytes of the request's body
	chunked bool
	unasked bool // bytes follow that nobody asked for
	whole   bool // ... which look like a response
	closes  bool // ... and then the program closes
	after   time.Duration
	early   bool // the client sends bytes behind its head, which are another protocol's

	asked int   // how often the program read it
	on    *link // where it read it last; nil for HTTP/2
	began time.Time
	got   answer

	// The unasked bytes were written from a moment on, and had arrived at another. together says
	// that they were in the same write as the end of the answer, so they arrived with it.
	together bool
	from, to time.Time
	settled  sync.Cond
}

// answer is what a client got.
type answer struct {
	status int
	mark   string // the answer's Number
	body   []byte
	ended  time.Time
	timer  string // the trailer Ebb-Timeout
	cut    bool   // the connection ended too early, or the client left
	broken string // what the client got is no HTTP, or more than an answer
}

// draw decides about the next exchange.
func (s *sequence) draw(random *rand.Rand) *turn {
	v := &turn{number: int(s.next.Add(1)), http2: s.http2, method: "GET", ends: endsPlain}
	v.settled.L = &s.mu
	v.size = []int{0, 1, 100, 100, 3000, 9000, 60000}[random.IntN(7)]
	v.chunked = random.IntN(3) == 0
	if random.IntN(5) == 0 {
		v.method, v.sends = "POST", []int{1, 100, 9000}[random.IntN(3)]
	}
	if random.Float64() < s.faults {
		v.fault(random, s.strays)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn[v.number] = v
	s.all = append(s.all, v)
	return v
}

// fault makes it a turn that does not end as it should.
func (v *turn) fault(random *rand.Rand, strays float64) {
	list := endings1
	if v.http2 {
		list = endings2
	}
	if random.Float64() < strays {
		list = strayEndings
	}
	v.ends = list[random.IntN(len(list))]
	v.whole, v.closes = random.IntN(2) == 0, random.IntN(4) == 0
	n := random.IntN(1000)
	v.after = delays[slices.IndexFunc(delays, func(d delay) bool { return n < d.of })].after
	switch v.ends {
	case endsHead:
		v.method, v.sends, v.unasked = "HEAD", 0, true
	case ends204, ends304, endsHints:
		v.unasked = true
	case endsMore:
		v.chunked, v.unasked = false, true
	case endsChunks:
		v.chunked, v.unasked = true, true
	case endsEarly, endsUnread:
		v.method, v.sends = "POST", []int{9000, 100000, 300000}[random.IntN(3)]
		v.unasked = v.ends == endsEarly && random.Float64() < strays
	case endsStalled:
		v.chunked, v.size = random.IntN(2) == 0, 3000
	case endsRefused:
		v.method, v.sends, v.unasked = "GET", 0, random.Float64() < strays
		v.early = random.IntN(2) == 0
	case endsSwitch:
		v.method, v.sends, v.early = "GET", 0, random.IntN(2) == 0
	case endsAgain:
		v.size, v.unasked = min(v.size, 100), random.Float64() < strays
	case endsAsked, endsUnasked, endsHalf:
		v.method, v.sends = "POST", []int{100, 9000}[random.IntN(2)]
	}
}

func (v *turn) faulty() bool { return v.ends != endsPlain }

// settle waits until all unasked bytes have arrived.
func (v *turn) settle() {
	v.settled.L.Lock()
	defer v.settled.L.Unlock()
	for !v.from.IsZero() && v.to.IsZero() {
		v.settled.Wait()
	}
}

// kind is how the end of the answer is found.
func (v *turn) kind() string {
	switch {
	case v.method == "HEAD":
		return "HEAD"
	case v.ends == ends204, v.ends == ends304:
		return string(v.ends)[:3]
	case v.chunked:
		return "chunked"
	}
	return "length"
}

// tagged are size bytes that carry a number.
func tagged(number, size int) []byte {
	tag := fmt.Appendf(nil, "[%d]", number)
	return bytes.Repeat(tag, size/len(tag)+1)[:size]
}

// strays are the bytes that nobody asked for.
func (v *turn) strays() []byte {
	body := fmt.Sprintf("unasked %d;", v.number)
	if v.whole {
		return fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nNumber: unasked %d\r\nContent-Length: %d\r\n\r\n%s", v.number, len(body), body)
	}
	return []byte(body)
}

var (
	unaskedTag = regexp.MustCompile(`unasked (\d+)`)
	answerTag  = regexp.MustCompile(`\[(\d+)\]`)
)

// foreign returns the number of the exchange whose bytes are in an answer to v. unasked says that
// they are the ones that nobody asked for.
func (v *turn) foreign() (number int, unasked bool) {
	if v.got.mark == strconv.Itoa(v.number) && v.got.broken == "" && bytes.HasPrefix(tagged(v.number, max(v.size, len(v.got.body))), v.got.body) {
		return 0, false
	}
	for _, text := range [][]byte{[]byte(v.got.mark), []byte(v.got.broken), v.got.body} {
		if m := unaskedTag.FindSubmatch(text); m != nil {
			n, _ := strconv.Atoi(string(m[1]))
			if n == v.number && (v.ends == endsHints || v.http2) {
				continue // nothing says that a response after 103 was not asked for; HTTP/2 says whose DATA is
			}
			return n, true
		}
		for _, m := range answerTag.FindAllSubmatch(text, -1) {
			if n, _ := strconv.Atoi(string(m[1])); n != v.number {
				return n, false
			}
		}
	}
	if n, err := strconv.Atoi(v.got.mark); err == nil && n != v.number {
		return n, false
	}
	return 0, false
}
