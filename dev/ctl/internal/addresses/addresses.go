// Package addresses gives each Service of type LoadBalancer an address of the
// bridge, as a cloud's load balancer controller would. kube-proxy then serves
// that address on this machine, and a Gateway counts as programmed.
//
// Owns: status.loadBalancer of Services. Reads: Services. Writes: that status.
// Never: gives one address to two Services.
package addresses

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/netip"
	"slices"
	"time"
)

// Service is the part of a Service that matters here.
type Service struct {
	Metadata struct{ Name, Namespace string } `json:"metadata"`
	Spec     struct {
		Type string `json:"type"`
		// Class, when set, names another controller as the responsible one.
		Class *string `json:"loadBalancerClass"`
	} `json:"spec"`
	Status struct {
		LoadBalancer struct {
			Ingress []struct{ IP string } `json:"ingress"`
		} `json:"loadBalancer"`
	} `json:"status"`
}

// Grant is a decision: this Service gets this address.
type Grant struct {
	Namespace, Name string
	Address         netip.Addr
}

// Decide assigns free addresses of the pool to the Services that have none, in the order of their
// names, so that the same cluster gets the same addresses. starved counts the Services that get
// none.
func Decide(pool []netip.Addr, services []Service) (grants []Grant, starved int) {
	taken := map[netip.Addr]bool{}
	var waiting []Service
	for _, s := range services {
		for _, i := range s.Status.LoadBalancer.Ingress {
			if a, err := netip.ParseAddr(i.IP); err == nil {
				taken[a] = true
			}
		}
		if s.Spec.Type == "LoadBalancer" && s.Spec.Class == nil && len(s.Status.LoadBalancer.Ingress) == 0 {
			waiting = append(waiting, s)
		}
	}
	slices.SortFunc(waiting, func(a, b Service) int {
		return bytes.Compare([]byte(a.Metadata.Namespace+"/"+a.Metadata.Name), []byte(b.Metadata.Namespace+"/"+b.Metadata.Name))
	})
	for _, s := range waiting {
		free := slices.IndexFunc(pool, func(a netip.Addr) bool { return !taken[a] })
		if free < 0 {
			starved++
			continue
		}
		taken[pool[free]] = true
		grants = append(grants, Grant{s.Metadata.Namespace, s.Metadata.Name, pool[free]})
	}
	return grants, starved
}

// Controller carries out what Decide says until its context ends.
type Controller struct {
	Client *http.Client
	Server string
	Pool   []netip.Addr
}

// Run lists and watches in a loop.
func (c Controller) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := c.round(ctx); err != nil && ctx.Err() == nil {
			log.Printf("addresses: %v", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(300 * time.Millisecond): // bounds the rate of retries
		}
	}
	return nil
}

// round assigns addresses to the Services that exist and returns at the next change.
func (c Controller) round(ctx context.Context) error {
	var list struct {
		Metadata struct{ ResourceVersion string } `json:"metadata"`
		Items    []Service                        `json:"items"`
	}
	if err := c.get(ctx, "/api/v1/services", func(body io.Reader) error { return json.NewDecoder(body).Decode(&list) }); err != nil {
		return err
	}
	grants, starved := Decide(c.Pool, list.Items)
	for _, g := range grants {
		if err := c.grant(ctx, g); err != nil {
			return err
		}
		log.Printf("addresses: %s/%s got %s", g.Namespace, g.Name, g.Address)
	}
	if starved > 0 {
		log.Printf("addresses: %d Services wait for an address and all %d are given away", starved, len(c.Pool))
	}
	if len(grants) > 0 {
		return nil
	}
	// The first event of any kind is reason enough to look again. The server
	// ends a watch that sees none after the timeout.
	path := "/api/v1/services?watch=1&timeoutSeconds=300&resourceVersion=" + list.Metadata.ResourceVersion
	return c.get(ctx, path, func(body io.Reader) error {
		_, err := body.Read(make([]byte, 1))
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	})
}

func (c Controller) grant(ctx context.Context, g Grant) error {
	patch := fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q}]}}}`, g.Address)
	url := fmt.Sprintf("%s/api/v1/namespaces/%s/services/%s/status", c.Server, g.Namespace, g.Name)
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch, url, bytes.NewBufferString(patch))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/merge-patch+json")
	return c.do(req, func(io.Reader) error { return nil })
}

func (c Controller) get(ctx context.Context, path string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Server+path, nil)
	if err != nil {
		return err
	}
	return c.do(req, read)
}

func (c Controller) do(req *http.Request, read func(io.Reader) error) error {
	res, err := c.Client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 300))
		return fmt.Errorf("%s %s: %s: %s", req.Method, req.URL.Path, res.Status, text)
	}
	return read(res.Body)
}
