package reference

import (
	"go/ast"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// public are the names that installations know from Knative and Kubernetes.
var public = []string{"POD_NAME", "POD_IP", "SYSTEM_NAMESPACE", "CLUSTER_DOMAIN", "WEBHOOK_NAME", "WEBHOOK_PORT", "MAX_IDLE_PROXY_CONNS_PER_HOST",
	"KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"}

// publicGroups begin the names of public variables of TLS.
var publicGroups = regexp.MustCompile(`^(ACTIVATOR|TAG_TO_DIGEST)_TLS_(MIN_VERSION|MAX_VERSION|CIPHER_SUITES|CURVE_PREFERENCES)$`)

func TestVariablesOfTheEnvironmentHaveOnePrefix(t *testing.T) {
	source, err := load()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, v := range source.Environment() {
		seen[v.Name] = true
		if !strings.HasPrefix(v.Name, "EBB_") && !slices.Contains(public, v.Name) && !publicGroups.MatchString(v.Name) {
			t.Errorf("%s of %s is neither Ebb's, with EBB_ before it, nor public", v.Name, v.Of)
		}
		if !strings.HasSuffix(v.Use, ".") || strings.Contains(v.Use, Unknown) {
			t.Errorf("%s of %s lacks a sentence: %q", v.Name, v.Of, v.Use)
		}
	}
	for _, name := range append(public, "ACTIVATOR_TLS_MIN_VERSION", "TAG_TO_DIGEST_TLS_CIPHER_SUITES", "EBB_HOLD_BYTES", "EBB_COURIER_DIR", "EBB_NODE_NAME", "EBB_API_SERVER", "EBB_COAPS_ADDRESS") {
		if !seen[name] {
			t.Errorf("nobody reads %s", name)
		}
	}
}

// What reads past env.Reader is on no page. queue-proxy, wire and shim have a struct of their own.
func TestNobodyReadsAVariableThatIsNotListed(t *testing.T) {
	source, err := load()
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, v := range source.Environment() {
		listed[v.Name] = true
	}
	calls := 0
	source.Calls(func(pkg, callee string, x *ast.CallExpr) {
		calls++
		if len(x.Args) != 1 || source.info.TypeOf(x.Fun) == nil {
			return
		}
		signature, ok := source.info.TypeOf(x.Fun).Underlying().(*types.Signature)
		if _, isFunction := source.object(x.Fun).(*types.Func); !ok || isFunction && callee != "os.Getenv" && callee != "os.LookupEnv" {
			return
		}
		if text := types.Typ[types.String].String(); signature.Params().Len() != 1 || signature.Results().Len() != 1 || signature.Params().At(0).Type().String() != text || signature.Results().At(0).Type().String() != text {
			return
		}
		if name := source.Text(x.Args[0]); regexp.MustCompile(`^[A-Z][A-Z0-9]*_[A-Z0-9_]+$`).MatchString(name) && !listed[name] && pkg != "internal/testing/promtool" {
			t.Errorf("%s reads %s past env.Reader, so that it is on no page", pkg, name)
		}
	}, "activator", "autoscaler", "cmd/ebb", "controller", "courier", "dashboard", "forward", "ingress", "internal", "node-agent", "settings", "webhook")
	if calls < 1000 {
		t.Errorf("only %d calls were found", calls)
	}
}

// A variable in a manifest that nobody reads has no effect, and nobody says so.
func TestEveryVariableInTheManifestsIsRead(t *testing.T) {
	source, err := load()
	if err != nil {
		t.Fatal(err)
	}
	read := map[string]bool{"GOMEMLIMIT": true, "GOGC": true, "GOMAXPROCS": true, "NODE_IP": true /* part of another value */}
	for _, v := range source.Environment() {
		read[v.Name] = true
	}
	variable, found := regexp.MustCompile(`(?m)^ +- name: "?([A-Z][A-Z0-9_]+)"?$`), 0
	for _, folder := range []string{"core", "courier", "dashboard", "edge"} {
		files, err := filepath.Glob(filepath.Join(root, "config", folder, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%d manifests in config/%s: %v", len(files), folder, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range variable.FindAllStringSubmatch(string(text), -1) {
				found++
				if !read[name[1]] {
					t.Errorf("%s sets %s, which no component reads", file, name[1])
				}
			}
		}
	}
	if found < 30 {
		t.Errorf("only %d variables were found", found)
	}
}
