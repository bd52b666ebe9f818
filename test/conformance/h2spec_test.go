package conformance

import (
	"encoding/xml"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// moot are cases of h2spec that the components do not have to pass, with the reason.
var moot = map[string]string{
	"http2/3.5: Sends invalid connection preface": "the port also serves HTTP/1.1, so what is not a preface is a malformed HTTP/1.1 request, which gets 400",
}

// Both shells of the forwarder, in the processes that ship, pass h2spec.
func TestH2Spec(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds three programs")
	}
	binary := filepath.Join(t.TempDir(), "h2spec")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = "../../dev/h2spec"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build h2spec: %v\n%s", err, out)
	}
	var reached atomic.Int64
	queueProxy, activator, host := start(t, func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		hello(w, r)
	})
	for name, address := range map[string]string{"queue-proxy": queueProxy, "activator": activator} {
		t.Run(name, func(t *testing.T) {
			reached.Store(0)
			report := filepath.Join(t.TempDir(), "report.xml")
			if out, err := exec.Command(binary, host, address, report).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			check(t, read(t, report))
			if n := reached.Load(); n < 40 {
				t.Errorf("only %d requests reached the container, so most cases did not test the relay", n)
			}
		})
	}
}

// junit is the part of the report that matters here.
type junit struct {
	Cases []struct {
		Package   string    `xml:"package,attr"`
		Classname string    `xml:"classname,attr"`
		Skipped   *struct{} `xml:"skipped"`
		Failure   *string   `xml:"failure"`
		Error     *string   `xml:"error"`
	} `xml:"testsuite>testcase"`
}

func read(t *testing.T, file string) (report junit) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	return report
}

// check fails the test for each failed case that is not moot, and for each moot case that passes.
func check(t *testing.T, report junit) {
	t.Helper()
	passed := 0
	var skipped []string
	for _, c := range report.Cases {
		name := c.Package + ": " + c.Classname
		because, isMoot := moot[name]
		switch failed := c.Failure != nil || c.Error != nil; {
		case c.Skipped != nil:
			skipped = append(skipped, name)
		case failed && !isMoot:
			var why []string
			for _, text := range []*string{c.Failure, c.Error} {
				if text != nil {
					why = append(why, strings.TrimSpace(*text))
				}
			}
			t.Errorf("%s\n%s", name, strings.Join(why, "\n"))
		case failed:
			t.Logf("moot: %s (%s)", name, because)
		case isMoot:
			t.Errorf("%s passes; remove it from the list of moot cases", name)
		default:
			passed++
		}
	}
	slices.Sort(skipped)
	t.Logf("%d of %d cases pass; skipped: %q", passed, len(report.Cases), skipped)
	if passed < 120 {
		t.Errorf("only %d cases passed: did h2spec run them all?", passed)
	}
}
