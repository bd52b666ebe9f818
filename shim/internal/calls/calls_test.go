package calls

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ebb.dev/ebb/shim/internal/child"
	"ebb.dev/ebb/shim/internal/config"
	"ebb.dev/ebb/test/eventually"
)

var family = child.New()

// service is a shell script behind a Handler.
type service struct {
	*testing.T
	*httptest.Server
	mutex sync.Mutex
	lines []string // of the log
}

func (s *service) Write(line []byte) (int, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.lines = append(s.lines, string(line))
	return len(line), nil
}

// logged waits for a line of the log with a message, and returns it.
func (s *service) logged(message, part string) (fields map[string]any) {
	s.Helper()
	eventually.Seen(s, fmt.Sprintf("the log has a line %q with %q", message, part), func() ([]string, bool) {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		for _, line := range s.lines {
			fields = nil
			if json.Unmarshal([]byte(line), &fields) == nil && fields["msg"] == message && strings.Contains(line, part) {
				return nil, true
			}
		}
		return slices.Clone(s.lines), false
	})
	return fields
}

func serve(t *testing.T, mode config.Mode, script string, env ...string) *service {
	t.Helper()
	variables := map[string]string{"SHIM_MODE": string(mode), "SHIM_TIMEOUT": "1m", "SHIM_GRACE": "1m", "SHIM_WORKERS": "4", "SHIM_LOG_LEVEL": "debug"}
	for _, pair := range env {
		name, value, _ := strings.Cut(pair, "=")
		variables[name] = value
	}
	c, err := config.Parse(func(name string) string { return variables[name] }, []string{"sh", "-c", script}, 1)
	if err != nil {
		t.Fatal(err)
	}
	path, err := child.Find("sh")
	if err != nil {
		t.Fatal(err)
	}
	s := &service{T: t}
	log := slog.New(slog.NewJSONHandler(s, &slog.HandlerOptions{Level: c.LogLevel}))
	s.Server = httptest.NewServer(New(c, path, os.Environ(), family, log))
	t.Cleanup(s.Close)
	return s
}

func (s *service) post(body io.Reader) (*http.Response, string, error) {
	s.Helper()
	response, err := s.Client().Post(s.URL+"/a?b=c", "text/plain", body)
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response, string(text), err
}

var modes = []config.Mode{config.Streaming, config.Serializing}

func TestTheBodyIsTheInputAndTheOutputTheAnswer(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 1<<16) // more than pipes and sockets hold
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s := serve(t, mode, "cat")
			for _, body := range []string{"", "hello", large} {
				response, text, err := s.post(strings.NewReader(body))
				if err != nil || response.StatusCode != 200 || text != body || response.Header.Get("Content-Type") != "application/octet-stream" {
					t.Errorf("%d bytes came back as %d, %s, %v", len(body), len(text), response.Status, err)
				}
			}
			_, text, err := s.post(io.MultiReader(strings.NewReader("chunked"))) // of unknown length
			if text != "chunked" || err != nil {
				t.Errorf("chunks: %q, %v", text, err)
			}
		})
	}
}

func TestStreamingPassesEachPartOnAsItComes(t *testing.T) {
	s := serve(t, config.Streaming, "while read line; do echo got $line; done")
	read, write := io.Pipe()
	answer := make(chan *http.Response, 1)
	go func() {
		response, err := s.Client().Post(s.URL, "", read)
		if err != nil {
			t.Error(err)
		}
		answer <- response
	}()
	io.WriteString(write, "one\n")
	response := <-answer
	if response == nil {
		t.FailNow()
	}
	defer response.Body.Close()
	part := make([]byte, 100)
	for _, line := range []string{"one", "two"} {
		n, err := response.Body.Read(part)
		if string(part[:n]) != "got "+line+"\n" || err != nil {
			t.Fatalf("got %q, %v", part[:n], err)
		}
		if line == "one" {
			io.WriteString(write, "two\n")
		}
	}
	write.Close()
	if rest, err := io.ReadAll(response.Body); len(rest) > 0 || err != nil {
		t.Errorf("then %q, %v", rest, err)
	}
}

func TestTheExitStatusIsAnsweredAndStandardErrorIsNot(t *testing.T) {
	for _, mode := range modes {
		s := serve(t, mode, "echo 'a secret' >&2; exit 3")
		response, text, _ := s.post(nil)
		if response.StatusCode != 500 || text != "The program ended with status 3.\n" {
			t.Errorf("%s: %s %q", mode, response.Status, text)
		}
		if line := s.logged("the program wrote to its standard error", "a secret"); line["level"] != "INFO" {
			t.Errorf("%s: %v", mode, line)
		}
		if line := s.logged("a request failed", "status 3"); line["failedSoFar"] != 1.0 || line["status"] != 500.0 {
			t.Errorf("%s: %v", mode, line)
		}
	}
	s := serve(t, config.Serializing, "echo half; kill -9 $$")
	if response, text, _ := s.post(nil); response.StatusCode != 500 || text != "The program was ended by the signal 9 (killed).\n" {
		t.Errorf("%s %q", response.Status, text)
	}
}

