package manifests

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/api/names"
)

type envoyObject struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		HTTP2   struct{ MaxConcurrentStreams int64 }
		Timeout struct {
			HTTP struct{ StreamIdleTimeout string }
		}
		Provider struct {
			Kubernetes struct {
				EnvoyDeployment struct {
					Container struct {
						Resources struct{ Limits map[string]string }
					}
				}
			}
		}
	}
}

// A name with a final dot is the same name, HTTP/1.0 is spoken by ab and by health checks, and
// nobody on a dead node answers. All are settings of the gateways; the end-to-end tests ask for the
// first two, bench-nodes for the last.
func TestGatewaysTakeEachSpellingOfAHostAndOldClients(t *testing.T) {
	for file, settings := range map[string][]string{
		"envoy-gateway/policies.yaml": {"stripTrailingHostDot: true", "http10: {}", "connectTimeout: 2s"},
		"istio/envoyfilter.yaml":      {"strip_trailing_host_dot: true", "accept_http_10: true", "connect_timeout: 2s"},
	} {
		text, err := os.ReadFile(filepath.Join(root, "config", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range append(settings, "name: ebb-external", "name: ebb-local") {
			if !bytes.Contains(text, []byte(want)) {
				t.Errorf("%s lacks %q", file, want)
			}
		}
	}
}

func envoyObjects(t *testing.T, file string) (out []envoyObject) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "config", "envoy-gateway", file))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range bytes.Split(text, []byte("\n---\n")) {
		var o envoyObject
		if err := yaml.Unmarshal(part, &o); err != nil {
			t.Fatal(err)
		}
		out = append(out, o)
	}
	return out
}

// One connection whose client opens streams and takes no answers must not take an Envoy's memory:
// their number is bounded, nothing that rests stays for ever, and at the limit Envoy refuses. What
// a revision may take under the shipped settings is not cut.
func TestStreamsOfEnvoyGatewayHaveAnEnd(t *testing.T) {
	table, err := os.ReadFile(filepath.Join(root, "docs", "settings.md")) // a test holds it to the code
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("`max-revision-timeout-seconds` \\| `([0-9]+)`").FindSubmatch(table)
	if found == nil {
		t.Fatal("docs/settings.md does not tell max-revision-timeout-seconds")
	}
	seconds, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	longest := max(time.Duration(seconds)*time.Second, names.MaxColdWait)
	policies := 0
	for _, o := range envoyObjects(t, "policies.yaml") {
		if o.Kind != "ClientTrafficPolicy" {
			continue
		}
		policies++
		if n := o.Spec.HTTP2.MaxConcurrentStreams; n < 100 || n > 1000 {
			t.Errorf("a connection has %d streams", n)
		}
		idle, err := time.ParseDuration(o.Spec.Timeout.HTTP.StreamIdleTimeout)
		if err != nil || idle <= longest || idle > 2*longest {
			t.Errorf("a stream may rest for %v (%v); revisions may take %v", idle, err, longest)
		}
	}
	if policies != 1 {
		t.Errorf("there are %d ClientTrafficPolicies", policies)
	}
	proxies := envoyObjects(t, "envoyproxies.yaml")
	if len(proxies) != 2 {
		t.Errorf("there are %d EnvoyProxies", len(proxies))
	}
	for _, o := range proxies {
		limit, err := resource.ParseQuantity(o.Spec.Provider.Kubernetes.EnvoyDeployment.Container.Resources.Limits["memory"])
		if err != nil || limit.Value() < 512<<20 {
			t.Errorf("EnvoyProxy %s has the memory limit %v (%v), and without one no overload manager", o.Metadata.Name, limit.String(), err)
		}
	}
}
