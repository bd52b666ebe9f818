// Package handover transfers what one replica knows of a bucket's revisions to the next owner of
// the bucket.
//
// Owns: the endpoint and its client. The next owner asks: it knows from the lease who the previous
// owner was, and that replica may end before it learns of the next owner. Reads: the loop's states
// of revisions given up a moment ago. Writes: the loop's states of revisions taken over. Never:
// sends or takes anything without proof that the other side has the key of all tokens. The address
// of a former replica may belong to another pod now.
package handover

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/wire"
)

const (
	// headerProof shows that an answer is a replica's, to this question alone.
	headerProof = "Ebb-Proof"
	// maxAnswer bounds the states of one bucket: a hundred thousand revisions.
	maxAnswer = 256 << 20
	// tryAgain is how soon a replica that has not noticed yet that it lost the bucket is asked
	// again, giveUp when to stop asking.
	tryAgain = 100 * time.Millisecond
	giveUp   = 3 * time.Second
	// linger is how long a stopping replica waits for its successors to ask, notice how long its
	// loop may take to release its revisions.
	linger = 3 * time.Second
	notice = 200 * time.Millisecond
)

// message is what is sent.
type message struct {
	// At is the sender's clock when it answered.
	At     time.Time
	States map[loop.Key]revision.State
}

// Engine is the loop.
type Engine interface {
	Export(func(loop.Key) bool) map[loop.Key]revision.State
	Import(map[loop.Key]revision.State, time.Duration)
	Left() int
}

// Buckets knows who owns what.
type Buckets interface {
	Bucket(loop.Key) string
	Held() []string
	// Learn tells who owns a bucket that this process gave up.
	Learn(bucket, ip string)
}

// Replica is this process's part in handing over.
type Replica struct {
	Keys    func() wire.Keys
	Engine  Engine
	Buckets Buckets
	Clock   func() time.Time
	Log     *slog.Logger
	// Client asks; nil means one that does not keep connections.
	Client *http.Client
	// Self is this process's own address. When the number of buckets changes, it may be its own
	// successor.
	Self string

	guard  wire.Guard
	signer wire.Signer
}

// ServeHTTP answers GET wire.PathHandover?bucket=<name>: 200 with the states, 409 while this
// process still owns the bucket, 401 without proof.
func (h *Replica) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket := r.URL.Query().Get("bucket")
	if r.Method != http.MethodGet || bucket == "" {
		http.Error(w, "use GET "+wire.PathHandover+"?bucket=<name>", http.StatusBadRequest)
		return
	}
	if r.Host != address(h.Self) {
		http.Error(w, "the question is for another replica", http.StatusUnauthorized)
		return
	}
	question, ok := h.guard.Admit(w, r, h.Keys(), "", wire.AutoscalerSubject)
	if !ok {
		return
	}
	if slices.Contains(h.Buckets.Held(), bucket) {
		http.Error(w, "this replica owns "+bucket, http.StatusConflict)
		return
	}
	states := h.states(bucket)
	var body bytes.Buffer
	if err := gob.NewEncoder(&body).Encode(message{At: h.Clock(), States: states}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set(headerProof, question.Answer(body.Bytes()))
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Write(body.Bytes())
	h.Log.Info("handed over", "bucket", bucket, "revisions", len(states), "to", r.RemoteAddr)
	if ip, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		h.Buckets.Learn(bucket, ip)
	}
}

func (h *Replica) states(bucket string) map[loop.Key]revision.State {
	return h.Engine.Export(func(k loop.Key) bool { return h.Buckets.Bucket(k) == bucket })
}

// TakeOver asks the replica at ip, which owned the bucket before, for its states and imports them.
// Without an answer the loop continues from the PodAutoscalers' statuses.
func (h *Replica) TakeOver(ctx context.Context, bucket, ip string) {
	if ip == h.Self {
		h.Engine.Import(h.states(bucket), 0)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, giveUp)
	defer cancel()
	for {
		m, meanwhile, err := h.ask(ctx, bucket, ip)
		if err == nil {
			behind := meanwhile.Sub(m.At)
			h.Engine.Import(m.States, behind)
			h.Log.Info("took over", "bucket", bucket, "revisions", len(m.States), "from", ip, "behind", behind)
			return
		}
		pause := time.NewTimer(tryAgain)
		select {
		case <-ctx.Done():
			pause.Stop()
			h.Log.Warn("took over without the previous owner's state", "bucket", bucket, "from", ip, "error", err)
			return
		case <-pause.C:
		}
	}
}

var errProof = errors.New("the answer does not prove that it is a replica's")

// ask also returns what this process's clock said when the other one read its own. It takes the
// middle between question and answer, so that at most half of the network's time is mistaken for a
// difference of the clocks.
func (h *Replica) ask(ctx context.Context, bucket, ip string) (m message, meanwhile time.Time, err error) {
	token := h.Keys().Token("", wire.AutoscalerSubject)
	where := "http://" + address(ip) + wire.PathHandover + "?bucket=" + url.QueryEscape(bucket)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return m, meanwhile, fmt.Errorf("ask %s for %s: %w", ip, bucket, err)
	}
	client := h.Client
	if client == nil {
		client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	}
	asked := h.Clock()
	response, err := h.signer.Do(client, request, token)
	meanwhile = asked.Add(h.Clock().Sub(asked) / 2)
	if err != nil {
		return m, meanwhile, fmt.Errorf("ask %s for %s: %w", ip, bucket, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return m, meanwhile, fmt.Errorf("ask %s for %s: it answered %s: %s", ip, bucket, response.Status, strings.TrimSpace(string(text)))
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return m, meanwhile, fmt.Errorf("ask %s for %s: %w", ip, bucket, err)
	}
	if !wire.Answers(response, token, response.Header.Get(headerProof), body) {
		return m, meanwhile, fmt.Errorf("ask %s for %s: %w", ip, bucket, errProof)
	}
	if err := gob.NewDecoder(bytes.NewReader(body)).Decode(&m); err != nil {
		return m, meanwhile, fmt.Errorf("read what %s knows of %s: %w", ip, bucket, err)
	}
	return m, meanwhile, nil
}

func address(ip string) string { return net.JoinHostPort(ip, strconv.Itoa(wire.PortStats)) }

// Linger is a part of the process that stops after the leases are released, and waits a moment for
// the successors to ask.
func (h *Replica) Linger(ctx context.Context) error {
	<-ctx.Done()
	end := time.Now().Add(linger)
	timer := time.NewTimer(notice)
	defer timer.Stop()
	for {
		<-timer.C
		if h.Engine.Left() == 0 || time.Now().After(end) {
			return nil
		}
		timer.Reset(notice / 10)
	}
}
