package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"

	"ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/wire"
)

// headerProof proves that an answer is a replica's.
const headerProof = "Ebb-Proof"

const (
	askTimeout = 2 * time.Second
	// maxAnswer bounds what one replica says: of 10 000 revisions it is some 25 MiB.
	maxAnswer = 64 << 20
	// maxAsking bounds the questions of other replicas that are answered at once.
	maxAsking = 8
)

// Replicas ask each other.
type Replicas struct {
	Local Local
	// Keys are those of all tokens as they are now.
	Keys func() wire.Keys
	// Others are the IPs of the other replicas that decide for revisions.
	Others func() []string
	// Port is that of the other replicas; 0 stands for wire.PortStats.
	Port int

	guard  wire.Guard
	signer wire.Signer
	slots  chan struct{}
	client http.Client
}

// NewReplicas returns Replicas that know no others if there is no function for it.
func NewReplicas(local Local, keys func() wire.Keys, others func() []string) *Replicas {
	return &Replicas{Local: local, Keys: keys, Others: others, Port: wire.PortStats, slots: make(chan struct{}, maxAsking),
		client: http.Client{Timeout: askTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute}}}
}

// ServeHTTP answers another replica's GET of wire.PathViews, and anybody's inside this pod.
func (p *Replicas) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	signature, err := wire.ReadSignature(r)
	known := err == nil && signature.By(p.Keys(), "", wire.AutoscalerSubject)
	if !known && !inside(r) {
		http.Error(w, "ask the API view.ebb.dev", http.StatusUnauthorized)
		return
	}
	if known {
		if err := p.guard.Check(signature, w.Header()); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
	}
	if r.Method != http.MethodGet {
		http.Error(w, "use GET", http.StatusMethodNotAllowed)
		return
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	default:
		http.Error(w, "too many questions at once", http.StatusServiceUnavailable)
		return
	}
	query := r.URL.Query()
	body, err := json.Marshal(p.Local.parts(scope{query.Get("namespace"), query.Get("service"), query.Get(v1alpha1.QueryJudge) == "true"}))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if known {
		w.Header().Set(headerProof, signature.Answer(body))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(body)
}

// inside reports whether the sender is in this pod.
func inside(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && peer.Addr().Unmap().IsLoopback()
}

// parts returns what all replicas know. The error is of those that did not answer.
func (p *Replicas) parts(ctx context.Context, s scope) ([]part, error) {
	all := p.Local.parts(s)
	var mutex sync.Mutex
	var asking sync.WaitGroup
	var failed error
	for _, ip := range p.Others() {
		asking.Go(func() {
			theirs, err := p.ask(ctx, ip, s)
			mutex.Lock()
			defer mutex.Unlock()
			all, failed = append(all, theirs...), errors.Join(failed, err)
		})
	}
	asking.Wait()
	return all, failed
}

var errProof = errors.New("the answer does not prove that it is a replica's")

func (p *Replicas) ask(ctx context.Context, ip string, s scope) ([]part, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	where := "http://" + net.JoinHostPort(ip, strconv.Itoa(p.Port)) + wire.PathViews + "?" + url.Values{"namespace": {s.namespace}, "service": {s.service}, v1alpha1.QueryJudge: {strconv.FormatBool(s.judge)}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the autoscaler at %s: %w", ip, err)
	}
	token := p.Keys().Token("", wire.AutoscalerSubject)
	response, err := p.signer.Do(&p.client, request, token)
	if err != nil {
		return nil, fmt.Errorf("ask the autoscaler at %s: %w", ip, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask the autoscaler at %s: %w", ip, err)
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("ask the autoscaler at %s: it answered %s: %.200s", ip, response.Status, body)
	case !wire.Answers(response, token, response.Header.Get(headerProof), body):
		return nil, fmt.Errorf("ask the autoscaler at %s: %w", ip, errProof)
	}
	var theirs []part
	if err := json.Unmarshal(body, &theirs); err != nil {
		return nil, fmt.Errorf("read what the autoscaler at %s knows: %w", ip, err)
	}
	return theirs, nil
}
