package cgi

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

func value(env []string, name string) (string, bool) {
	for _, pair := range env {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

func TestAProgramKnowsTheRequest(t *testing.T) {
	r := httptest.NewRequest("POST", "http://hello.example:8080/a%20b/c?x=1&y=%20", strings.NewReader("body"))
	r.Header.Set("Content-Type", "text/plain")
	r.Header.Add("X-Two", "a")
	r.Header.Add("X-Two", "b")
	r.Header.Add("Cookie", "a=1")
	r.Header.Add("Cookie", "b=2")
	env, err := Environment([]string{"PATH=/bin", "K_SERVICE=hello", "REQUEST_METHOD=of the container"}, r, "ebb-shim")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"GATEWAY_INTERFACE": "CGI/1.1", "SERVER_SOFTWARE": "ebb-shim", "SERVER_PROTOCOL": "HTTP/1.1", "SERVER_NAME": "hello.example",
		"SERVER_PORT": "8080", "REQUEST_METHOD": "POST", "REQUEST_URI": "http://hello.example:8080/a%20b/c?x=1&y=%20", "SCRIPT_NAME": "",
		"PATH_INFO": "/a b/c", "QUERY_STRING": "x=1&y=%20", "REMOTE_ADDR": "192.0.2.1", "CONTENT_LENGTH": "4", "CONTENT_TYPE": "text/plain",
		"HTTP_HOST": "hello.example:8080", "HTTP_X_TWO": "a, b", "HTTP_COOKIE": "a=1; b=2", "PATH": "/bin", "K_SERVICE": "hello",
	} {
		if got, ok := value(env, name); !ok || got != want {
			t.Errorf("%s is %q, %v, want %q", name, got, ok, want)
		}
	}
}

// The header Proxy would become HTTP_PROXY, which many programs obey (httpoxy).
func TestAHeaderReplacesNoVariableThatIsNotItsOwn(t *testing.T) {
	r := httptest.NewRequest("GET", "/", nil)
	r.Header = http.Header{"Proxy": {"evil"}, "pRoXy": {"evil"}, "X_Role": {"evil"}, "X-Role": {"good"}, "X.Y": {"evil"}, "X Y": {"evil"},
		"Own": {"evil"}, "": {"evil"}, "Nul": {"a\x00LD_PRELOAD=evil"}, "Host": {"evil"}, "HOST": {"evil"}}
	env, err := Environment([]string{"HTTP_OWN=the container's", "LD_PRELOAD=the container's"}, r, "")
	if err != nil {
		t.Fatal(err)
	}
	if found := slices.IndexFunc(env, func(pair string) bool { return strings.Contains(pair, "evil") }); found >= 0 {
		t.Errorf("a header became %q", env[found])
	}
	if got, _ := value(env, "HTTP_X_ROLE"); got != "good" {
		t.Errorf("HTTP_X_ROLE is %q", got)
	}
	if _, ok := value(env, "HTTP_PROXY"); ok {
		t.Error("there is HTTP_PROXY")
	}
	env, _ = Environment([]string{"HTTP_PROXY=http://proxy"}, r, "")
	if got, _ := value(env, "HTTP_PROXY"); got != "http://proxy" {
		t.Errorf("the container's HTTP_PROXY is %q", got)
	}
}

func TestARequestWithNULIsRefused(t *testing.T) {
	r := httptest.NewRequest("GET", "/a%00b", nil)
	if _, err := Environment(nil, r, ""); err != ErrNUL {
		t.Errorf("got %v", err)
	}
}

func TestTheHeaderOfAnAnswer(t *testing.T) {
	for _, test := range []struct {
		what, text string
		status     int // 0: refused
		header     http.Header
		problem    string
	}{
		{"a type", "Content-Type: text/plain\r\n\r\nbody", 200, http.Header{"Content-Type": {"text/plain"}}, ""},
		{"a status", "Status: 404 Not Found\nX-A: 1\nx-a: 2\n\nbody", 404, http.Header{"X-A": {"1", "2"}}, ""},
		{"a redirect", "Location: /else\n\nbody", 302, http.Header{"Location": {"/else"}}, ""},
		{"nothing", "\nbody", 200, http.Header{}, ""},
		{"headers of the connection", "Connection: close\nTransfer-Encoding: chunked\nContent-Length: 7\nUpgrade: x\n\nbody", 200, http.Header{}, ""},
		{"no header", "body\n\n", 0, nil, `the line "body" is no header`},
		{"no end", "Status: 200\n", 0, nil, "ends before an empty line"},
		{"no output", "", 0, nil, "ends before an empty line"},
		{"an informational status", "Status: 101\n\n", 0, nil, "not one of 200 to 599"},
		{"a long status", "Status: 0200\n\n", 0, nil, "not one of 200 to 599"},
		{"a space in a name", "X Y: 1\n\n", 0, nil, "is no header"},
		{"a control character", "X: a\x00b\n\n", 0, nil, "control characters"},
		{"a carriage return", "X: a\rY: b\n\n", 0, nil, "control characters"},
		{"too much", "X: " + strings.Repeat("x", MaxHeader) + "\n\n", 0, nil, "more than 65536 bytes"},
	} {
		r := bufio.NewReader(strings.NewReader(test.text))
		status, header, err := ReadHeader(r)
		if test.status == 0 {
			if err == nil || !strings.Contains(err.Error(), test.problem) {
				t.Errorf("%s: got %v, want %q", test.what, err, test.problem)
			}
			continue
		}
		if err != nil || status != test.status || len(header) != len(test.header) {
			t.Errorf("%s: %d %v, %v", test.what, status, header, err)
		}
		for name := range test.header {
			if !slices.Equal(header[name], test.header[name]) {
				t.Errorf("%s: %s is %q", test.what, name, header[name])
			}
		}
		if rest, _ := r.ReadString(0); rest != "body" {
			t.Errorf("%s: after the header comes %q", test.what, rest)
		}
	}
}

func FuzzEnvironment(f *testing.F) {
	f.Add("Proxy", "x", "/a?b", "h:1")
	f.Add("X_Y", "a\x00b", "/%00", "")
	f.Fuzz(func(t *testing.T, name, header, target, host string) {
		r, err := http.NewRequest("GET", target, nil)
		if err != nil {
			return
		}
		r.Host = host
		r.Header[name] = []string{header}
		base := []string{"PATH=/bin", "HTTP_PROXY=p", "HTTP_KEPT=k"}
		env, err := Environment(base, r, "s")
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, pair := range env {
			name, _, ok := strings.Cut(pair, "=")
			if !ok || name == "" || seen[name] || strings.ContainsRune(pair, 0) {
				t.Fatalf("%q in %q", pair, env)
			}
			seen[name] = true
		}
		for _, pair := range base {
			if !slices.Contains(env, pair) {
				t.Fatalf("%q is not in %q", pair, env)
			}
		}
	})
}

func FuzzReadHeader(f *testing.F) {
	f.Add("Status: 200 OK\r\nContent-Type: a/b\r\n\r\nbody")
	f.Add("X: a\rb\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		status, header, err := ReadHeader(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		if status < 200 || status > 599 {
			t.Fatalf("status %d", status)
		}
		for name, values := range header {
			if !isToken(name) || hopByHop[name] || strings.ContainsAny(strings.Join(values, ""), "\r\n\x00") {
				t.Fatalf("%q: %q", name, values)
			}
		}
	})
}
