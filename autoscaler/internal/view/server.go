package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/internal/frontproxy"
	"ebb.dev/ebb/internal/shares"
)

const (
	// maxQuestions bounds the answers that are made at once, maxStreams the open streams, and
	// maxFullStreams those of single Services, of which each has a view of its own to make. One
	// user has at most half of each, and a share beside others.
	maxQuestions   = 64
	maxStreams     = 1000
	maxFullStreams = 128
	// patience is how long a question waits for its turn.
	patience = 2 * time.Second
	// retryAfter is what a caller is told whose turn does not come, in seconds.
	retryAfter = 5
)

// Access tells who asks and what they may.
type Access interface {
	Caller(r *http.Request) (frontproxy.User, error)
	May(ctx context.Context, u frontproxy.User, what authorizationv1.ResourceAttributes) (bool, string, error)
}

// Server answers what the API server passes on.
type Server struct {
	replicas *Replicas
	access   Access
	log      *slog.Logger
	board    board

	questions, streams, fullStreams *shares.Pool
	// stopped ends the streams.
	stopped chan struct{}
}

// NewServer returns a Server.
func NewServer(replicas *Replicas, access Access, log *slog.Logger) *Server {
	return &Server{replicas: replicas, access: access, log: log, board: board{replicas: replicas, seed: maphash.MakeSeed()},
		questions: shares.New(maxQuestions), streams: shares.New(maxStreams), fullStreams: shares.New(maxFullStreams),
		stopped: make(chan struct{})}
}

// Run ends the streams with ctx.
func (s *Server) Run(ctx context.Context) error {
	<-ctx.Done()
	close(s.stopped)
	return nil
}

// question is a parsed request.
type question struct {
	scope
	// list is true for a list or a stream.
	list, watch bool
	limit       int
	ends        time.Duration // of a stream
}

const (
	prefix = "/apis/" + v1alpha1.Group
	root   = prefix + "/" + v1alpha1.Version
)

var resource = schema.GroupResource{Group: v1alpha1.Group, Resource: v1alpha1.Resource}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	caller, err := s.access.Caller(r)
	if err != nil {
		fail(w, apierrors.NewUnauthorized(err.Error()+"; ask the API server"))
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		fail(w, apierrors.NewMethodNotSupported(resource, strings.ToLower(r.Method)))
		return
	}
	if answer := discovery(strings.TrimSuffix(r.URL.Path, "/")); answer != nil {
		write(w, answer)
		return
	}
	q, err := parse(r.URL)
	if err != nil {
		fail(w, err)
		return
	}
	if err := s.allow(r.Context(), caller, q); err != nil {
		fail(w, err)
		return
	}
	if q.watch {
		s.stream(w, r, caller, q)
		return
	}
	who := owner(caller)
	if !take(r.Context(), s.questions, who) {
		fail(w, busy("too many questions at once"))
		return
	}
	defer s.questions.Give(who, 1)
	if q.list {
		s.list(w, r, q)
		return
	}
	v, warning, err := s.one(r.Context(), q.scope)
	if err != nil {
		fail(w, err)
		return
	}
	warn(w, warning)
	write(w, v)
}

// parse reads the path and the parameters below root.
func parse(u *url.URL) (q question, err error) {
	path := strings.Split(strings.Trim(strings.TrimPrefix(u.Path, root), "/"), "/")
	if len(path) >= 2 && path[0] == "namespaces" && path[1] != "" {
		q.namespace, path = path[1], path[2:]
	}
	q.list = len(path) == 1
	if !strings.HasPrefix(u.Path, root+"/") || len(path) == 0 || len(path) > 2 || path[0] != v1alpha1.Resource || len(path) == 2 && q.namespace == "" {
		return q, apierrors.NewGenericServerResponse(http.StatusNotFound, "get", resource, "", "there is no such path; see "+root, 0, false)
	}
	if len(path) == 2 {
		q.service = path[1]
		q.judge = u.Query().Get(v1alpha1.QueryJudge) == "true"
		return q, nil
	}
	query := u.Query()
	if q.limit, err = number(query, "limit", v1alpha1.MaxItems, v1alpha1.MaxItems); err != nil {
		return q, err
	}
	seconds, err := number(query, "timeoutSeconds", usualStream, maxStream)
	if err != nil {
		return q, err
	}
	q.ends = time.Duration(seconds) * time.Second
	switch text := query.Get("watch"); text {
	case "", "0", "false":
	case "1", "true":
		q.watch = true
	default:
		return q, apierrors.NewBadRequest(fmt.Sprintf("watch is %.20q, want true or false", text))
	}
	if query.Get("labelSelector") != "" {
		return q, apierrors.NewBadRequest("labelSelector cannot be used here: views have no labels")
	}
	if text := query.Get("fieldSelector"); text != "" {
		selector, err := fields.ParseSelector(text)
		if err != nil {
			return q, apierrors.NewBadRequest(err.Error())
		}
		name, one := selector.RequiresExactMatch("metadata.name")
		if !one || len(selector.Requirements()) != 1 || q.namespace == "" {
			return q, apierrors.NewBadRequest("fieldSelector must be metadata.name=NAME, in a namespace")
		}
		if len(validation.IsDNS1123Label(name)) > 0 {
			return q, apierrors.NewBadRequest(fmt.Sprintf("fieldSelector has %.70q, which no Service can be named", name))
		}
		q.service = name
	}
	return q, nil
}

