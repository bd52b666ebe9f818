package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/test/internal/loopback"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/wire"
)

// statsClients is how many clients flood the autoscaler with stats, one kind after the other. Most
// wait for an answer before they send the next.
const statsClients = 1000

// statsFlood is the role of the hostile tenant's clients at the autoscaler.
func (b *bench) statsFlood(ctx context.Context) error {
	url := "http://" + net.JoinHostPort(b.ip, strconv.Itoa(wire.PortStats)) + wire.PathStats
	own := wire.Token(loopback.TokenKey, floodNamespace, floodRevision)
	huge, tiny := make([]byte, 4<<20), bytes.Repeat([]byte{0x0a, 0}, 512<<10) // the latter would be half a million stats
	var sent, answered, taken atomic.Int64
	kinds := []func(ctx context.Context, client *http.Client, i int) (int, error){
		// Without a token.
		func(ctx context.Context, client *http.Client, i int) (int, error) {
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(huge))
			if err != nil {
				return 0, err
			}
			request.Header.Set("Authorization", "Bearer anything")
			return do(client, request)
		},
		// Signed with a token of the tenant's own making.
		func(ctx context.Context, client *http.Client, i int) (int, error) {
			return post(ctx, client, new(wire.Signer), url, "guessed", tiny)
		},
		// Signed with the tenant's own token: as many stats as a pod may send, of pods never seen.
		func(ctx context.Context, client *http.Client, i int) (int, error) {
			stats := make([]wire.StatMessage, wire.MaxPodStats)
			for k := range stats {
				stats[k] = wire.StatMessage{Namespace: floodNamespace, Revision: floodRevision, Stat: wire.Stat{
					PodName: fmt.Sprintf("%s-%d-%d", floodRevision, sent.Load(), k), Timestamp: time.Now().UnixMilli(), AverageConcurrent: 1000, Requests: 1000, OutOfTurn: true}}
			}
			return post(ctx, client, new(wire.Signer), url, own, wire.EncodeStats(stats))
		},
		// Signed with the tenant's own token, and far more than a pod may send.
		func(ctx context.Context, client *http.Client, i int) (int, error) {
			return post(ctx, client, new(wire.Signer), url, own, tiny)
		},
		// A body that does not end.
		func(ctx context.Context, client *http.Client, i int) (int, error) {
			slow, end := io.Pipe()
			defer end.Close()
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, slow)
			if err != nil {
				return 0, err
			}
			if err := new(wire.Signer).Sign(request, own); err != nil {
				return 0, err
			}
			request.Body, request.GetBody, request.ContentLength = slow, nil, wire.MaxPodStatsBytes
			return do(client, request)
		},
	}
	for i := range statsClients {
		dialer := &net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i%200)+1)}}
		client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DialContext: dialer.DialContext}}
		go func() {
			for ctx.Err() == nil {
				sent.Add(1)
				status, err := kinds[i%len(kinds)](ctx, client, i)
				switch {
				case err != nil:
					sleep(ctx, 100*time.Millisecond)
				case status == http.StatusNoContent:
					taken.Add(1)
				}
				if err == nil {
					answered.Add(1)
				}
			}
		}()
	}
	<-ctx.Done()
	return json.NewEncoder(os.Stdout).Encode(result.Fields{"flood_sent": sent.Load(), "flood_answered": answered.Load(), "flood_taken": taken.Load()})
}

func do(client *http.Client, request *http.Request) (status int, err error) {
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}
