// Package digest resolves image tags to digests, in the background.
//
// Owns: the questions to registries, and their answers until the Revision has them. Reads:
// registries, by HEAD on a manifest; ServiceAccounts and Secrets, for the credentials. Writes:
// nothing. Never: keeps a revision from starting because a registry does not answer. Then the tag
// is used, as the node would, and the answer says why.
package digest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	kubeauth "github.com/google/go-containerregistry/pkg/authn/kubernetes"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"knative.dev/pkg/apis"

	servingv1 "ebb.dev/ebb/api/serving/v1"

	"ebb.dev/ebb/internal/egress"
)

// userAgent starts with the prefix that operators of registries know.
const userAgent = "knative/ebb-controller"

// workers is the number of revisions that are resolved at the same time.
const workers = 100

// Settings of a question.
type Settings struct {
	// Skip lists registries whose tags are not resolved.
	Skip []string
	// Trusted lists the registries that the operator named; see Way.
	Trusted []string
	// Timeout bounds one attempt, and the time of failing attempts before the tag is used.
	Timeout time.Duration
}

// Answer is what is known about a revision's images. The zero value means nothing yet.
type Answer struct {
	// Containers and InitContainers have one entry for each container, in order. With an empty
	// digest, the reference is used.
	Containers, InitContainers []servingv1.ContainerStatus
	// Missing means that the registry has no such image. It is asked again, with backoff.
	Missing error
	// Unresolved, with Containers, lists the images whose tag is used because the registry did not
	// answer.
	Unresolved error
}

// Resolved is a condition of a Revision that exists, and is False, only if it runs an image by its
// tag because the registry did not tell the digest. It does not count for Ready.
const Resolved apis.ConditionType = "DigestsResolved"

// Resolver answers questions about revisions.
type Resolver struct {
	ask   func(ctx context.Context, q *question, image string) (string, error)
	now   func() time.Time
	queue workqueue.TypedRateLimitingInterface[types.UID]

	mu        sync.Mutex
	questions map[types.UID]*question
}

type question struct {
	namespace, name, serviceAccount string
	pullSecrets                     []string
	containers, initContainers      []corev1.Container
	settings                        Settings

	since time.Time
	// found belongs to the worker of the question. answer is protected by the Resolver's lock.
	found  map[string]string
	answer Answer
}

// New returns a Resolver that asks registries on the given way, with the credentials of the
// revisions' namespaces.
func New(kube kubernetes.Interface, way Way) *Resolver {
	r := newResolver(nil)
	r.ask = func(ctx context.Context, q *question, image string) (string, error) {
		return askRegistry(ctx, kube, way, q, image)
	}
	return r
}

func newResolver(ask func(context.Context, *question, string) (string, error)) *Resolver {
	limiter := workqueue.NewTypedMaxOfRateLimiter(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](time.Second, 1000*time.Second),
		// All retries share ten attempts per second, so that a registry that recovers is not
		// overloaded.
		&workqueue.TypedBucketRateLimiter[types.UID]{Limiter: rate.NewLimiter(10, 100)})
	return &Resolver{ask: ask, now: time.Now, questions: map[types.UID]*question{},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(limiter,
			workqueue.TypedRateLimitingQueueConfig[types.UID]{Name: "digests"})}
}

// Resolve returns what is known, and asks for the rest in the background. It does not block. Images
// that need no question are resolved at once.
func (r *Resolver) Resolve(rev *servingv1.Revision, s Settings) Answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q, ok := r.questions[rev.UID]; ok {
		return q.answer
	}
	q := &question{
		namespace: rev.Namespace, name: rev.Name, serviceAccount: rev.Spec.ServiceAccountName,
		containers: rev.Spec.Containers, initContainers: rev.Spec.InitContainers,
		settings: s, since: r.now(), found: map[string]string{},
	}
	for _, secret := range rev.Spec.ImagePullSecrets {
		q.pullSecrets = append(q.pullSecrets, secret.Name)
	}
	for _, c := range slices.Concat(q.containers, q.initContainers) {
		if digest, known := withoutAsking(c.Image, s.Skip); known {
			q.found[c.Image] = digest
		}
	}
	if q.complete() {
		return q.fill(nil)
	}
	r.questions[rev.UID] = q
	r.queue.Add(rev.UID)
	return Answer{}
}

// ForgetDeleted is Forget for an informer's delete handler. A Revision that is gone is not
// reconciled, so nothing else would end its question.
func (r *Resolver) ForgetDeleted(object any) {
	if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	if rev, ok := object.(*servingv1.Revision); ok {
		r.Forget(rev)
	}
}

// Forget ends a question: the Revision has the answer, or is gone.
func (r *Resolver) Forget(rev *servingv1.Revision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.questions[rev.UID]; ok {
		delete(r.questions, rev.UID)
		r.queue.Forget(rev.UID)
	}
}

// Run answers questions until ctx ends. It calls done for each revision with a new answer.
func (r *Resolver) Run(ctx context.Context, done func(namespace, name string)) {
	stop := context.AfterFunc(ctx, r.queue.ShutDown)
	defer stop()
	var group sync.WaitGroup
	slots := make(chan struct{}, workers)
	for {
		uid, down := r.queue.Get()
		if down {
			break
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			defer r.queue.Done(uid)
			r.work(ctx, uid, done)
		})
	}
	group.Wait()
}

