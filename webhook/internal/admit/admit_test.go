package admit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	jsonmerge "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/golden"
)

func newHandler(t *testing.T, configMaps map[string]map[string]string, dryRun DryRun) http.Handler {
	t.Helper()
	snapshot, err := settings.Parse(configMaps)
	if err != nil {
		t.Fatal(err)
	}
	return New(Options{
		Rules: func() *Rules {
			rules := snapshot.Rules()
			rules.ClusterDomain = "cluster.local"
			return rules
		},
		DryRun: dryRun,
		Log:    slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
}

// ask sends an admission request as the API server does.
func ask(t *testing.T, h http.Handler, path string, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	t.Helper()
	return askFrom(t, h, "192.0.2.1", path, request)
}

func askFrom(t *testing.T, h http.Handler, from, path string, request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	t.Helper()
	request.UID = "a-uid"
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: request,
	})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	asked := httptest.NewRequest(http.MethodPost, path+"?timeout=10s", bytes.NewReader(body))
	asked.RemoteAddr = from + ":1"
	h.ServeHTTP(w, asked)
	if w.Code != http.StatusOK {
		t.Fatalf("%s answered %d: %s", path, w.Code, w.Body)
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil {
		t.Fatal(err)
	}
	if review.Response == nil || review.Response.UID != "a-uid" || review.Kind != "AdmissionReview" || review.APIVersion != "admission.k8s.io/v1" {
		t.Fatalf("the answer is no review of the request: %s", w.Body)
	}
	return review.Response
}

func requestFor(t *testing.T, manifest string) *admissionv1.AdmissionRequest {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatalf("%v in %s", err, manifest)
	}
	var meta metav1.PartialObjectMetadata
	// Manifests that cannot be read on purpose have their kind all the same.
	_ = json.Unmarshal(raw, &meta)
	group, version, _ := strings.Cut(meta.APIVersion, "/")
	return &admissionv1.AdmissionRequest{
		Kind: metav1.GroupVersionKind{Group: group, Version: version, Kind: meta.Kind}, Namespace: "default", Name: meta.Name,
		Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw}, UserInfo: authenticationv1.UserInfo{Username: "alice"},
	}
}

// Each file in testdata is a manifest, or two of an update (the stored one first), above a line
// "===", and what the webhook makes of it below: the refusal, or the warnings and the defaults as a
// merge patch.
func TestGolden(t *testing.T) {
	golden.Each(t, "testdata/*.txt", func(t *testing.T, file, text string) {
		input, _, _ := strings.Cut(text, "\n===\n")
		golden.Twice(t, file, func() string { return input + "\n===\n" + judged(t, input) })
	})
}

// judged runs a manifest through defaulting and validation. A comment line "# config-x: key=value"
// sets a setting.
func judged(t *testing.T, input string) string {
	t.Helper()
	configMaps := map[string]map[string]string{}
	for line := range strings.Lines(input) {
		name, setting, ok := strings.Cut(strings.TrimSpace(line), ": ")
		name, isSetting := strings.CutPrefix(name, "# config-")
		if !ok || !isSetting {
			continue
		}
		name = "config-" + name
		key, value, _ := strings.Cut(setting, "=")
		if configMaps[name] == nil {
			configMaps[name] = map[string]string{}
		}
		configMaps[name][key] = value
	}
	h := newHandler(t, configMaps, nil)
	manifests := strings.Split(input, "\n---\n")
	request := requestFor(t, manifests[len(manifests)-1])
	if len(manifests) == 2 {
		request.Operation = admissionv1.Update
		stored := requestFor(t, manifests[0])
		stored.UserInfo.Username = "bob"
		request.OldObject.Raw, _ = defaulted(t, h, stored)
	}
	if request.Kind.Kind == "ConfigMap" {
		r := ask(t, h, PathConfigMaps, request)
		var out strings.Builder
		for _, warning := range r.Warnings {
			out.WriteString("warning: " + warning + "\n")
		}
		if !r.Allowed {
			return out.String() + "refused: " + r.Result.Message + "\n"
		}
		return out.String() + "allowed\n"
	}
	object, refusal := defaulted(t, h, request)
	if refusal != "" {
		return refusal
	}
	var out strings.Builder
	difference, err := jsonmerge.CreateMergePatch(request.Object.Raw, object)
	if err != nil {
		t.Fatal(err)
	}
	asYAML, err := yaml.JSONToYAML(difference)
	if err != nil {
		t.Fatal(err)
	}
	request.Object.Raw = object
	early := ask(t, h, PathEarly, request)
	r := ask(t, h, PathValidation, request)
	if early.Allowed != r.Allowed || len(early.Warnings) > 0 {
		t.Errorf("early validation says %v with warnings %v, validation says %v", early.Allowed, early.Warnings, r.Allowed)
	}
	for _, warning := range r.Warnings {
		out.WriteString("warning: " + warning + "\n")
	}
	if !r.Allowed {
		out.WriteString("refused: " + r.Result.Message + "\n")
		return out.String()
	}
	return out.String() + string(asYAML)
}

