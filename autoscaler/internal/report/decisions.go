package report

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/wire"
)

// Decisions answers GET /decisions/<namespace>/<revision> with the last decisions of the revision.
type Decisions struct {
	History func(loop.Key) ([]loop.Entry, bool)
	// Owner returns the IP of the replica that decides for a revision, and whether that is this
	// one.
	Owner func(loop.Key) (ip string, self bool)
	// Peers authenticates the other components.
	Peers *Peers
}

// Peers are activators and other replicas of the autoscaler.
type Peers struct {
	// Keys are those of all tokens as they are now.
	Keys   func() wire.Keys
	guard  wire.Guard
	signer wire.Signer
}

// allowed reports whether the sender may read data of all tenants: it is inside this pod, like
// kubectl port-forward, or a component of Ebb, with the activators' token. Otherwise it answers the
// request.
func (p *Peers) allowed(w http.ResponseWriter, r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err == nil && peer.Addr().Unmap().IsLoopback() {
		return true
	}
	signature, err := wire.ReadSignature(r)
	if err != nil || !signature.By(p.Keys(), "", wire.ActivatorSubject) {
		http.Error(w, "use kubectl port-forward", http.StatusUnauthorized)
		return false
	}
	if err := p.guard.Check(signature, w.Header()); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return false
	}
	return true
}

// decision is one run of equal decisions as JSON. The values are those of the last one.
type decision struct {
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Times   int       `json:"times"`
	Want    int32     `json:"want"`
	Desired int32     `json:"desired"`
	Written bool      `json:"written"`
	Rule    string    `json:"rule"`
	Reason  string    `json:"reason"`
	Inputs  inputs    `json:"inputs"`
	Formula formula   `json:"formula"`
	// Standby is missing if it is off.
	Standby *asleepPods `json:"standby,omitempty"`
}

// asleepPods says how the scale is divided.
type asleepPods struct {
	Awake  int32  `json:"awake"`
	Asleep int32  `json:"asleep"`
	Reason string `json:"reason"`
}

type inputs struct {
	Ready     int32   `json:"ready"`
	Metric    string  `json:"metric"`
	Stable    float64 `json:"stable"`
	Panic     float64 `json:"panic"`
	Burst     float64 `json:"burst"`
	Pushed    bool    `json:"pushed"` // part of burst is of a moment, not a second's average
	Queued    float64 `json:"queued"`
	Known     bool    `json:"known"`
	Missing   bool    `json:"missing"`
	Target    float64 `json:"target"`
	Total     float64 `json:"total"`
	Panicking bool    `json:"panicking"`
}

type formula struct {
	Stable int32   `json:"stable"`
	Panic  int32   `json:"panic"`
	Burst  int32   `json:"burst"`
	Low    int32   `json:"low"`
	High   int32   `json:"high"`
	Excess float64 `json:"excessBurst"`
}

// ServeHTTP implements http.Handler.
func (d Decisions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !d.Peers.allowed(w, r) {
		return
	}
	namespace, name, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, wire.PathDecisions), "/")
	if r.Method != http.MethodGet || !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		http.Error(w, "use GET "+wire.PathDecisions+"<namespace>/<revision>", http.StatusBadRequest)
		return
	}
	key := loop.Key{Namespace: namespace, Name: name}
	history, known := d.History(key)
	if !known {
		if ip, self := d.Owner(key); ip != "" && !self && r.URL.Query().Get("forwarded") == "" {
			d.Peers.askOwner(w, r, ip)
			return
		}
		http.Error(w, "no autoscaler of this class decides for "+key.String(), http.StatusNotFound)
		return
	}
	out := make([]decision, 0, len(history))
	for _, e := range history {
		o, x := e.Decision.Observation, e.Decision
		var standby *asleepPods
		if e.Keep != nil {
			standby = &asleepPods{Awake: e.Awake, Asleep: e.Keep.Keep, Reason: e.Keep.Reason}
		}
		out = append(out, decision{Standby: standby, First: e.First, Last: x.Time, Times: e.Times, Want: e.Step.Want, Desired: x.Desired, Written: e.Step.Apply,
			Rule: e.Rule(), Reason: e.Reason(),
			Inputs: inputs{Ready: o.Ready, Metric: x.Metric.String(), Stable: o.Stable, Panic: o.Panic, Burst: o.Burst, Pushed: o.Pushed, Queued: o.Queued, Known: o.Known,
				Missing: o.Missing, Target: x.Target, Total: x.Total, Panicking: x.Panicking},
			Formula: formula{Stable: x.StableRaw, Panic: x.PanicRaw, Burst: x.BurstRaw, Low: x.Low, High: x.High, Excess: x.ExcessBurst}})
	}
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.Encode(map[string]any{"revision": key.String(), "decisions": out})
}

// askOwner forwards the question to the replica that decides.
func (p *Peers) askOwner(w http.ResponseWriter, r *http.Request, ip string) {
	url := "http://" + net.JoinHostPort(ip, strconv.Itoa(wire.PortStats)) + r.URL.Path + "?forwarded=1"
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, url, nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	client := &http.Client{Timeout: 2 * time.Second}
	response, err := p.signer.Do(client, request, p.Keys().Token("", wire.ActivatorSubject))
	if err != nil {
		http.Error(w, "ask the replica that decides: "+err.Error(), http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	w.Header().Set("Content-Type", response.Header.Get("Content-Type"))
	w.WriteHeader(response.StatusCode)
	io.Copy(w, io.LimitReader(response.Body, 4<<20))
}
