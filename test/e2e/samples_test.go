//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

const samples = "../../samples"

// sampleStep applies one manifest of a sample, waits until the Service is Ready and expects one of
// the replies.
type sampleStep struct {
	file    string
	service string
	replies []string // nil for a Service that is not reachable from outside
}

var sampleStories = map[string][]sampleStep{
	"hello-go":     {{"hello-go/service.yaml", "hello-go", []string{"Hello Go!\n"}}},
	"hello-java":   {{"hello-java/service.yaml", "hello-java", []string{"Hello Java!\n"}}},
	"hello-node":   {{"hello-node/service.yaml", "hello-node", []string{"Hello Node!\n"}}},
	"hello-python": {{"hello-python/service.yaml", "hello-python", []string{"Hello Python!\n"}}},
	"autoscaling":  {{"autoscaling/service.yaml", "autoscaling", []string{"Hello World!\n"}}},
	"multi-container": {{"multi-container/service.yaml", "multi-container",
		[]string{"The container beside this one says: Hello Neighbour!\n"}}},
	"python-workers": {{"python-workers/service.yaml", "python-workers", []string{"Hello Workers!\n"}}},
	"tags":           {{"tags/service.yaml", "tagged", []string{"Hello Tag!\n"}}},
	"cluster-local":  {{"cluster-local/service.yaml", "private", nil}},
	"traffic-split": {
		{"traffic-split/1-blue.yaml", "colours", []string{"Hello Blue!\n"}},
		{"traffic-split/2-half.yaml", "colours", []string{"Hello Blue!\n", "Hello Green!\n"}},
		{"traffic-split/3-green.yaml", "colours", []string{"Hello Green!\n"}},
	},
}

// These have tests of their own: the claim of a domain names a namespace, `make test-llm` makes the
// model's image, the database of db-pool is that of its own test, and the others answer more than a
// GET.
var samplesElsewhere = []string{"domain-mapping/claim.yaml", "domain-mapping/domain-mapping.yaml", "llm/service.yaml", "db-pool/service.yaml",
	"grpc/service.yaml", "websocket/service.yaml", "events/service.yaml", "slow-start/service.yaml"}

func TestEverySampleWorksAsItIs(t *testing.T) {
	for name, steps := range sampleStories {
		t.Run(name, func(t *testing.T) {
			s := begin(t, 4*time.Minute)
			for _, step := range steps {
				url := s.ready(step.service, readSample(t, step.file))
				reply := probe.Get(s.ctx, s.client(), url)
				switch {
				case step.replies == nil && reply.Status != 404:
					t.Errorf("%s: from outside the cluster the gateway returns %v, want 404", step.file, reply)
				case step.replies == nil && !strings.HasSuffix(url, ".svc.cluster.local"):
					t.Errorf("%s: the URL %s is not a cluster-local one", step.file, url)
				case step.replies != nil && (!reply.OK() || !slices.Contains(step.replies, reply.Body)):
					t.Errorf("%s: got %v, want one of %q", step.file, reply, step.replies)
				}
			}
		})
	}
}

func TestADomainOfOnesOwnReachesTheService(t *testing.T) {
	s := begin(t, 3*time.Minute)
	s.ready("hello-go", readSample(t, "hello-go/service.yaml"))
	host := s.namespace + ".example.org"
	s.apply(strings.NewReplacer("hello.example.org", host, "namespace: default", "namespace: "+s.namespace).Replace(readSample(t, "domain-mapping/claim.yaml")))
	t.Cleanup(func() { s.deleteClaim(host) })
	s.apply(strings.ReplaceAll(readSample(t, "domain-mapping/domain-mapping.yaml"), "hello.example.org", host))
	object, err := s.Await(s.ctx, cluster.DomainMappings, s.namespace, host, cluster.IsReady)
	if err != nil {
		t.Fatal(err)
	}
	url, _, _ := unstructured.NestedString(object.Object, "status", "url")
	if url != "http://"+host {
		t.Errorf("status.url is %q, want http://%s", url, host)
	}
	if reply := probe.Get(s.ctx, s.client(), "http://"+host); reply.Body != "Hello Go!\n" {
		t.Errorf("the first response of the domain: %v", reply)
	}
}

// A pod has as many workers as it takes requests at a time.
func TestPythonWorkersFollowContainerConcurrency(t *testing.T) {
	s := begin(t, 3*time.Minute)
	// A fifth worker would be one of another pod.
	url := s.ready("python-workers", strings.Replace(readSample(t, "python-workers/service.yaml"), "      annotations:\n",
		"      annotations:\n        autoscaling.knative.dev/max-scale: \"1\"\n", 1))
	client := s.client()
	workers := map[string]bool{}
	s.until("four workers have answered", func() (bool, string, error) {
		for _, reply := range probe.Burst(s.ctx, client, url, 8) {
			if !reply.OK() {
				return false, "", errors.New(reply.String())
			}
			workers[reply.Header.Get("X-Worker")] = true
		}
		return len(workers) >= 4, fmt.Sprint(workers), nil
	})
	if len(workers) != 4 {
		t.Errorf("these workers answered: %v", workers)
	}
}

func TestEverySampleManifestIsTested(t *testing.T) {
	known := slices.Clone(samplesElsewhere)
	for _, steps := range sampleStories {
		for _, step := range steps {
			known = append(known, step.file)
		}
	}
	var found []string
	err := filepath.WalkDir(samples, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".yaml" {
			relative, _ := filepath.Rel(samples, path)
			found = append(found, filepath.ToSlash(relative))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(known)
	slices.Sort(found)
	if !slices.Equal(known, found) {
		t.Errorf("samples/ has the manifests\n%v\nand these are tested\n%v", found, known)
	}
}

func readSample(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(samples, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
