package admit

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
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
		send := func(length int64, body io.Reader) *httptest.ResponseRecorder {
			request := httptest.NewRequest("POST", PathValidation, body).WithContext(t.Context())
			request.ContentLength = length
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, request)
			return answer
		}
		if got := send(maxBody+1, blocked{&readers, release}); got.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("a body that is too large: %d", got.Code)
		}
		for range 50 {
			go send(maxBody, blocked{&readers, release})
			go send(-1, blocked{&readers, release})
		}
		synctest.Wait()
		if n := readers.Load(); n != largeBodies {
			t.Errorf("%d large bodies are read at once, at most %d may be", n, largeBodies)
		}
		if got := send(2, io.LimitReader(http.NoBody, 2)); got.Code != http.StatusBadRequest {
			t.Errorf("a small request beside them: %d", got.Code)
		}
		close(release)
		synctest.Wait()
	})
	if most := largeBodies*maxBody + smallBodies*smallBody; most > 32<<20 {
		t.Errorf("bodies may take %d MiB of the webhook's 200", most>>20)
	}
}