func TestHalfAStreamIsNotTakenForAWholeOne(t *testing.T) {
	s := serve(t, config.Streaming, "echo half; exit 3")
	if response, text, err := s.post(nil); response.StatusCode != 200 || text != "half\n" || err == nil {
		t.Errorf("%s %q, %v, want an error", response.Status, text, err)
	}
	if line := s.logged("a request failed", "status 3"); line["cut"] != true {
		t.Errorf("%v", line)
	}
}

func TestAProcessThatTakesTooLongIsEndedWithItsGroup(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			// It ignores SIGTERM, as do its children.
			s := serve(t, mode, "trap '' TERM; echo $$ >&2; sleep 1000; sleep 1000", "SHIM_TIMEOUT=3s", "SHIM_GRACE=0s")
			response, text, _ := s.post(nil)
			if response.StatusCode != 504 || text != "The program did not answer within 3s.\n" {
				t.Errorf("%s %q", response.Status, text)
			}
			pid := s.logged("the program wrote to its standard error", "")["line"]
			s.logged("a request failed", "its time is over")
			awaitGone(t, pid)
		})
	}
}

func awaitGone(t *testing.T, pid any) {
	t.Helper()
	var number int
	fmt.Sscan(fmt.Sprint(pid), &number)
	eventually.True(t, fmt.Sprintf("the group %v is gone", pid), func() bool { return number > 0 && syscall.Kill(-number, 0) != nil })
}

func TestAProcessEndsWhenItsClientLeaves(t *testing.T) {
	for _, mode := range modes {
		s := serve(t, mode, "echo $$ >&2; exec sleep 1000")
		request, _ := http.NewRequestWithContext(t.Context(), "GET", s.URL, nil)
		client := &http.Client{Transport: &http.Transport{}}
		failed := make(chan error, 1)
		go func() {
			_, err := client.Do(request)
			failed <- err
		}()
		pid := s.logged("the program wrote to its standard error", "")["line"]
		s.CloseClientConnections()
		<-failed
		awaitGone(t, pid)
		s.logged("a request failed", "the client has left")
	}
}

func TestOutputWithoutEndIsBounded(t *testing.T) {
	s := serve(t, config.Serializing, "yes", "SHIM_MAX_RESPONSE=100Ki")
	if response, text, _ := s.post(nil); response.StatusCode != 502 || text != "The program's answer is larger than 102400 bytes.\n" {
		t.Errorf("%s %q", response.Status, text)
	}
	s = serve(t, config.Streaming, "yes", "SHIM_MAX_RESPONSE=100Ki")
	if response, text, err := s.post(nil); response.StatusCode != 200 || len(text) > 100<<10 || err == nil {
		t.Errorf("%s, %d bytes, %v, want an error", response.Status, len(text), err)
	}
	s.logged("a request failed", "the response is too large")
}

func TestALargeRequestIsRefused(t *testing.T) {
	for _, mode := range modes {
		s := serve(t, mode, "wc -c", "SHIM_MAX_REQUEST=1000")
		body := bytes.Repeat([]byte("x"), 1001)
		for _, length := range []string{"known", "unknown"} {
			var r io.Reader = bytes.NewReader(body)
			if length == "unknown" {
				r = io.MultiReader(r)
			}
			if response, text, _ := s.post(r); response.StatusCode != 413 || text != "The request is larger than 1000 bytes.\n" {
				t.Errorf("%s, of %s length: %s %q", mode, length, response.Status, text)
			}
		}
		if response, text, _ := s.post(bytes.NewReader(body[:1000])); response.StatusCode != 200 || strings.TrimSpace(text) != "1000" {
			t.Errorf("%s: %s %q", mode, response.Status, text)
		}
	}
}

func TestAProgramThatReadsNothingAnswers(t *testing.T) {
	for _, mode := range modes {
		s := serve(t, mode, "echo done")
		for _, size := range []int{10, 100_000, 10_000_000} {
			if response, text, err := s.post(bytes.NewReader(make([]byte, size))); response.StatusCode != 200 || text != "done\n" || err != nil {
				t.Errorf("%s, %d bytes: %s %q, %v", mode, size, response.Status, text, err)
			}
		}
	}
}

