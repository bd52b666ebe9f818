package digest

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/internal/env"
)

// startRegistry is a real registry on loopback; with a user it wants that user's password "secret".
func startRegistry(t *testing.T, user string) (host string, agents func() []string) {
	t.Helper()
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var mu sync.Mutex
	var seen []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); user != "" && (u != user || p != "secret") {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mu.Lock()
		seen = append(seen, r.Header.Get("User-Agent"))
		mu.Unlock()
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), func() []string {
		mu.Lock()
		defer mu.Unlock()
		out := seen
		seen = nil
		return out
	}
}

func push(t *testing.T, reference string, options ...remote.Option) string {
	t.Helper()
	image, err := random.Image(64, 1)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image, options...); err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return ref.Context().Name() + "@" + digest.String()
}

func revisionOf(images ...string) *servingv1.Revision {
	rev := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "rev", UID: "1"}}
	for i, image := range images {
		rev.Spec.Containers = append(rev.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", i), Image: image})
	}
	return rev
}

// ask resolves until the answer has containers or a missing image.
func ask(t *testing.T, r *Resolver, rev *servingv1.Revision, s Settings) Answer {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	news, ended := make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx, func(string, string) { news <- struct{}{} })
	}()
	defer func() { cancel(); <-ended }()
	for {
		if a := r.Resolve(rev, s); a.Containers != nil || a.Missing != nil {
			return a
		}
		<-news
	}
}

func TestATagBecomesTheDigestOfARealRegistry(t *testing.T) {
	host, agents := startRegistry(t, "")
	want := push(t, host+"/team/hello:1")
	agents()
	rev := revisionOf(host+"/team/hello:1", want, "skipped.example.com/x:1")
	rev.Spec.InitContainers = []corev1.Container{{Name: "init", Image: host + "/team/hello:1"}}
	answer := ask(t, New(fake.NewClientset(), anywhere), rev, Settings{Skip: []string{"skipped.example.com"}, Timeout: time.Minute})
	got := fmt.Sprint(answer.Containers, answer.InitContainers, answer.Missing, answer.Unresolved)
	if expected := fmt.Sprintf("[{c0 %s} {c1 %s} {c2 }] [{init %s}] <nil> <nil>", want, want, want); got != expected {
		t.Errorf("got  %s\nwant %s", got, expected)
	}
	for _, agent := range agents() {
		if !strings.HasPrefix(agent, "knative/") {
			t.Errorf("the registry saw the user agent %q", agent)
		}
	}
}

