package front

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"ebb.dev/ebb/shim/internal/config"
	"ebb.dev/ebb/shim/internal/reply"
	"ebb.dev/ebb/shim/internal/slots"
)

// proxy passes requests on to the program, HTTP/2 as HTTP/2.
type proxy struct {
	config *config.Config
	slots  *slots.Slots
	log    *slog.Logger
	pass   *httputil.ReverseProxy
}

func newProxy(c *config.Config, address string, log *slog.Logger) http.Handler {
	to := &url.URL{Scheme: "http", Host: address}
	p := &proxy{config: c, slots: slots.New(c.Workers, c.Queue, c.Timeout), log: log}
	p.pass = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host
			r.Out.URL.RawQuery = r.In.URL.RawQuery // also what Go cannot parse
			for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if values := r.In.Header[name]; values != nil {
					r.Out.Header[name] = values // the gateway's; the shim is part of the program
				}
			}
		},
		Transport:      &transports{one: transport(new(http.Protocols), false), two: transport(new(http.Protocols), true)},
		FlushInterval:  -1,
		ModifyResponse: p.limit,
		ErrorHandler:   p.fail,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BufferPool:     &pool{},
	}
	return p
}

func transport(protocols *http.Protocols, two bool) *http.Transport {
	protocols.SetHTTP1(!two)
	protocols.SetUnencryptedHTTP2(two)
	return &http.Transport{Protocols: protocols, DisableCompression: true, MaxIdleConnsPerHost: 1000, IdleConnTimeout: time.Minute,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext} // no proxy, whatever HTTP_PROXY says
}

type transports struct{ one, two *http.Transport }

func (t *transports) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.ProtoMajor == 2 {
		return t.two.RoundTrip(r)
	}
	return t.one.RoundTrip(r)
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	defer func() {
		p.log.Debug("a request was answered", "method", r.Method, "path", r.URL.Path, "ms", time.Since(began).Milliseconds())
	}()
	if most := p.config.MaxRequest; most > 0 {
		if r.ContentLength > most {
			p.tooLarge(w)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, most)
	}
	release, err := p.slots.Take(r.Context())
	switch {
	case errors.Is(err, slots.ErrFull), errors.Is(err, slots.ErrLong):
		reply.Plain(w, http.StatusServiceUnavailable, "The program is busy. Try again.")
		return
	case err != nil:
		return // the client has left
	}
	defer release()
	if t := p.config.Timeout; t > 0 {
		ctx, cancel := context.WithTimeout(r.Context(), t)
		defer cancel()
		r = r.WithContext(ctx)
	}
	_ = http.NewResponseController(w).EnableFullDuplex() // the program may answer before it has read
	p.pass.ServeHTTP(w, r)
}

func (p *proxy) tooLarge(w http.ResponseWriter) {
	reply.Plain(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("The request is larger than %d bytes.", p.config.MaxRequest))
}

// fail answers a request that the program did not answer.
func (p *proxy) fail(w http.ResponseWriter, r *http.Request, err error) {
	var large *http.MaxBytesError
	var dial *net.OpError
	switch {
	case errors.As(err, &large):
		p.tooLarge(w)
	case errors.Is(r.Context().Err(), context.DeadlineExceeded):
		reply.Plain(w, http.StatusGatewayTimeout, fmt.Sprintf("The program did not answer within %s.", p.config.Timeout))
	case r.Context().Err() != nil: // the client has left
	case errors.As(err, &dial) && dial.Op == "dial":
		reply.Plain(w, http.StatusServiceUnavailable, "The program is being started again. Try again.")
	default:
		reply.Plain(w, http.StatusBadGateway, "The program ended or broke off before it answered.")
	}
	p.log.Warn("a request failed", "method", r.Method, "path", r.URL.Path, "fault", err)
}

var errTooMuch = errors.New("the response is too large")

// limit bounds the body of a response.
func (p *proxy) limit(r *http.Response) error {
	if most := p.config.MaxResponse; most > 0 && r.StatusCode != http.StatusSwitchingProtocols {
		r.Body = &limited{ReadCloser: r.Body, left: most}
	}
	return nil
}

type limited struct {
	io.ReadCloser
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p[:min(int64(len(p)), l.left+1)])
	if l.left -= int64(n); l.left < 0 {
		return n - 1, errTooMuch
	}
	return n, err
}

type pool struct{ buffers sync.Pool }

func (p *pool) Get() []byte {
	if b, ok := p.buffers.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 32<<10)
}

func (p *pool) Put(b []byte) { p.buffers.Put(&b) }
