// Package admit answers the API server's admission requests.
//
// Owns: nothing. Reads: the request, the current rules. Writes: nothing; a dry run of a pod is
// asked of the API server when the request itself is one. Never: decides what is right; the rules
// are methods of the kinds in api/ and of settings/.
package admit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// Paths of the webhooks.
const (
	PathDefaulting = "/defaulting"
	// PathEarly judges what somebody wrote before the schema does, so that refusals read the same
	// whether or not the schema would refuse as well. It gives no warnings and makes no dry run;
	// PathValidation comes afterwards.
	PathEarly      = "/early-validation"
	PathValidation = "/resource-validation"
	PathConfigMaps = "/config-validation"
)

// Bounds of what is in memory at once, and how much of it one address may take. The API server
// takes no request of more than 3 MiB and sends the object twice, before and after; nearly all are
// a few KiB.
const (
	maxBody          = 7 << 20
	smallBody        = 256 << 10
	smallBodies      = 64
	smallBodiesOfOne = 32
	largeBodies      = 2
	largeBodiesOfOne = 1
	// A large body that has a place must arrive within this time.
	largeBodyWithin = 3 * time.Second
	// Dry runs hold a place while the API server and its policies decide, so they have fewer.
	dryRuns      = 32
	dryRunsOfOne = 16
)

// DryRun tries a pod template without creating anything.
type DryRun func(ctx context.Context, namespace string, parent *metav1.ObjectMeta, template *servingv1.RevisionTemplateSpec) error

// Options are what admission works with.
type Options struct {
	Rules   func() *Rules
	DryRun  DryRun
	Metrics *Metrics
	Log     *slog.Logger
}

// New returns the handler of all four paths.
func New(options Options) http.Handler {
	h := &handler{Options: options, kinds: kinds(), small: newPlaces(smallBodies, smallBodiesOfOne),
		large: newPlaces(largeBodies, largeBodiesOfOne), dry: newPlaces(dryRuns, dryRunsOfOne)}
	mux := http.NewServeMux()
	mux.Handle("POST "+PathDefaulting, h.handle(PathDefaulting, h.setDefaults))
	mux.Handle("POST "+PathEarly, h.handle(PathEarly, h.validateEarly))
	mux.Handle("POST "+PathValidation, h.handle(PathValidation, h.validate))
	mux.Handle("POST "+PathConfigMaps, h.handle(PathConfigMaps, h.validateConfigMap))
	return mux
}

type handler struct {
	Options
	kinds map[metav1.GroupVersionKind]kind
	// A request takes a place in small or large before its body is read.
	small, large, dry *places
}

// answer is the part of a response that the paths decide.
type answer struct {
	patch    []byte
	warnings []string
	// refused is why the request is denied; nil allows it.
	refused error
}

func (h *handler) handle(path string, decide func(*http.Request, *admissionv1.AdmissionRequest) answer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		places, longest := h.large, int64(maxBody)
		if r.ContentLength >= 0 && r.ContentLength <= smallBody {
			places, longest = h.small, smallBody
		}
		if r.ContentLength > maxBody {
			w.Header().Set("Connection", "close") // nothing of it is read
			http.Error(w, "the request is too large", http.StatusRequestEntityTooLarge)
			return
		}
		from := addressOf(r)
		if !places.take(r.Context(), from) {
			return
		}
		defer places.leave(from)
		control := http.NewResponseController(w) // whose errors only say that a test has no connection
		if places == h.large {
			_ = control.SetReadDeadline(time.Now().Add(largeBodyWithin))
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longest))
		_ = control.SetReadDeadline(time.Time{}) // a deadline that passes would cancel the request
		if err != nil {
			http.Error(w, "the request cannot be read: "+err.Error(), http.StatusBadRequest)
			return
		}
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(body, &review); err != nil || review.Request == nil {
			http.Error(w, "the request is no AdmissionReview", http.StatusBadRequest)
			return
		}
		began := time.Now()
		request := review.Request
		a := decide(r, request)
		if a.refused != nil && h.isDryRun(request) {
			a.refused = fmt.Errorf("%s%w", dryRunFailed, a.refused)
		}
		response := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: a.refused == nil, Warnings: a.warnings}
		if a.refused != nil {
			response.Result = &metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusBadRequest, Reason: metav1.StatusReasonBadRequest, Message: a.refused.Error(),
			}
			h.Log.Info("refused", "path", path, "kind", request.Kind.Kind, "namespace", request.Namespace, "name", request.Name,
				"operation", request.Operation, "user", request.UserInfo.Username, "reason", a.refused.Error())
		} else if a.patch != nil {
			response.Patch = a.patch
			response.PatchType = new(admissionv1.PatchTypeJSONPatch)
		}
		h.Metrics.observe(path, request.Kind.Kind, response.Allowed, time.Since(began))
		review.Request, review.Response = nil, response
		w.Header().Set("Content-Type", "application/json")
		// The API server gave up when this fails; it asks again or tells the user.
		_ = json.NewEncoder(w).Encode(review)
	})
}

