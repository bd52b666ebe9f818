package report

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/wire"
)

// slow is how long after a pod has a node its containers start if an image may have been pulled.
// Only then is the API server asked: most pods start sooner, and a pull that ends sooner matters
// little.
const slow = time.Second

// Births answers GET /births/<namespace>/<revision>/<pod> with a wire.Birth: when the pod was asked
// for and scheduled, and whether an image was pulled for it.
type Births struct {
	Of func(revision loop.Key, pod string) wire.Birth
	// Pulled says whether a node pulled an image for a pod, false if that cannot be known.
	Pulled func(ctx context.Context, namespace, pod string) bool
	// Owner returns the IP of the replica that decides for a revision, and whether that is this
	// one. Every replica sees the pods, but only the owner has written the scale.
	Owner func(loop.Key) (ip string, self bool)
	// Peers authenticates the other components.
	Peers *Peers
}

// ServeHTTP implements http.Handler.
func (b Births) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !b.Peers.allowed(w, r) {
		return
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, wire.PathBirths), "/")
	if r.Method != http.MethodGet || len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		http.Error(w, "use GET "+wire.PathBirths+"<namespace>/<revision>/<pod>", http.StatusBadRequest)
		return
	}
	key := loop.Key{Namespace: parts[0], Name: parts[1]}
	if ip, self := b.Owner(key); ip != "" && !self && r.URL.Query().Get("forwarded") == "" {
		b.Peers.askOwner(w, r, ip)
		return
	}
	birth := b.Of(key, parts[2])
	if birth == (wire.Birth{}) {
		http.Error(w, "the start of pod "+parts[2]+" of "+key.String()+" is not known", http.StatusNotFound)
		return
	}
	if birth.Started.Sub(birth.Scheduled) >= slow && !birth.Scheduled.IsZero() {
		birth.Pulled = b.Pulled(r.Context(), key.Namespace, parts[2])
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(birth)
}
