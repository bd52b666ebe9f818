package report

import (
	"encoding/json"
	"net/http"
	"strings"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/wire"
)

// Births answers GET /births/<namespace>/<revision>/<pod> with a wire.Birth: when the pod was asked
// for and scheduled.
type Births struct {
	Of func(revision loop.Key, pod string) wire.Birth
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
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(birth)
}