// number reads a parameter of at least 1. 0 and absence stand for the usual value, and more than
// most for most.
func number(query url.Values, name string, usual, most int) (int, error) {
	text := query.Get(name)
	if text == "" || text == "0" {
		return usual, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("%s is %.20q, want a number", name, text))
	}
	return min(n, most), nil
}

// allow returns an error if the caller may not read the PodAutoscalers that q is about.
func (s *Server) allow(ctx context.Context, caller frontproxy.User, q question) error {
	what := authorizationv1.ResourceAttributes{Namespace: q.namespace, Verb: "get", Group: names.AutoscalingInternalGroup, Version: "v1alpha1", Resource: "podautoscalers"}
	if q.list {
		what.Verb = "list"
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	allowed, reason, err := s.access.May(ctx, caller, what)
	switch {
	case err != nil:
		s.log.Warn("cannot check the caller's permissions", "error", err)
		return apierrors.NewServiceUnavailable("the API server did not tell the rights of " + caller.Name)
	case allowed:
		return nil
	}
	where := "in the cluster"
	if q.namespace != "" {
		where = "in the namespace " + q.namespace
	}
	why := fmt.Sprintf("user %q cannot %s podautoscalers.%s %s", caller.Name, what.Verb, what.Group, where)
	if reason != "" {
		why += ": " + reason
	}
	return apierrors.NewForbidden(resource, q.service, errors.New(why))
}

// one makes the view of one Service, with everything.
func (s *Server) one(ctx context.Context, of scope) (v *v1alpha1.ServiceView, warning, err error) {
	parts, warning := s.replicas.parts(ctx, of)
	if len(parts) > 0 {
		v := merge(parts, true, time.Now())
		return &v, warning, nil
	}
	if warning != nil {
		return nil, nil, apierrors.NewServiceUnavailable(warning.Error())
	}
	return nil, nil, apierrors.NewNotFound(resource, of.service)
}

// list answers with short views, or with one that has everything.
func (s *Server) list(w http.ResponseWriter, r *http.Request, q question) {
	items := []json.RawMessage{}
	list := struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata"`
		Items           *[]json.RawMessage `json:"items"`
	}{TypeMeta: metav1.TypeMeta{Kind: v1alpha1.ListKind, APIVersion: v1alpha1.GroupVersion.String()}, Items: &items}
	var warning error
	if q.full() {
		v, left, err := s.one(r.Context(), q.scope)
		if err != nil && !apierrors.IsNotFound(err) {
			fail(w, err)
			return
		}
		if warning = left; v != nil {
			text, _ := json.Marshal(v)
			items = append(items, text)
		}
	} else {
		entries, round, left := s.board.now(r.Context())
		warning, list.ResourceVersion = left, strconv.FormatUint(round, 10)
		var more int64
		for _, e := range entries {
			switch {
			case !e.deleted.IsZero() || q.namespace != "" && q.namespace != e.namespace:
			case len(items) == q.limit:
				more++
			default:
				items = append(items, e.text)
			}
		}
		if more > 0 {
			list.RemainingItemCount = &more
		}
	}
	warn(w, warning)
	write(w, list)
}

// owner returns of whom the share is that a user takes. The ServiceAccounts of a namespace have one
// together, because who may edit it can make many.
func owner(u frontproxy.User) string {
	const account = "system:serviceaccount:"
	if of, found := strings.CutPrefix(u.Name, account); found {
		namespace, _, _ := strings.Cut(of, ":")
		return account + namespace
	}
	return u.Name
}

// take gets a place for a user within its patience.
func take(ctx context.Context, places *shares.Pool, who string) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return places.Wait(ctx, who, 1) == nil
}

func busy(why string) error { return apierrors.NewTooManyRequests(why, retryAfter) }

// fail answers with a Status.
func fail(w http.ResponseWriter, err error) {
	status := apierrors.NewInternalError(err).Status()
	if known := apierrors.APIStatus(nil); errors.As(err, &known) {
		status = known.Status()
	}
	if status.Code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	}
	status.Kind, status.APIVersion = "Status", "v1"
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	json.NewEncoder(w).Encode(status)
}

// warn says that a replica did not answer, as kubectl shows it.
func warn(w http.ResponseWriter, err error) {
	if err != nil {
		w.Header().Set("Warning", `299 - "incomplete: `+strings.NewReplacer(`"`, `'`, `\`, `/`, "\n", "; ", "\r", " ").Replace(err.Error())+`"`)
	}
}

func write(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(value)
}
