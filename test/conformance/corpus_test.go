package conformance

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"ebb.dev/ebb/internal/testing/reserve"
	"ebb.dev/ebb/test/golden"
	"ebb.dev/ebb/test/internal/component"
	"ebb.dev/ebb/test/internal/envoy"
	"ebb.dev/ebb/test/internal/nginx"
)

// A malformed request is a file in testdata/corpus. Lines that start with # say what it is about.
// One that starts with "# Ebb forwards it:" says why Ebb takes what another proxy refuses, and one
// with "# Race:" why the verdicts of others are not the same each time.
type malformed struct {
	name  string
	laxer string
	race  bool
	lines []string
}

const (
	laxerMark = "# Ebb forwards it: "
	raceMark  = "# Race: "
)

func corpus(t *testing.T, dir string) (out []malformed) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata/corpus", dir, "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := malformed{name: dir + "/" + strings.TrimSuffix(filepath.Base(file), ".txt")}
		for one := range strings.Lines(string(text)) {
			one = strings.TrimSuffix(one, "\n")
			switch why, is := strings.CutPrefix(one, laxerMark); {
			case is:
				m.laxer = why
			case strings.HasPrefix(one, raceMark):
				m.race = true
			case !strings.HasPrefix(one, "#") && one != "":
				m.lines = append(m.lines, one)
			}
		}
		out = append(out, m)
	}
	if len(out) < 30 {
		t.Errorf("only %d requests of %s", len(out), dir)
	}
	return out
}

// unescape turns \r, \n, \t, \xHH and \\ into bytes.
func unescape(t *testing.T, text string) string {
	t.Helper()
	out, err := strconv.Unquote(`"` + strings.ReplaceAll(text, `"`, `\"`) + `"`)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return out
}

// proxy is one implementation, and what is behind it.
type proxy struct {
	name     string
	version  string
	plain    string // its address for HTTP/1.1
	h2       string // and for HTTP/2 with prior knowledge
	upstream *recorder
}

// ebb is the proxy that the others are compared with.
const ebb = "queue-proxy"

// proxies starts queue-proxy, the one of net/http, nginx and Envoy. Where the last two are not
// installed they are left out, but not in CI.
func proxies(t *testing.T) []*proxy {
	t.Helper()
	own := &proxy{name: ebb, upstream: record(t)}
	_, own.plain = component.StartQueueProxy(t, component.Build(t), revision, "corpus", 0, own.upstream.addr, "")
	own.h2 = own.plain
	all := []*proxy{own, standard(t)}
	ci, _ := strconv.ParseBool(os.Getenv("CI"))
	path, err := exec.LookPath("nginx")
	if err == nil {
		all = append(all, startNginx(t, path))
	} else if ci {
		t.Fatal("nginx is not installed (make tools installs it)")
	} else {
		t.Log("nginx is not installed (make tools installs it): not compared")
	}
	path = envoy.Installed()
	if path == "" && ci {
		if path, err = envoy.Find(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if path != "" {
		all = append(all, startEnvoy(t, path))
	} else {
		t.Log("Envoy is not installed (make bench-proxy installs it): not compared")
	}
	return all
}

func standard(t *testing.T) *proxy {
	p := &proxy{name: "net/http", upstream: record(t)}
	transport := &http.Transport{DisableCompression: true}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	quiet := log.New(io.Discard, "", 0)
	server := httptest.NewUnstartedServer(&httputil.ReverseProxy{Transport: transport, ErrorLog: quiet, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: p.upstream.addr})
		r.Out.Host = r.In.Host
	}})
	server.Config.Protocols, server.Config.ErrorLog = protocols, quiet
	server.Start()
	t.Cleanup(func() { server.Close(); transport.CloseIdleConnections() })
	p.plain = server.Listener.Addr().String()
	p.h2 = p.plain
	return p
}

func startNginx(t *testing.T, path string) *proxy {
	t.Helper()
	p := &proxy{name: "nginx", plain: reserve.Port(t).String(), h2: reserve.Port(t).String(), upstream: record(t)}
	out, err := exec.Command(path, "-v").CombinedOutput()
	if err != nil {
		t.Fatalf("%s -v: %v", path, err)
	}
	p.version = regexp.MustCompile(`[0-9.]+`).FindString(string(out))
	// One file has both listeners. The requests of this corpus are small: no body is on disk.
	arguments, err := nginx.Arguments(t.TempDir(), p.plain, p.upstream.addr, "listen "+p.h2+" http2;")
	if err != nil {
		t.Fatal(err)
	}
	run(t, path, arguments, p)
	return p
}

