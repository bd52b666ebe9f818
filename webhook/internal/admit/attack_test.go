package admit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// blocked is a body that arrives when it is let go, and counts who reads it.
type blocked struct {
	readers *atomic.Int64
	release chan struct{}
}

func (b blocked) Read([]byte) (int, error) {
	b.readers.Add(1)
	defer b.readers.Add(-1)
	<-b.release
	return 0, io.EOF
}

// Somebody who sends large bodies to the webhook, as many as he likes, must not fill its memory,
// nor keep requests of the usual size out.
func TestBodiesInMemoryAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := New(Options{Metrics: NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler)})
		var readers atomic.Int64
		release := make(chan struct{})
		send := func(from string, length int64, body io.Reader) *httptest.ResponseRecorder {
			request := httptest.NewRequest("POST", PathValidation, body).WithContext(t.Context())
			request.ContentLength, request.RemoteAddr = length, from+":1"
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, request)
			return answer
		}
		if got := send("192.0.2.1", maxBody+1, blocked{&readers, release}); got.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("a body that is too large: %d", got.Code)
		}
		for range 50 {
			go send("192.0.2.1", maxBody, blocked{&readers, release})
			go send("192.0.2.1", -1, blocked{&readers, release})
		}
		synctest.Wait()
		if n := readers.Load(); n != largeBodiesOfOne {
			t.Errorf("%d large bodies of one address are read at once, at most %d may be", n, largeBodiesOfOne)
		}
		if got := send("192.0.2.9", maxBody, http.NoBody); got.Code != http.StatusBadRequest {
			t.Errorf("a large request of another address beside them: %d", got.Code)
		}
		for i := range 50 {
			go send(fmt.Sprintf("192.0.2.%d", 10+i), maxBody, blocked{&readers, release})
		}
		synctest.Wait()
		if n := readers.Load(); n != largeBodies {
			t.Errorf("%d large bodies are read at once, at most %d may be", n, largeBodies)
		}
		for range 50 {
			go send("192.0.2.1", 2, blocked{&readers, release})
		}
		synctest.Wait()
		if n := readers.Load() - largeBodies; n != smallBodiesOfOne {
			t.Errorf("%d small bodies of one address are read at once, at most %d may be", n, smallBodiesOfOne)
		}
		if got := send("192.0.2.9", 2, io.LimitReader(http.NoBody, 2)); got.Code != http.StatusBadRequest {
			t.Errorf("a small request beside them: %d", got.Code)
		}
		close(release)
		synctest.Wait()
	})
	if most := largeBodies*maxBody + smallBodies*smallBody; most > 32<<20 {
		t.Errorf("bodies may take %d MiB of the webhook's 200", most>>20)
	}
}

// An address with many requests delays one of another by a single one of them.
func TestAddressesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(1, 1)
		address := func(i byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, i}) }
		var mu sync.Mutex
		var order []byte
		next := make(chan struct{})
		enter := func(ctx context.Context, i byte) {
			if !p.take(ctx, address(i)) {
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			<-next
			p.leave(address(i))
		}
		for range 4 {
			for i := range byte(3) {
				go enter(t.Context(), i)
				synctest.Wait()
			}
		}
		gone, leave := context.WithCancel(t.Context())
		go enter(gone, 9)
		synctest.Wait()
		leave()
		synctest.Wait()
		go enter(t.Context(), 7)
		synctest.Wait()
		for range 13 {
			next <- struct{}{}
			synctest.Wait()
		}
		// 7 came last and waits for one of each other address; 9 went.
		if want := []byte{0, 1, 2, 0, 7, 1, 2, 0, 1, 2, 0, 1, 2}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
		if p.free != 1 || len(p.held)+len(p.waiting)+len(p.turns) != 0 {
			t.Errorf("left over: %+v", p)
		}
	})
}

// A large body that arrives slowly does not keep its place.
func TestALargeBodyThatArrivesSlowlyLosesItsPlace(t *testing.T) {
	handler := New(Options{Metrics: NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler)})
	server := httptest.NewServer(handler)
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{", PathValidation, maxBody)
	conn.SetReadDeadline(time.Now().Add(10 * largeBodyWithin))
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
		t.Errorf("%q, %v", answer, err)
	}
}

// Dry runs that the API server is slow to answer keep others neither from a dry run nor from being
// judged.
func TestDryRunsThatTakeLongKeepNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, refused atomic.Int64
		release := make(chan struct{})
		h := newHandler(t, nil, func(context.Context, string, *metav1.ObjectMeta, *servingv1.RevisionTemplateSpec) error {
			running.Add(1)
			<-release
			return nil
		})
		send := func(from string, dry bool) string {
			request := requestFor(t, tried)
			request.DryRun = new(dry)
			answer := askFrom(t, h, from, PathValidation, request)
			if answer.Allowed {
				return ""
			}
			return answer.Result.Message
		}
		for range smallBodies {
			go func() {
				if strings.Contains(send("192.0.2.1", true), "too many dry runs") {
					refused.Add(1)
				}
			}()
		}
		synctest.Wait()
		if running.Load() != dryRunsOfOne || refused.Load() != smallBodies-dryRunsOfOne {
			t.Errorf("%d dry runs of one address run and %d are refused, at most %d may run", running.Load(), refused.Load(), dryRunsOfOne)
		}
		for _, from := range []string{"192.0.2.1", "192.0.2.2"} {
			if message := send(from, false); message != "" {
				t.Errorf("a request of %s beside them: %s", from, message)
			}
		}
		go send("192.0.2.2", true)
		synctest.Wait()
		if running.Load() != dryRunsOfOne+1 {
			t.Error("a dry run of another address does not run")
		}
		close(release)
		synctest.Wait()
	})
}

// Who makes up a request with another namespace in it does not learn how much is used there.
func TestADryRunTellsNothingOfANamespacesQuota(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "p",
			errors.New("exceeded quota: compute, requested: cpu=1, used: cpu=3500m, limited: cpu=4"))
	})
	request := requestFor(t, tried)
	request.DryRun = new(true)
	answer := ask(t, newHandler(t, nil, PodDryRun(client)), PathValidation, request)
	if answer.Allowed || !strings.Contains(answer.Result.Message, "exceeded quota: compute, requested: cpu=1: spec.template") {
		t.Errorf("%+v", answer.Result)
	}
}