func TestAPrivateRegistryIsAskedWithThePullSecretsOfTheRevisionAndItsServiceAccount(t *testing.T) {
	host, _ := startRegistry(t, "reader")
	want := push(t, host+"/private:1", remote.WithTransport(withPassword{}))
	secret := func(name string) *corev1.Secret {
		auth := base64.StdEncoding.EncodeToString([]byte("reader:secret"))
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, auth))}}
	}
	byAccount := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "puller"},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "of-the-account"}}}
	client := fake.NewClientset(secret("of-the-revision"), secret("of-the-account"), byAccount)
	for why, change := range map[string]func(*servingv1.Revision){
		"imagePullSecrets of the template": func(r *servingv1.Revision) {
			r.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "of-the-revision"}}
		},
		"imagePullSecrets of the service account": func(r *servingv1.Revision) { r.Spec.ServiceAccountName = "puller" },
	} {
		t.Run(why, func(t *testing.T) {
			rev := revisionOf(host + "/private:1")
			change(rev)
			answer := ask(t, New(client, anywhere), rev, Settings{Timeout: time.Minute})
			if answer.Unresolved != nil || answer.Containers[0].ImageDigest != want {
				t.Errorf("got %+v, want %s", answer, want)
			}
		})
	}
	// As the kubelet reads them: an entry may be for a part of a registry, the longest counts; the
	// older form of a Secret counts; a Secret that is not there is passed over, and so is what the
	// default ServiceAccount has for another registry.
	entry := func(at, user, password string) string {
		return fmt.Sprintf("%q:{%q:%q,%q:%q}", at, "username", user, "password", password)
	}
	of := func(name, entries string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{` + entries + `}}`)}}
	}
	for why, c := range map[string]struct {
		secrets []*corev1.Secret
		account []string // of the default ServiceAccount
		ok      bool
	}{
		"the path of the image": {[]*corev1.Secret{of("a", entry(host+"/private", "reader", "secret"))}, nil, true},
		"another path":          {[]*corev1.Secret{of("a", entry(host+"/other", "reader", "secret"))}, nil, false},
		"the longer of two paths, in one Secret": {[]*corev1.Secret{of("a",
			entry(host, "nobody", "wrong")+","+entry(host+"/private", "reader", "secret"))}, nil, true},
		"the longer of two paths, in two Secrets": {[]*corev1.Secret{of("a", entry(host, "nobody", "wrong")),
			of("b", entry(host+"/private", "reader", "secret"))}, nil, true},
		"with a scheme": {[]*corev1.Secret{of("a", entry("http://"+host+"/v2/", "reader", "secret"))}, nil, true},
		"the older form": {[]*corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, Type: corev1.SecretTypeDockercfg,
			Data: map[string][]byte{corev1.DockerConfigKey: []byte("{" + entry(host, "reader", "secret") + "}")}}}, nil, true},
		"the default ServiceAccount":        {[]*corev1.Secret{of("of-default", entry(host, "reader", "secret"))}, []string{"of-default"}, true},
		"beside a Secret that is not there": {[]*corev1.Secret{of("b", entry(host, "reader", "secret"))}, []string{"gone"}, true},
	} {
		t.Run(why, func(t *testing.T) {
			client := fake.NewClientset()
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "default"}}
			for _, name := range c.account {
				account.ImagePullSecrets = append(account.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
			}
			rev := revisionOf(host + "/private:1")
			for _, s := range c.secrets {
				if err := client.Tracker().Add(s); err != nil {
					t.Fatal(err)
				}
				if !slices.Contains(c.account, s.Name) {
					rev.Spec.ImagePullSecrets = append(rev.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s.Name})
				}
			}
			if err := client.Tracker().Add(account); err != nil {
				t.Fatal(err)
			}
			answer := ask(t, New(client, anywhere), rev, Settings{Timeout: time.Minute})
			if ok := answer.Unresolved == nil && answer.Containers[0].ImageDigest == want; ok != c.ok {
				t.Errorf("got %+v, want a digest: %v", answer, c.ok)
			}
		})
	}
	t.Run("a config.json that is mounted into the controller, as the kubelet has one", func(t *testing.T) {
		folder := t.TempDir()
		config := secret("of-the-node").Data[corev1.DockerConfigJsonKey]
		if err := os.WriteFile(filepath.Join(folder, "config.json"), config, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("DOCKER_CONFIG", folder)
		answer := ask(t, New(client, anywhere), revisionOf(host+"/private:1"), Settings{Timeout: time.Minute})
		if answer.Unresolved != nil || answer.Containers[0].ImageDigest != want {
			t.Errorf("got %+v, want %s", answer, want)
		}
	})
	t.Run("without credentials the tag is used, and why is said", func(t *testing.T) {
		answer := ask(t, New(client, anywhere), revisionOf(host+"/private:1"), Settings{Timeout: time.Minute})
		if answer.Unresolved == nil || !strings.Contains(answer.Unresolved.Error(), "401") || answer.Containers[0].ImageDigest != "" {
			t.Errorf("got %+v", answer)
		}
	})
}

// The digest is that of the list of all architectures, because each node picks its own.
func TestAnImageForSeveralArchitecturesIsPinnedAsAWhole(t *testing.T) {
	host, _ := startRegistry(t, "")
	index, err := random.Index(64, 1, 3)
	if err != nil {
		t.Fatal(err)
	}
	reference, err := name.ParseReference(host + "/many:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(reference, index); err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	answer := ask(t, New(fake.NewClientset(), anywhere), revisionOf(host+"/many:1"), Settings{Timeout: time.Minute})
	if want := host + "/many@" + digest.String(); answer.Unresolved != nil || answer.Containers[0].ImageDigest != want {
		t.Errorf("got %+v, want %s", answer, want)
	}
}

// Some registries do not know HEAD; and one whose tags are not to be asked for is not asked.
func TestARegistryWithoutHEADAndOneThatIsSkipped(t *testing.T) {
	host, _ := startRegistry(t, "")
	want := push(t, host+"/hello:1")
	heads := 0
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			heads++
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		(&httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(&url.URL{Scheme: "http", Host: host}) }}).ServeHTTP(w, r)
	}))
	defer proxy.Close()
	_, digest, _ := strings.Cut(want, "@")
	odd := strings.TrimPrefix(proxy.URL, "http://")
	answer := ask(t, New(fake.NewClientset(), anywhere), revisionOf(odd+"/hello:1"), Settings{Timeout: time.Minute})
	if answer.Unresolved != nil || answer.Containers[0].ImageDigest != odd+"/hello@"+digest {
		t.Errorf("without HEAD: %+v, want ...@%s", answer, digest)
	}
	seen := heads
	answer = ask(t, New(fake.NewClientset(), anywhere), revisionOf(odd+"/hello:1"), Settings{Timeout: time.Minute, Skip: []string{odd}})
	if answer.Unresolved != nil || answer.Containers[0].ImageDigest != "" || heads != seen {
		t.Errorf("skipped: %+v after %d more questions", answer, heads-seen)
	}
}

// anywhere is a way without rules, to registries on loopback.
func anywhere(string, []string) http.RoundTripper { return http.DefaultTransport }

type withPassword struct{}

func (withPassword) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.SetBasicAuth("reader", "secret")
	return http.DefaultTransport.RoundTrip(r)
}

func TestAnImageTheRegistryDoesNotHaveIsMissing(t *testing.T) {
	host, _ := startRegistry(t, "")
	push(t, host+"/hello:1")
	answer := ask(t, New(fake.NewClientset(), anywhere), revisionOf(host+"/hello:2"), Settings{Timeout: time.Minute})
	prefix := fmt.Sprintf("Unable to fetch image %q: failed to resolve image to digest: ", host+"/hello:2")
	if answer.Missing == nil || !strings.HasPrefix(answer.Missing.Error(), prefix) {
		t.Errorf("got %v, want %s...", answer.Missing, prefix)
	}
}

// The rest is about time, so it runs in virtual time over a made-up registry.
func TestARegistryThatCannotBeReachedIsTriedUntilTheTimeoutAndThenTheTagIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		r := newResolver(func(context.Context, *question, string) (string, error) {
			attempts++
			return "", errors.New("dial tcp: connection refused")
		})
		began := time.Now()
		answer := ask(t, r, revisionOf("down.example.com/x:1"), Settings{Timeout: 10 * time.Second})
		if took := time.Since(began); took < 10*time.Second || took > 30*time.Second {
			t.Errorf("gave up after %s", took)
		}
		if attempts < 3 || answer.Unresolved == nil || answer.Containers[0].ImageDigest != "" {
			t.Errorf("%d attempts, %+v", attempts, answer)
		}
	})
}

func TestAMissingImageThatAppearsIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var there atomic.Bool
		r := newResolver(func(_ context.Context, _ *question, image string) (string, error) {
			if there.Load() {
				return image + "@sha256:1", nil
			}
			return "", missingError{errors.New("no such tag")}
		})
		rev := revisionOf("example.com/late:1")
		ctx, cancel := context.WithCancel(t.Context())
		news, ended := make(chan struct{}, 100), make(chan struct{})
		go func() { defer close(ended); r.Run(ctx, func(string, string) { news <- struct{}{} }) }()
		defer func() { cancel(); <-ended }()
		r.Resolve(rev, Settings{Timeout: 10 * time.Second})
		<-news
		if a := r.Resolve(rev, Settings{}); a.Missing == nil {
			t.Fatalf("got %+v, want missing", a)
		}
		there.Store(true)
		<-news
		if a := r.Resolve(rev, Settings{}); a.Missing != nil || a.Containers[0].ImageDigest != "example.com/late:1@sha256:1" {
			t.Fatalf("got %+v, want the digest", a)
		}
		r.Forget(rev)
		if len(r.questions) != 0 {
			t.Error("a forgotten question is kept")
		}
	})
}

func TestADeletedRevisionIsNotAskedAboutAnyMore(t *testing.T) {
	rev := revisionOf("example.com/late:1")
	for behaviour, object := range map[string]any{
		"deleted":                           rev,
		"deleted while nobody was watching": cache.DeletedFinalStateUnknown{Key: "ns/rev", Obj: rev},
	} {
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Int64
			r := newResolver(func(context.Context, *question, string) (string, error) {
				asked.Add(1)
				return "", missingError{errors.New("no such tag")}
			})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); r.Run(ctx, func(string, string) {}) }()
			defer func() { cancel(); <-ended }()
			r.Resolve(rev, Settings{Timeout: 10 * time.Second})
			time.Sleep(time.Hour)
			before := asked.Load()
			r.ForgetDeleted(object)
			time.Sleep(24 * time.Hour)
			if before < 2 || asked.Load() != before || len(r.questions) != 0 {
				t.Errorf("%s: asked %d times before and %d after, %d questions are kept", behaviour, before, asked.Load()-before, len(r.questions))
			}
		})
	}
}

// The TLS of the way to registries is set by the environment, by the names that installations know.
func TestTheEnvironmentSetsTheTLSOfTheWayToRegistries(t *testing.T) {
	config := func(variables map[string]string) *tls.Config {
		return NewWay(fake.NewClientset(), ReadOptions(env.New(func(name string) string { return variables[name] })))("", nil).(*guarded).outside.TLSClientConfig
	}
	if c := config(nil); c.MinVersion != tls.VersionTLS12 || c.MaxVersion != 0 || c.CipherSuites != nil {
		t.Errorf("without any: %+v", c)
	}
	c := config(map[string]string{"TAG_TO_DIGEST_TLS_MIN_VERSION": "1.3", "TAG_TO_DIGEST_TLS_MAX_VERSION": "1.3",
		"TAG_TO_DIGEST_TLS_CIPHER_SUITES": "TLS_AES_128_GCM_SHA256, TLS_NOTHING, TLS_AES_256_GCM_SHA384"})
	if c.MinVersion != tls.VersionTLS13 || c.MaxVersion != tls.VersionTLS13 ||
		!slices.Equal(c.CipherSuites, []uint16{tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384}) {
		t.Errorf("with all: %+v", c)
	}
	if c := config(map[string]string{"TAG_TO_DIGEST_TLS_MIN_VERSION": "1.0"}); c.MinVersion != tls.VersionTLS12 {
		t.Errorf("a version that is none leads to %x", c.MinVersion)
	}
}
