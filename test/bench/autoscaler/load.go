package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/wire"
)

// settle is how long the load runs before it is measured: one stable window, after which the
// averages no longer change.
const settle = 20 * time.Second

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// ready waits until the autoscaler has read all objects and holds its lease.
func (b *bench) ready(ctx context.Context) error {
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
		last := revision(b.revisions - 1)
		response, err := http.Get(fmt.Sprintf("http://%s:%d%s?namespace=bench&service=%s", autoscalerIP, wire.PortStats, wire.PathViews, last))
		if err != nil {
			continue
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err == nil && response.StatusCode == http.StatusOK && bytes.Contains(text, []byte(last)) {
			return nil
		}
	}
	return fmt.Errorf("the autoscaler does not decide for %s after two minutes", revision(b.revisions-1))
}

func revision(i int) string { return fmt.Sprintf("hello-%05d", i) }

func podName(revision, pod int) string {
	return fmt.Sprintf("hello-%05d-deployment-%04x", revision, pod)
}

// address returns the pod's loopback address, counted from 127.1.0.0.
func address(n int) string { return fmt.Sprintf("127.%d.%d.%d", 1+n>>16, n>>8&255, n&255) }

func number(ip [4]byte) int {
	if ip[0] != 127 || ip[1] < 1 {
		return -1
	}
	return int(ip[1]-1)<<16 | int(ip[2])<<8 | int(ip[3])
}

// batch is the number of stats in one POST, senders the maximum number of POSTs in flight.
const (
	batch   = 1000
	senders = 8
)

// posted counts the outcomes of the stats that were due for a POST.
type posted struct{ offered, taken, late atomic.Int64 }

// post POSTs the stats of the pods that are not scraped, each once a second, on a fixed schedule. A
// slow autoscaler does not reduce the load.
func (b *bench) post(ctx context.Context, p *posted) {
	var batches [][]wire.StatMessage
	for i := b.scraped; i < b.revisions; i++ {
		for pod := range b.pods {
			if n := len(batches); n == 0 || len(batches[n-1]) == batch {
				batches = append(batches, make([]wire.StatMessage, 0, batch))
			}
			last := &batches[len(batches)-1]
			*last = append(*last, wire.StatMessage{Namespace: "bench", Revision: revision(i),
				Stat: wire.Stat{PodName: podName(i, pod), AverageConcurrent: perPod, Requests: perPod}})
		}
	}
	if len(batches) == 0 {
		return
	}
	url := fmt.Sprintf("http://%s:%d%s", autoscalerIP, wire.PortStats, wire.PathStats)
	var signer wire.Signer
	token := wire.Token(tokenKey, "", wire.ActivatorSubject)
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: senders}}
	period := time.Second / time.Duration(len(batches))
	began := time.Now()
	var next atomic.Int64
	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			for ctx.Err() == nil {
				n := next.Add(1) - 1
				due := began.Add(time.Duration(n) * period)
				if pause(ctx, time.Until(due)) != nil {
					return
				}
				part := make([]wire.StatMessage, len(batches[n%int64(len(batches))]))
				copy(part, batches[n%int64(len(batches))])
				for k := range part {
					part[k].Stat.Timestamp = due.UnixMilli()
				}
				p.offered.Add(int64(len(part)))
				if time.Since(due) > 100*time.Millisecond {
					p.late.Add(int64(len(part)))
				}
				request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(wire.EncodeStats(part)))
				if err != nil {
					return
				}
				response, err := signer.Do(client, request, token)
				if err != nil {
					continue
				}
				io.Copy(io.Discard, response.Body)
				response.Body.Close()
				if response.StatusCode == http.StatusNoContent {
					p.taken.Add(int64(len(part)))
				}
			}
		})
	}
	all.Wait()
}