func (r *Resolver) work(ctx context.Context, uid types.UID, done func(namespace, name string)) {
	r.mu.Lock()
	q, ok := r.questions[uid]
	r.mu.Unlock()
	if !ok {
		r.queue.Forget(uid)
		return
	}
	attempt, cancel := context.WithTimeout(ctx, q.settings.Timeout)
	defer cancel()
	var missing error
	var unresolved []error
	again := false
	for _, c := range slices.Concat(q.containers, q.initContainers) {
		if _, known := q.found[c.Image]; known {
			continue
		}
		digest, err := r.ask(attempt, q, c.Image)
		switch {
		case err == nil:
			q.found[c.Image] = digest
		case ctx.Err() != nil:
			return // the process ends; the next one asks again
		case isMissing(err):
			missing = errors.New(servingv1.MissingImageMessage(c.Image, explain(err)))
		case isRefusal(err) || r.now().Sub(q.since) >= q.settings.Timeout:
			unresolved = append(unresolved, fmt.Errorf("the digest of image %q is not known, so its tag is used: %s", c.Image, explain(err)))
			q.found[c.Image] = ""
		default:
			again = true
		}
	}
	if missing != nil {
		again = true
	}
	r.mu.Lock()
	before := q.answer
	q.answer.Unresolved = errors.Join(append([]error{q.answer.Unresolved}, unresolved...)...)
	q.answer.Missing = missing
	if q.complete() {
		q.answer = q.fill(q.answer.Unresolved)
	}
	// An unchanged "missing" is not worth a reconcile, which would only ask again.
	news := q.answer.Containers != nil || fmt.Sprint(before.Missing) != fmt.Sprint(missing)
	r.mu.Unlock()
	if again {
		r.queue.AddRateLimited(uid)
	}
	if news {
		done(q.namespace, q.name)
	}
}

func (q *question) complete() bool {
	for _, c := range slices.Concat(q.containers, q.initContainers) {
		if _, known := q.found[c.Image]; !known {
			return false
		}
	}
	return true
}

func (q *question) fill(unresolved error) Answer {
	statuses := func(containers []corev1.Container) []servingv1.ContainerStatus {
		var out []servingv1.ContainerStatus
		for _, c := range containers {
			out = append(out, servingv1.ContainerStatus{Name: c.Name, ImageDigest: q.found[c.Image]})
		}
		return out
	}
	return Answer{Containers: statuses(q.containers), InitContainers: statuses(q.initContainers), Unresolved: unresolved}
}

// withoutAsking resolves references that are digests already, or whose registry is not asked.
func withoutAsking(image string, skip []string) (digest string, known bool) {
	reference, err := name.ParseReference(image, name.WeakValidation)
	if err != nil {
		return "", false
	}
	if _, ok := reference.(name.Digest); ok {
		return image, true
	}
	return "", slices.Contains(skip, reference.Context().RegistryStr())
}

// NotAsked reports whether what a Revision's status says of its images was known without asking a
// registry, so it is found again whatever happens there.
func NotAsked(rev *servingv1.Revision) bool {
	if rev.Status.GetCondition(Resolved) != nil {
		return false // a registry was asked in vain
	}
	images := map[string]string{}
	for _, c := range slices.Concat(rev.Spec.Containers, rev.Spec.InitContainers) {
		images[c.Name] = c.Image
	}
	for _, s := range slices.Concat(rev.Status.ContainerStatuses, rev.Status.InitContainerStatuses) {
		if s.ImageDigest != "" && s.ImageDigest != images[s.Name] {
			return false
		}
	}
	return true
}

func askRegistry(ctx context.Context, kube kubernetes.Interface, way Way, q *question, image string) (string, error) {
	reference, err := name.ParseReference(image, name.WeakValidation)
	if err != nil {
		return "", missingError{err}
	}
	registry := reference.Context().RegistryStr()
	if _, plain := trusts(q.settings.Trusted, registry); plain {
		// This only adds an attempt without TLS, and cannot fail where the line above did not.
		reference, _ = name.ParseReference(image, name.WeakValidation, name.Insecure)
	}
	keys, err := kubeauth.New(ctx, kube, kubeauth.Options{
		Namespace: q.namespace, ServiceAccountName: q.serviceAccount, ImagePullSecrets: q.pullSecrets})
	if err != nil {
		return "", fmt.Errorf("credentials of service account %s/%s: %w", q.namespace, q.serviceAccount, err)
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithTransport(way(registry, q.settings.Trusted)), remote.WithUserAgent(userAgent),
		remote.WithAuthFromKeychain(authn.NewMultiKeychain(keys, authn.DefaultKeychain))}
	head, err := remote.Head(reference, options...)
	if err == nil {
		return reference.Context().Name() + "@" + head.Digest.String(), nil
	}
	if !statusIs(err, http.StatusMethodNotAllowed, http.StatusNotImplemented) {
		return "", err
	}
	whole, err := remote.Get(reference, options...)
	if err != nil {
		return "", err
	}
	return reference.Context().Name() + "@" + whole.Digest.String(), nil
}

// missingError marks a reference that is not valid.
type missingError struct{ error }

// isMissing reports whether the registry has no such image. A registry that wants credentials
// answers 401 instead.
func isMissing(err error) bool {
	return errors.As(err, new(missingError)) || statusIs(err, http.StatusNotFound)
}

// isRefusal reports whether a retry with the same credentials and settings cannot succeed.
func isRefusal(err error) bool {
	return errors.Is(err, egress.ErrAddress) || errors.Is(err, errPlain) || statusIs(err, http.StatusUnauthorized, http.StatusForbidden)
}

func statusIs(err error, codes ...int) bool {
	var response *transport.Error
	return errors.As(err, &response) && slices.Contains(codes, response.StatusCode)
}
