//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// fence is a block of code: its language, the title of a file, and the text.
var fence = regexp.MustCompile("(?ms)^```([a-z]+)(?: title=\"([^\"]+)\")?\n(.*?)^```$")

// replicated matches pages that look at the Deployments of components.
var replicated = regexp.MustCompile("(?m)^kubectl -n knative-serving get deployments")

// TestEveryPageDoesWhatItSays runs the first steps and each page of docs/how-to as a reader would,
// in a namespace of its own. A block with a title is a file, an sh block is typed into one shell,
// and a text block is what the block before it prints: `...` stands for anything, and the namespace
// is default. A bash block changes the installation, which other tests use meanwhile: test/release
// runs it.
func TestEveryPageDoesWhatItSays(t *testing.T) {
	pages, err := filepath.Glob("../../docs/how-to/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("found %d pages: %v", len(pages), err)
	}
	for _, page := range append(pages, "../../docs/first-steps.md") {
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "```bash\n") && !strings.Contains(string(text), "```sh\n") {
				t.Skip("all of its blocks change the installation")
			}
			s := begin(t, 5*time.Minute)
			if replicated.Match(text) {
				s.needsAProcessOfEach()
			}
			s.read(string(text))
		})
	}
}

// read does what a page says.
func (s *story) read(page string) {
	dir := s.desk()
	if strings.Contains(page, "-f samples/") {
		s.copySamples(dir)
	}
	script := "set -euo pipefail\n"
	var blocks, expected []string
	for _, b := range fence.FindAllStringSubmatch(page, -1) {
		switch language, title, text := b[1], b[2], b[3]; {
		case title != "":
			if err := os.WriteFile(filepath.Join(dir, title), []byte(text), 0o600); err != nil {
				s.Fatal(err)
			}
		case language == "sh":
			script += fmt.Sprintf("echo; echo '== %d'\n%s", len(blocks), text)
			blocks, expected = append(blocks, text), append(expected, "")
		case language == "text" && len(blocks) > 0:
			expected[len(blocks)-1] = strings.ReplaceAll(text, ".default.", "."+s.namespace+".")
		}
	}
	shell := exec.CommandContext(s.ctx, "bash", "-c", script)
	shell.Dir = dir
	shell.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(dir, "kubeconfig"), "CURL_HOME="+dir)
	out, err := shell.CombinedOutput()
	pieces := strings.Split(string(out), "\n== ")[1:]
	for i, printed := range pieces {
		_, printed, _ = strings.Cut(printed, "\n")
		if i == len(pieces)-1 && err != nil {
			s.Fatalf("%v\n%s\nprinted\n%s", err, blocks[i], printed)
		}
		if !prints(printed, expected[i]) {
			s.Errorf("%s\nprinted\n%s\nand not\n%s", blocks[i], printed, expected[i])
		}
	}
	if err != nil || len(blocks) == 0 || len(pieces) != len(blocks) {
		s.Fatalf("%d of %d blocks were run: %v\n%s", len(pieces), len(blocks), err, out)
	}
}

// desk makes a folder in which kubectl uses the namespace of the test, and curl the gateway.
func (s *story) desk() string {
	dir := s.TempDir()
	config, err := os.ReadFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		s.Fatal(err)
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	files := map[string]string{kubeconfig: string(config), filepath.Join(dir, ".curlrc"): "connect-to = \"::" + s.Gateway + "\"\n"}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			s.Fatal(err)
		}
	}
	out, err := exec.CommandContext(s.ctx, "kubectl", "--kubeconfig", kubeconfig, "config", "set-context", "--current", "--namespace", s.namespace).CombinedOutput()
	if err != nil {
		s.Fatalf("%v: %s", err, out)
	}
	return dir
}

// copySamples gives the reader the samples. The claim of a domain names a namespace.
func (s *story) copySamples(dir string) {
	if out, err := exec.CommandContext(s.ctx, "cp", "-r", samples, dir).CombinedOutput(); err != nil {
		s.Fatalf("%v: %s", err, out)
	}
	claim := strings.ReplaceAll(readSample(s.T, "domain-mapping/claim.yaml"), "namespace: default", "namespace: "+s.namespace)
	if err := os.WriteFile(filepath.Join(dir, "samples/domain-mapping/claim.yaml"), []byte(claim), 0o600); err != nil {
		s.Fatal(err)
	}
	s.T.Cleanup(func() { s.deleteClaim("hello.example.org") })
}

// prints reports whether all lines of a text are in what was printed, in their order.
func prints(printed, text string) bool {
	lines := strings.Split(printed, "\n")
	for want := range strings.Lines(strings.TrimSpace(text)) {
		parts := strings.Split(strings.TrimSpace(want), "...")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		line := regexp.MustCompile("^" + strings.Join(parts, ".*") + "$")
		at := -1
		for i, l := range lines {
			if line.MatchString(strings.TrimSpace(l)) {
				at = i
				break
			}
		}
		if at < 0 {
			return false
		}
		lines = lines[at+1:]
	}
	return true
}