func startEnvoy(t *testing.T, path string) *proxy {
	t.Helper()
	p := &proxy{name: "envoy", plain: reserve.Port(t).String(), upstream: record(t)}
	p.h2 = p.plain
	out, err := exec.Command(path, "--version").CombinedOutput()
	if err != nil {
		t.Fatalf("%s --version: %v", path, err)
	}
	p.version = regexp.MustCompile(`/([0-9.]+)/`).FindStringSubmatch(string(out))[1]
	arguments, err := envoy.Arguments(t.TempDir(), envoy.Proxy{Listen: p.plain, Upstream: p.upstream.addr})
	if err != nil {
		t.Fatal(err)
	}
	run(t, path, arguments, p)
	return p
}

// run starts a program until the test ends, and waits until it listens.
func run(t *testing.T, path string, arguments []string, p *proxy) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var output bytes.Buffer
	command := exec.CommandContext(ctx, path, arguments...)
	command.Stdout, command.Stderr = &output, &output
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { command.Wait(); close(ended) }()
	t.Cleanup(func() { stop(); <-ended })
	for _, address := range []string{p.plain, p.h2} {
		for {
			conn, err := net.Dial("tcp", address)
			if err == nil {
				conn.Close()
				break
			}
			select {
			case <-ended:
				t.Fatalf("%s ended:\n%s", p.name, output.String())
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

// marker follows each HTTP/1.1 request on its connection. Where the first one ends shows in what
// becomes of the second.
const marker = "GET /marker HTTP/1.1\r\nHost: marker.example\r\nConnection: close\r\n\r\n"

// verdict is what became of a request: what the client was answered and what the backend got.
type verdict struct {
	answers []string
	got     []message
}

func (v verdict) String() string {
	text := strings.Join(v.answers, " ")
	for _, m := range v.got {
		text += "\n      " + m.String()
	}
	return text
}

// forwarded reports whether the backend got a whole request besides the marker.
func (v verdict) forwarded() bool {
	return slices.ContainsFunc(v.got, func(m message) bool { return m.target != "/marker" })
}

// reading is what two recipients must agree on: which requests there are, and for which hosts.
func (v verdict) reading() string {
	var out []string
	for _, m := range v.got {
		out = append(out, fmt.Sprintf("%s %s %q %q", m.method, m.target, m.host, m.body))
	}
	return strings.Join(out, "; ")
}

// send sends a request over HTTP/1.1 and returns its verdict. A proxy that waits for more is given
// the time quiet, then the end of the stream.
func (p *proxy) send(t *testing.T, m malformed, quiet time.Duration) (v verdict) {
	t.Helper()
	conn, err := net.Dial("tcp", p.plain)
	if err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	defer conn.Close()
	go io.WriteString(conn, unescape(t, strings.Join(m.lines, ""))+marker)
	all := readAll(conn, quiet)
	conn.(*net.TCPConn).CloseWrite()
	all = append(all, readAll(conn, 2*quiet)...)
	conn.Close()
	reader := bufio.NewReader(bytes.NewReader(all))
	for {
		if reader.Buffered() == 0 {
			if _, err := reader.Peek(1); err != nil {
				break
			}
		}
		method := "GET"
		if len(v.answers) == 0 && len(m.lines) > 0 && strings.HasPrefix(m.lines[0], "HEAD ") {
			method = "HEAD"
		}
		response, err := http.ReadResponse(reader, &http.Request{Method: method})
		if err != nil {
			v.answers = append(v.answers, "no-status-line") // the answer to HTTP/0.9
			break
		}
		io.Copy(io.Discard, response.Body)
		v.answers = append(v.answers, strconv.Itoa(response.StatusCode))
	}
	if len(v.answers) == 0 {
		v.answers = []string{"closed"}
	}
	v.got = p.upstream.take(2 * quiet)
	return v
}

// readAll reads until the peer closes, or sends nothing for the time quiet.
func readAll(conn net.Conn, quiet time.Duration) (all []byte) {
	piece := make([]byte, 64<<10)
	for {
		conn.SetReadDeadline(time.Now().Add(quiet))
		n, err := conn.Read(piece)
		all = append(all, piece[:n]...)
		if err != nil {
			return all
		}
	}
}

// TestMalformedRequests sends the corpus through queue-proxy, net/http's proxy, nginx and Envoy.
// The verdicts of all are in verdicts.txt.
//
//   - What queue-proxy sends to the container can be read in one way only.
//   - What another proxy refuses, queue-proxy refuses too, unless the file says why not.
//   - Where other proxies differ about which requests there are, or for which host, queue-proxy
//     refuses, or what it forwards is one of these readings, written in one way only.
func TestMalformedRequests(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds two programs")
	}
	list := slices.Concat(corpus(t, "http1"), corpus(t, "http2"))
	all := proxies(t)
	recorded := readVerdicts(t)
	verdicts := make([][]verdict, len(all))
	var group sync.WaitGroup
	for i, p := range all {
		verdicts[i] = make([]verdict, len(list))
		group.Go(func() {
			for n, m := range list {
				send := p.send
				if strings.HasPrefix(m.name, "http2/") {
					send = p.sendFrames
				}
				// A machine with much else to do may need longer.
				for _, quiet := range []time.Duration{100 * time.Millisecond, time.Second, 4 * time.Second} {
					verdicts[i][n] = send(t, m, quiet)
					if golden.Update() || !p.comparable(m, recorded) || p.same(recorded[m.name][p.name], verdicts[i][n].String()) {
						break
					}
				}
			}
		})
	}
	group.Wait()
	for n, m := range list {
		t.Run(m.name, func(t *testing.T) {
			of := map[string]verdict{}
			for i, p := range all {
				of[p.name] = verdicts[i][n]
				if p.comparable(m, recorded) && !golden.Update() && !p.same(recorded[m.name][p.name], verdicts[i][n].String()) {
					t.Errorf("%s: %s\nrecorded: %s", p.name, verdicts[i][n], recorded[m.name][p.name])
				}
			}
			judge(t, m, of)
		})
	}
	if golden.Update() {
		writeVerdicts(t, list, all, verdicts)
	}
}

// same reports whether two verdicts are the same. Whether another proxy sends a request again on a
// new connection depends on when it sees that the old one was closed.
func (p *proxy) same(a, b string) bool {
	once := func(text string) []string { return slices.Compact(strings.Split(text, "\n")) }
	return a == b || p.name != ebb && slices.Equal(once(a), once(b))
}

// judge holds queue-proxy's verdict to those of the others.
func judge(t *testing.T, m malformed, of map[string]verdict) {
	t.Helper()
	ours := of[ebb]
	for _, got := range ours.got {
		if got.unclear != nil {
			t.Errorf("queue-proxy sends what can be read in two ways: %s", got)
		}
	}
	var refusing []string
	readings := map[string]bool{}
	for name, v := range of {
		if name == ebb {
			continue
		}
		if !v.forwarded() {
			refusing = append(refusing, name)
		}
		readings[v.reading()] = true
	}
	slices.Sort(refusing)
	switch {
	case !ours.forwarded():
		if m.laxer != "" {
			t.Errorf("queue-proxy refuses it; take the line %q out", laxerMark)
		}
	case len(refusing) > 0 && m.laxer == "":
		t.Errorf("queue-proxy forwards what %s refuses, and the file has no line %q:\n%s", strings.Join(refusing, " and "), laxerMark, ours)
	case len(readings) > 1 && !readings[ours.reading()] && m.laxer == "":
		t.Errorf("the others differ, and queue-proxy reads it in another way still:\n%s", ours)
	}
}

const verdictsFile = "testdata/corpus/verdicts.txt"

// comparable reports whether the verdict on a request of this version of a proxy is recorded.
func (p *proxy) comparable(m malformed, recorded map[string]map[string]string) bool {
	version, known := recorded[""][p.name]
	return known && version == p.version && (p.name == ebb || !m.race)
}

// readVerdicts returns the recorded verdicts by request and proxy. Those of "" are versions.
func readVerdicts(t *testing.T) map[string]map[string]string {
	t.Helper()
	out := map[string]map[string]string{"": {}}
	text, err := os.ReadFile(verdictsFile)
	if errors.Is(err, os.ErrNotExist) && golden.Update() {
		return out
	} else if err != nil {
		t.Fatal(err)
	}
	request, name := "", ""
	for one := range strings.Lines(string(text)) {
		one = strings.TrimSuffix(one, "\n")
		switch {
		case strings.HasPrefix(one, "#") || one == "":
		case strings.HasPrefix(one, "== "):
			request = one[3:]
			out[request] = map[string]string{}
		case strings.HasPrefix(one, "      "):
			out[request][name] += "\n" + one
		default:
			var rest string
			name, rest, _ = strings.Cut(strings.TrimSpace(one), ":")
			out[request][name] = strings.TrimSpace(rest)
		}
	}
	return out
}

func writeVerdicts(t *testing.T, list []malformed, all []*proxy, verdicts [][]verdict) {
	t.Helper()
	var out strings.Builder
	out.WriteString("# What each proxy makes of each request of the corpus: the statuses that the client gets, then the requests that the\n" +
		"# backend gets. Made by `go test ./test/conformance -run TestMalformedRequests -update`. The versions:\n")
	for _, p := range all {
		fmt.Fprintf(&out, "%s: %s\n", p.name, p.version)
	}
	for n, m := range list {
		fmt.Fprintf(&out, "\n== %s\n", m.name)
		for i, p := range all {
			fmt.Fprintf(&out, "  %s: %s\n", p.name, verdicts[i][n])
		}
	}
	if err := os.WriteFile(verdictsFile, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
