package main

import (
	"context"
	"database/sql"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"ebb.dev/ebb/test/eventually"
)

// postgres starts a server of the test's own and returns its URL. It may not be root's.
func postgres(t *testing.T) (url string) {
	bin, err := exec.LookPath("initdb")
	if err != nil {
		all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
		if len(all) == 0 {
			t.Skip("there is no PostgreSQL on this machine: apt-get install postgresql")
		}
		bin = all[len(all)-1]
	}
	bin = filepath.Dir(bin)
	dir, err := os.MkdirTemp("/tmp", "pool") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var attributes *syscall.SysProcAttr
	if os.Getuid() == 0 {
		nobody, err := user.Lookup("nobody")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(nobody.Uid)
		gid, _ := strconv.Atoi(nobody.Gid)
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
		attributes = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	command := func(ctx context.Context, name string, args ...string) *exec.Cmd {
		c := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
		c.Dir, c.SysProcAttr = dir, attributes
		return c
	}
	data := filepath.Join(dir, "data")
	if out, err := command(t.Context(), "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v: %s", err, out)
	}
	var out strings.Builder
	server := command(context.Background(), "postgres", "-D", data, "-k", dir, "-c", "listen_addresses=", "-F")
	server.Stderr = &out
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Signal(syscall.SIGINT) // a fast shutdown
		server.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	return "host=" + dir + " user=postgres sslmode=disable application_name=pool"
}

func TestThePoolIsClosedBeforeASleepAndOpenedAfterTheWake(t *testing.T) {
	url := postgres(t)
	s, err := open(url)
	if err != nil {
		t.Fatal(err)
	}
	defer s.db.Close()
	watch, err := sql.Open("postgres", strings.Replace(url, "=pool", "=watch", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	eventually.Seen(t, "the server answers", func() (error, bool) {
		err := watch.Ping()
		return err, err == nil
	})
	connected := func(what string, want int) {
		t.Helper()
		eventually.Seen(t, what, func() (n int, ok bool) {
			if err := watch.QueryRow("select count(*) from pg_stat_activity where application_name = 'pool'").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n, n == want
		})
	}
	ask := func(method, path string) *httptest.ResponseRecorder {
		reply := httptest.NewRecorder()
		s.handler().ServeHTTP(reply, httptest.NewRequest(method, path, nil))
		return reply
	}
	hook := func(path string) int {
		reply := httptest.NewRecorder()
		s.hooks().ServeHTTP(reply, httptest.NewRequest("POST", path, nil))
		return reply.Code
	}

	if reply := ask("GET", "/"); reply.Code != 200 || !strings.HasPrefix(reply.Body.String(), "Hello PostgreSQL ") {
		t.Fatalf("got %d %q", reply.Code, reply.Body)
	}
	connected("awake, the pool has a connection", 1)

	reply := ask("POST", "/reports?seconds=1")
	if reply.Code != 202 || reply.Header().Get("Ebb-Busy") != "5m0s" {
		t.Errorf("a report begins: %d %v", reply.Code, reply.Header())
	}
	connected("the report has a connection", 1)
	if code := hook("/sleep"); code != 409 {
		t.Errorf("asked to sleep with a report under way, it answered %d", code)
	}
	if code := hook("/wake"); code != 200 {
		t.Errorf("told that it stays awake, it answered %d", code)
	}
	if reply := ask("GET", "/reports"); reply.Header().Get("Ebb-Busy") != "" {
		t.Errorf("a report is under way, and the program is not busy: %q", reply.Body)
	}
	eventually.True(t, "the report has ended", func() bool { return ask("GET", "/reports").Header().Get("Ebb-Busy") == "0" })

	if code := hook("/sleep"); code != 200 {
		t.Errorf("asked to sleep it answered %d", code)
	}
	connected("asleep, the pool has none", 0)
	if code := hook("/wake"); code != 200 {
		t.Errorf("told that it is awake it answered %d", code)
	}
	connected("awake again, the pool has one before the next request", 1)
}

func TestAReportIsBounded(t *testing.T) {
	s, err := open("host=/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	for _, seconds := range []string{"", "x", "-1", "NaN", "301"} {
		reply := httptest.NewRecorder()
		s.handler().ServeHTTP(reply, httptest.NewRequest("POST", "/reports?seconds="+seconds, nil))
		if reply.Code != 400 || reply.Header().Get("Ebb-Busy") != "" {
			t.Errorf("seconds=%s: %d %v", seconds, reply.Code, reply.Header())
		}
	}
}