func TestRequestsBeyondTheWorkersWait(t *testing.T) {
	s := serve(t, config.Streaming, "echo $$ >&2; cat", "SHIM_WORKERS=1", "SHIM_QUEUE=1")
	read, write := io.Pipe()
	statuses := make(chan int, 2)
	send := func(body io.Reader) {
		status := 503
		for again := true; again; again = body == nil && status == 503 { // one of those below waits
			response, err := s.Client().Post(s.URL, "", body)
			if err != nil {
				t.Error(err)
				status = 0
				break
			}
			io.Copy(io.Discard, response.Body)
			response.Body.Close()
			status = response.StatusCode
		}
		statuses <- status
	}
	go send(read)
	s.logged("the program wrote to its standard error", "")
	go send(nil)
	// One of these comes while the second waits; which one does not matter.
	for refused := false; !refused; <-time.After(time.Millisecond) {
		request, _ := http.NewRequestWithContext(t.Context(), "GET", s.URL, nil)
		client := &http.Client{Timeout: 200 * time.Millisecond}
		response, err := client.Do(request)
		if err != nil {
			continue // it was the one that waits
		}
		response.Body.Close()
		if refused = response.StatusCode == 503 && response.Header.Get("Retry-After") == "1"; !refused {
			t.Fatalf("%s", response.Status)
		}
	}
	write.Close()
	for range 2 {
		if status := <-statuses; status != 200 {
			t.Errorf("a request that could wait got %d", status)
		}
	}
}

func TestTheProgramMayWriteAHeader(t *testing.T) {
	for _, mode := range modes {
		s := serve(t, mode, `printf 'Status: 404 No\r\nContent-Type: text/x\r\nX-Path: %s\r\n\r\nbody' "$PATH_INFO"`, "SHIM_RESPONSE_HEADERS=true")
		response, text, err := s.post(nil)
		if err != nil || response.StatusCode != 404 || text != "body" || response.Header.Get("Content-Type") != "text/x" || response.Header.Get("X-Path") != "/a" {
			t.Errorf("%s: %s %v %q, %v", mode, response.Status, response.Header, text, err)
		}
		s = serve(t, mode, "printf 'Status: 204\n\nnobody reads this'", "SHIM_RESPONSE_HEADERS=true")
		if response, text, err := s.post(nil); response.StatusCode != 204 || text != "" || err != nil {
			t.Errorf("%s: %s %q, %v", mode, response.Status, text, err)
		}
		s = serve(t, mode, "echo words", "SHIM_RESPONSE_HEADERS=true")
		if response, text, _ := s.post(nil); response.StatusCode != 502 || text != "The program's answer has no proper header.\n" {
			t.Errorf("%s: %s %q", mode, response.Status, text)
		}
		s.logged("a request failed", "is no header")
		s = serve(t, mode, "exit 4", "SHIM_RESPONSE_HEADERS=true")
		if response, text, _ := s.post(nil); response.StatusCode != 500 || text != "The program ended with status 4.\n" {
			t.Errorf("%s: %s %q", mode, response.Status, text)
		}
	}
}

func TestHeadHasNoBody(t *testing.T) {
	for _, mode := range modes {
		s := serve(t, mode, "echo hello")
		response, err := s.Client().Head(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if want := map[config.Mode]int64{config.Streaming: -1, config.Serializing: 6}[mode]; response.StatusCode != 200 || response.ContentLength != want {
			t.Errorf("%s: %s, length %d, want %d", mode, response.Status, response.ContentLength, want)
		}
	}
}

func TestARequestThatFitsNoEnvironmentIsRefused(t *testing.T) {
	s := serve(t, config.Serializing, "cat")
	response, err := s.Client().Get(s.URL + "/a%00b")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != 400 {
		t.Errorf("a NUL: %s", response.Status)
	}
	request, _ := http.NewRequestWithContext(t.Context(), "GET", s.URL, nil)
	request.Header.Set("X-Long", strings.Repeat("x", 200_000)) // httptest's server takes it, Linux does not
	if response, err = s.Client().Do(request); err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != 431 {
		t.Errorf("a long header: %s", response.Status)
	}
}

func TestLinesOfStandardErrorAreLimited(t *testing.T) {
	s := serve(t, config.Serializing, "yes noise | head -n 5000 >&2", "SHIM_LOG_RATE=10")
	sent, told := 0, false
	for began := time.Now(); !told && time.Since(began) < time.Minute; sent++ { // the next second tells
		if response, _, _ := s.post(nil); response.StatusCode != 200 {
			t.Fatal(response.Status)
		}
		s.mutex.Lock()
		told = strings.Contains(strings.Join(s.lines, ""), `"lines were left out of the log"`)
		s.mutex.Unlock()
	}
	if line := s.logged("lines were left out of the log", ""); line["lines"].(float64) < 1000 {
		t.Errorf("%v", line)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if n := strings.Count(strings.Join(s.lines, ""), "noise"); n > 100*sent {
		t.Errorf("%d lines of %d were logged", n, 5000*sent)
	}
}
