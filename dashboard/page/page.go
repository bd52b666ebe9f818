// Package page is the dashboard: the files of a web page, and the way from the page to the
// Kubernetes API server. Command dashboard serves it in a cluster, `kubectl ebb dashboard` on the
// caller's own machine.
//
// Owns: the page's files, and the bounds of what open pages may take. Reads: what is asked for, if
// it is on the list in allow.go, with the rights of whoever asks. Writes: nothing. Never: keeps or
// logs a token, asks for anything on its own, or changes an object.
package page

import (
	"context"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/internal/telemetry"
)

//go:embed assets
var embedded embed.FS

// Assets are the files of the page.
func Assets() fs.FS {
	files, err := fs.Sub(embedded, "assets")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return files
}

// Options say which cluster a page shows, and to whom.
type Options struct {
	// API is the address of the API server, Transport the way there.
	API       *url.URL
	Transport http.RoundTripper
	// Key is "" if callers show a token of the cluster, which goes on to the API server. Otherwise
	// they show Key, and Transport has credentials of its own.
	Key string
	// Host is the only host that requests may name, if it is not "". A page of somebody else that
	// gave its own name this address is refused by it.
	Host     string
	Log      *slog.Logger
	Registry prometheus.Registerer
}

// New returns the page.
func New(o Options) (http.Handler, error) {
	files, err := prepare(Assets(), o.Key != "")
	if err != nil {
		return nil, err
	}
	api := newProxy(o)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protect(w.Header(), files.policy)
		switch {
		case o.Host != "" && r.Host != o.Host:
			refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "this page is at "+o.Host+" only")
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the page only reads")
		case r.URL.Path == "/health":
		case !forAPI(r.URL.Path):
			files.ServeHTTP(w, r)
		case r.Header.Get("Sec-Fetch-Site") == "cross-site" || r.Header.Get("Sec-Fetch-Site") == "same-site":
			refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "only the page itself may ask here")
		case !mayRead(r.URL):
			refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the page does not read this path")
		default:
			token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !ok || token == "" || o.Key != "" && subtle.ConstantTimeCompare([]byte(token), []byte(o.Key)) != 1 {
				refuse(w, http.StatusUnauthorized, "SignIn", "sign in first")
				return
			}
			api.serve(w, r, token)
		}
	}), nil
}

// The most connections of a page's server, all told and from one address: many people may come from
// the address of a gateway.
const (
	maxConnections      = 2048
	maxConnectionsOfOne = 1024
)

// Serve serves a page until ctx is done.
func Serve(ctx context.Context, listener net.Listener, page http.Handler) error {
	return telemetry.Serve(ctx, telemetry.Bound(listener, maxConnections, maxConnectionsOfOne), page)
}

// protect sets the headers that keep other sites, and scripts that are not the page's, away.
func protect(h http.Header, policy string) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
}

// refuse answers as an API server does, so that the page reads one kind of error.
func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message})
}
