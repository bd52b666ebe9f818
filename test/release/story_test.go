//go:build release

package release

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
)

// namespace is the user's.
const namespace = "release-test"

// story is one installation, from a cluster without Ebb to a cluster without Ebb.
type story struct {
	*testing.T
	ctx      context.Context
	folder   string
	previous string
	gateway  string // "" is Istio
	cluster  *cluster.Cluster
	listable string
}

func begin(t *testing.T) *story {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 12*time.Minute)
	t.Cleanup(cancel)
	s := &story{T: t, ctx: ctx, folder: os.Getenv("DIST"), previous: os.Getenv("PREVIOUS"), gateway: os.Getenv("GATEWAY")}
	if s.folder == "" {
		s.folder = "../../dist"
	}
	if _, err := os.Stat(s.dist("SHA256SUMS")); err != nil {
		t.Fatalf("%s is not the folder of a release: run `make release VERSION=v0.1.0` first, or name one with DIST", s.folder)
	}
	if out := s.kubectl("get", "crd", "services.serving.knative.dev", "--ignore-not-found", "-o", "name"); out != "" {
		t.Fatal("the cluster has Ebb or Knative already: run `make up ARGS=bare` first, with the same GATEWAY")
	}
	for _, folder := range []string{s.folder, s.previous} {
		if folder != "" {
			s.page("install.md", "ctr --namespace k8s.io images import", folder)
		}
	}
	s.listable = s.resources()
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range []string{cluster.System, namespace} {
				out, _ := exec.Command("kubectl", "-n", n, "get", "pods,events", "-o", "wide").CombinedOutput()
				t.Logf("%s", out)
			}
		}
	})
	return s
}

func (s *story) dist(name string) string { return filepath.Join(s.folder, name) }

func (s *story) chart() string {
	s.Helper()
	charts, err := filepath.Glob(s.dist("ebb-[0-9]*.tgz"))
	if err != nil || len(charts) != 1 {
		s.Fatalf("%s has the charts %v, want one; %v", s.folder, charts, err)
	}
	return charts[0]
}

func (s *story) version() string {
	s.Helper()
	return "v" + strings.TrimSuffix(strings.TrimPrefix(filepath.Base(s.chart()), "ebb-"), ".tgz")
}

// plugin unpacks the release's kubectl-ebb for this machine.
func (s *story) plugin() string {
	s.Helper()
	dir := s.TempDir()
	s.run("tar", "-xzf", s.dist("kubectl-ebb_"+s.version()+"_linux_amd64.tar.gz"), "-C", dir)
	return filepath.Join(dir, "kubectl-ebb")
}

func (s *story) kubectl(args ...string) string {
	s.Helper()
	return s.run("kubectl", args...)
}

func (s *story) run(program string, args ...string) string {
	s.Helper()
	return s.input("", program, args...)
}

func (s *story) input(text, program string, args ...string) string {
	s.Helper()
	cmd := exec.CommandContext(s.ctx, program, args...)
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(text), &out, &complaint
	if err := cmd.Run(); err != nil {
		s.Fatalf("%s %s: %v: %s%s", program, strings.Join(args, " "), err, out.String(), complaint.String())
	}
	return out.String()
}

var (
	shell = regexp.MustCompile("(?ms)^```(?:ba)?sh\n(.*?)^```$")
	tgz   = regexp.MustCompile(`ebb-[0-9]+\.[0-9]+\.[0-9]+\.tgz`)
)

// page does what a page of docs/ says in the block that has a text, in the folder of a release,
// after replacements and for the cluster's gateway. TestBlocksThatChangeTheInstallationAreRun finds
// the calls of it.
func (s *story) page(name, text, folder string, replacements ...string) {
	s.Helper()
	found := block(s.T, name, text)
	if s.gateway != "" {
		replacements = append(replacements, "-f ebb.yaml", "-f ebb-"+s.gateway+".yaml", "domain=example.com", "domain=example.com,gateways.class="+s.gateway)
	}
	block := strings.NewReplacer(replacements...).Replace(tgz.ReplaceAllString(found, filepath.Base(s.chart())))
	cmd := exec.CommandContext(s.ctx, "bash", "-euo", "pipefail", "-c", block)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(s.plugin())+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		s.Fatalf("%s says\n%s%v\n%s", name, block, err, out)
	}
}

// block returns the one block of a page that has a text.
func block(t *testing.T, page, text string) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, block := range shell.FindAllStringSubmatch(string(source), -1) {
		if strings.Contains(block[1], text) {
			found = append(found, block[1])
		}
	}
	if len(found) != 1 {
		t.Fatalf("%s has %d blocks with %q, want one", page, len(found), text)
	}
	return found[0]
}

// ready waits for all that serves.
func (s *story) ready() {
	s.Helper()
	for _, component := range strings.Fields(s.kubectl("-n", cluster.System, "get", "deployment,daemonset,statefulset", "-o", "name")) {
		s.kubectl("-n", cluster.System, "rollout", "status", component, "--timeout=3m")
	}
	s.kubectl("-n", cluster.System, "wait", "--for=condition=Programmed", "gateway", "--all", "--timeout=2m")
	if s.kubectl("get", "namespace", namespace, "--ignore-not-found", "-o", "name") == "" {
		s.kubectl("create", "namespace", namespace)
	}
}

// resources are the kinds of a cluster without Ebb whose objects stay when nobody changes anything.
func (s *story) resources() string {
	s.Helper()
	var kinds []string
	for _, kind := range strings.Fields(s.kubectl("api-resources", "--verbs=list,delete", "-o", "name")) {
		if !strings.HasPrefix(kind, "events") && !slices.Contains([]string{"pods", "componentstatuses", "replicasets.apps", "certificatesigningrequests.certificates.k8s.io"}, kind) && !strings.HasSuffix(kind, "metrics.k8s.io") {
			kinds = append(kinds, kind)
		}
	}
	return strings.Join(kinds, ",")
}

// everything lists the objects of the cluster.
func (s *story) everything() []string {
	s.Helper()
	out := s.kubectl("get", s.listable, "--all-namespaces", "--no-headers", "-o", "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name")
	var all []string
	for line := range strings.Lines(out) {
		all = append(all, strings.Join(strings.Fields(line), " "))
	}
	return all
}