func defaulted(t *testing.T, h http.Handler, request *admissionv1.AdmissionRequest) (object []byte, refusal string) {
	t.Helper()
	r := ask(t, h, PathDefaulting, request)
	if !r.Allowed {
		return nil, "refused: " + r.Result.Message + "\n"
	}
	if r.Patch == nil {
		return request.Object.Raw, ""
	}
	patch, err := jsonmerge.DecodePatch(r.Patch)
	if err != nil {
		t.Fatal(err)
	}
	object, err = patch.Apply(request.Object.Raw)
	if err != nil {
		t.Fatalf("the patch does not apply: %v", err)
	}
	// Defaults on top of defaults change nothing, or every write would be followed by another.
	second := *request
	second.Object.Raw = object
	if again := ask(t, h, PathDefaulting, &second); again.Patch != nil {
		t.Errorf("defaulting twice changes more: %s", again.Patch)
	}
	return object, ""
}

const hello = `
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello}
spec: {template: {spec: {containers: [{image: example.test/hello}]}}}
`

func TestDryRunTriesThePod(t *testing.T) {
	var tried []string
	h := newHandler(t, nil, func(_ context.Context, namespace string, parent *metav1.ObjectMeta, template *servingv1.RevisionTemplateSpec) error {
		tried = append(tried, namespace+"/"+parent.Name+" "+template.Spec.Containers[0].Image)
		return errors.New("no such PriorityClass")
	})
	request := requestFor(t, hello)
	if r := ask(t, h, PathValidation, request); !r.Allowed || len(tried) > 0 {
		t.Errorf("without dry run: allowed %v, tried %v", r.Allowed, tried)
	}
	request.DryRun = new(true)
	r := ask(t, h, PathValidation, request)
	want := "validation callback failed: dry run failed with no such PriorityClass: spec.template"
	if r.Allowed || r.Result.Message != want {
		t.Errorf("got %+v, want %q", r.Result, want)
	}
	if len(tried) != 1 || tried[0] != "default/hello example.test/hello" {
		t.Errorf("tried %v", tried)
	}
}

func TestWhatIsOnItsWayOutIsNotJudged(t *testing.T) {
	h := newHandler(t, nil, nil)
	bad := strings.Replace(hello, "image: example.test/hello", "name: no-image", 1)
	if r := ask(t, h, PathValidation, requestFor(t, bad)); r.Allowed {
		t.Fatal("a container without image was allowed")
	}
	leaving := strings.Replace(bad, "{name: hello}", `{name: hello, deletionTimestamp: "2026-01-01T00:00:00Z"}`, 1)
	request := requestFor(t, leaving)
	request.Operation = admissionv1.Update
	request.OldObject.Raw = request.Object.Raw
	if r := ask(t, h, PathValidation, request); !r.Allowed {
		t.Errorf("refused: %s", r.Result.Message)
	}
	request = requestFor(t, hello)
	request.Operation, request.OldObject, request.Object = admissionv1.Delete, request.Object, runtime.RawExtension{}
	if r := ask(t, h, PathValidation, request); !r.Allowed {
		t.Errorf("deletion was refused: %s", r.Result.Message)
	}
}

// What a controller writes into a status passes, whatever the rules say of the spec meanwhile.
func TestStatusWritesAreNotJudged(t *testing.T) {
	h := newHandler(t, nil, nil)
	bad := strings.Replace(hello, "image: example.test/hello", "name: no-image", 1)
	for _, kind := range []string{"Service", "Configuration"} {
		request := requestFor(t, strings.Replace(bad, "kind: Service", "kind: "+kind, 1))
		request.Operation, request.OldObject, request.SubResource = admissionv1.Update, request.Object, "status"
		for _, path := range []string{PathDefaulting, PathEarly, PathValidation} {
			if r := ask(t, h, path, request); !r.Allowed || r.Patch != nil || len(r.Warnings) > 0 {
				t.Errorf("%s of a %s: %+v", path, kind, r)
			}
		}
	}
}

func TestFieldsThatGoDoesNotKnowSurviveDefaulting(t *testing.T) {
	h := newHandler(t, nil, nil)
	object, refusal := defaulted(t, h, requestFor(t, strings.Replace(hello, "{spec: {", "{spec: {affinity: {fromTheFuture: 1}, ", 1)))
	if refusal != "" || !bytes.Contains(object, []byte(`"fromTheFuture":1`)) {
		t.Errorf("%s %s", refusal, object)
	}
}

func TestGarbageIsRefusedNotFatal(t *testing.T) {
	h := newHandler(t, nil, nil)
	for _, body := range []string{"", "{", "[]", "{}", `{"request":null}`, `{"request":{"uid":5}}`} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, PathValidation, strings.NewReader(body)))
		if w.Code != http.StatusBadRequest {
			t.Errorf("%q: %d", body, w.Code)
		}
	}
	request := requestFor(t, hello)
	request.Kind.Kind = "Unheard"
	if r := ask(t, h, PathValidation, request); r.Allowed {
		t.Error("an unknown kind was allowed")
	}
}

func FuzzManifest(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txt")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		input, _, _ := strings.Cut(string(text), "\n===\n")
		if raw, err := yaml.YAMLToJSON([]byte(input)); err == nil {
			f.Add(raw)
		}
	}
	rules := settings.Default().Rules()
	rules.ClusterDomain = "cluster.local"
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, k := range kinds() {
			after, err := k.setDefaults(change{rules: rules, operation: "CREATE", user: "alice", object: raw})
			if err != nil {
				continue
			}
			if _, err := k.validate(change{rules: rules, operation: "CREATE", object: after}); err != nil {
				t.Errorf("the defaults of %s make it unreadable: %v", raw, err)
			}
		}
	})
}