func (h *handler) change(request *admissionv1.AdmissionRequest) change {
	return change{
		rules: h.Rules(), operation: rules.Operation(request.Operation), subresource: request.SubResource,
		user: request.UserInfo.Username, object: request.Object.Raw, old: request.OldObject.Raw,
	}
}

// addressOf returns where a request comes from; nobody is zero.
func addressOf(r *http.Request) netip.Addr {
	peer, _ := netip.ParseAddrPort(r.RemoteAddr)
	return peer.Addr().Unmap()
}

// concerns tells whether a request is to be judged: writes of objects that are not on their way
// out. An object that is being deleted has only finalizers to lose, and that must not fail.
func concerns(request *admissionv1.AdmissionRequest) bool {
	if request.Operation != admissionv1.Create && request.Operation != admissionv1.Update || len(request.Object.Raw) == 0 {
		return false
	}
	var object struct {
		Metadata struct {
			DeletionTimestamp string `json:"deletionTimestamp"`
		} `json:"metadata"`
	}
	// An object that cannot be read is refused further on, with a better message.
	_ = json.Unmarshal(request.Object.Raw, &object)
	return object.Metadata.DeletionTimestamp == ""
}

func (h *handler) setDefaults(_ *http.Request, request *admissionv1.AdmissionRequest) answer {
	k, ok := h.kinds[request.Kind]
	if !ok {
		return answer{refused: fmt.Errorf("unhandled kind: %s", request.Kind.String())}
	}
	if !concerns(request) || request.SubResource != "" {
		return answer{}
	}
	after, err := k.setDefaults(h.change(request))
	if err != nil {
		return answer{refused: fmt.Errorf("mutation failed: %w", err)}
	}
	operations, err := jsonpatch.CreatePatch(request.Object.Raw, after)
	if err != nil {
		return answer{refused: fmt.Errorf("mutation failed: %w", err)}
	}
	if len(operations) == 0 {
		return answer{}
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		return answer{refused: fmt.Errorf("mutation failed: %w", err)}
	}
	return answer{patch: patch}
}

func (h *handler) validateEarly(_ *http.Request, request *admissionv1.AdmissionRequest) answer {
	a, _ := h.check(request)
	a.warnings = nil
	return a
}

func (h *handler) validate(r *http.Request, request *admissionv1.AdmissionRequest) answer {
	a, k := h.check(request)
	if a.refused != nil || k == nil || !h.isDryRun(request) || h.DryRun == nil {
		return a
	}
	template, parent, err := k.template(request.Object.Raw)
	if err != nil || len(parent.OwnerReferences) > 0 {
		return a
	}
	from := addressOf(r)
	if !h.dry.try(from) {
		a.refused = errors.New("too many dry runs at once; try again")
		return a
	}
	defer h.dry.leave(from)
	if err := h.DryRun(r.Context(), request.Namespace, parent, template); err != nil {
		a.refused = apis.ErrGeneric(fmt.Sprintf("dry run failed with %v", err), "spec.template")
	}
	return a
}

// dryRunFailed begins each refusal of a template by a dry run, whatever the reason: clients look
// for it (Knative's contract, admission).
const dryRunFailed = "validation callback failed: "

func (h *handler) isDryRun(request *admissionv1.AdmissionRequest) bool {
	return h.kinds[request.Kind].template != nil && request.DryRun != nil && *request.DryRun
}

// check applies the kind's own rules. The kind is nil when there was nothing to judge.
func (h *handler) check(request *admissionv1.AdmissionRequest) (answer, *kind) {
	k, ok := h.kinds[request.Kind]
	if !ok {
		return answer{refused: fmt.Errorf("unhandled kind: %s", request.Kind.String())}, nil
	}
	if !concerns(request) {
		return answer{}, nil
	}
	problems, err := k.validate(h.change(request))
	if err != nil {
		return answer{refused: fmt.Errorf("validation failed: %w", err)}, nil
	}
	var a answer
	if warnings := problems.Filter(apis.WarningLevel); warnings != nil {
		for _, warning := range warnings.WrappedErrors() {
			a.warnings = append(a.warnings, warning.Error())
		}
	}
	if errs := problems.Filter(apis.ErrorLevel); errs != nil {
		a.refused = fmt.Errorf("validation failed: %w", errs)
	}
	return a, &k
}

func (h *handler) validateConfigMap(_ *http.Request, request *admissionv1.AdmissionRequest) answer {
	if !concerns(request) {
		return answer{}
	}
	var m corev1.ConfigMap
	if err := json.Unmarshal(request.Object.Raw, &m); err != nil {
		return answer{refused: fmt.Errorf("validation failed: cannot decode incoming new object: %w", err)}
	}
	if !settings.Known(m.Name) {
		return answer{}
	}
	err := errors.Join(settings.ParseOne(m.Name, m.Data), settings.VerifyExample(m.Name, m.Annotations, m.Data))
	if err != nil {
		return answer{refused: fmt.Errorf("validation failed: %s", strings.TrimSpace(err.Error()))}
	}
	return answer{warnings: settings.Warnings(m.Name, m.Data)}
}
