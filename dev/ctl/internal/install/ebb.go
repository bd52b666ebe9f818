package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// source is how config/ names an image: by the package it is built from, which
// is what ko understands.
const source = "ko://ebb.dev/ebb/"

// Domain is where the cluster's services are: <service>.<namespace>.Domain. The
// name is reserved for tests, so it can never be somebody's.
const Domain = "ebb.test"

// Overlay is a kustomization that puts the built images into config/.
func Overlay(config string, refs map[string]string) ([]byte, error) {
	type imageName struct {
		Name    string `json:"name"`
		NewName string `json:"newName"`
		NewTag  string `json:"newTag"`
	}
	overlay := map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1",
		"kind":       "Kustomization",
		"resources":  []string{config},
	}
	var images []imageName
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		component, ok := strings.CutPrefix(name, "dev.local/ebb/")
		_, tag, tagged := strings.Cut(refs[name], ":")
		if ok && tagged {
			images = append(images, imageName{source + component, name, tag})
		}
	}
	overlay["images"] = images
	// Without a domain, services would be reachable inside the cluster only.
	settings := map[string]map[string]any{"config-domain": {Domain: ""}}
	if ref := refs["dev.local/ebb/queue-proxy"]; ref != "" {
		// Not a field that kustomize knows as an image.
		settings["config-deployment"] = map[string]any{"queue-sidecar-image": ref}
	}
	var patches []map[string]any
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		patch, err := yaml.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": name, "namespace": "knative-serving"},
			"data":     settings[name],
		})
		if err != nil {
			return nil, err
		}
		patches = append(patches, map[string]any{"patch": string(patch)})
	}
	overlay["patches"] = patches
	return yaml.Marshal(overlay)
}

// ApplyInOrder applies namespaces and kinds before what needs them.
func ApplyInOrder(ctx context.Context, k Kubectl, manifests []byte) (changed int, err error) {
	first, rest, err := split(manifests)
	if err != nil {
		return 0, err
	}
	for _, part := range [][]byte{first, rest} {
		if len(part) == 0 {
			continue
		}
		n, err := k.Apply(ctx, part)
		changed += n
		if err != nil {
			return changed, err
		}
		if bytes.Contains(part, []byte("kind: CustomResourceDefinition")) {
			if _, err := k.Run(ctx, nil, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"); err != nil {
				return changed, err
			}
		}
	}
	return changed, nil
}

func split(manifests []byte) (first, rest []byte, err error) {
	for _, doc := range bytes.Split(manifests, []byte("\n---\n")) {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			return nil, nil, fmt.Errorf("read the manifests: %w", err)
		}
		into := &rest
		if kind.Kind == "Namespace" || kind.Kind == "CustomResourceDefinition" {
			into = &first
		}
		*into = append(append(*into, doc...), "\n---\n"...)
	}
	return first, rest, nil
}

// Gateways waits until every Gateway is programmed, and says where each is.
func Gateways(ctx context.Context, k Kubectl, limit time.Duration) ([]string, error) {
	if _, err := k.Run(ctx, nil, "-n", "knative-serving", "wait", "--for=condition=Programmed", "gateway", "--all", "--timeout="+limit.String()); err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct{ Addresses []struct{ Value string } }
		}
	}
	if err := k.Get(ctx, &list, "-n", "knative-serving", "gateway"); err != nil {
		return nil, err
	}
	var said []string
	for _, g := range list.Items {
		// Programmed says that istiod has seen it, not that its Envoy serves.
		if _, err := k.Run(ctx, nil, "-n", "knative-serving", "get", "deployment", g.Metadata.Name+"-istio"); err == nil {
			if err := k.Rollout(ctx, "knative-serving", g.Metadata.Name+"-istio", limit); err != nil {
				return nil, err
			}
		}
		for _, a := range g.Status.Addresses {
			said = append(said, g.Metadata.Name+" at "+a.Value)
		}
	}
	return said, nil
}

// Reply is what a sample answered to its first request.
type Reply struct {
	Name string
	Took time.Duration
	Body string
	Curl string
}

// Samples applies samples and sends each a request as soon as it is Ready.
func Samples(ctx context.Context, k Kubectl, dir string, names []string, refs map[string]string) ([]Reply, error) {
	var present []string
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name, "service.yaml"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		// The name that always means the newest build would not be rolled out.
		for name, ref := range refs {
			text = bytes.ReplaceAll(text, []byte(name+":dev"), []byte(ref))
		}
		if _, err := k.Apply(ctx, text); err != nil {
			return nil, err
		}
		present = append(present, name)
	}
	gateway, err := address(ctx, k)
	if err != nil {
		return nil, err
	}
	var replies []Reply
	for _, name := range present {
		reply, err := first(ctx, k, name, gateway)
		if err != nil {
			return replies, err
		}
		replies = append(replies, reply)
	}
	return replies, nil
}

func address(ctx context.Context, k Kubectl) (string, error) {
	out, err := k.Run(ctx, nil, "-n", "knative-serving", "get", "gateway", "ebb-external", "-o", "jsonpath={.status.addresses[0].value}")
	if err == nil && len(out) == 0 {
		err = errors.New("the gateway ebb-external has no address")
	}
	return string(out), err
}

func first(ctx context.Context, k Kubectl, name, gateway string) (Reply, error) {
	if _, err := k.Run(ctx, nil, "wait", "--for=condition=Ready", "ksvc/"+name, "--timeout=120s"); err != nil {
		said, _ := k.Run(ctx, nil, "get", "ksvc", name, "-o", "jsonpath={.status.conditions}")
		return Reply{}, fmt.Errorf("the sample %s is not Ready: %w; its conditions: %s", name, err, said)
	}
	out, err := k.Run(ctx, nil, "get", "ksvc", name, "-o", "json")
	if err != nil {
		return Reply{}, err
	}
	var service struct{ Status struct{ URL string } }
	if err := json.Unmarshal(out, &service); err != nil {
		return Reply{}, err
	}
	where, err := url.Parse(service.Status.URL)
	if err != nil {
		return Reply{}, fmt.Errorf("the sample %s has no usable URL: %w", name, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+gateway+"/", nil)
	if err != nil {
		return Reply{}, err
	}
	req.Host = where.Host
	client := &http.Client{Timeout: time.Minute}
	begin := time.Now()
	res, err := client.Do(req)
	if err != nil {
		return Reply{}, fmt.Errorf("the sample %s: %w", name, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1000))
	if err != nil {
		return Reply{}, fmt.Errorf("the sample %s: %w", name, err)
	}
	if res.StatusCode != http.StatusOK {
		return Reply{}, fmt.Errorf("the sample %s answered %s: %s", name, res.Status, body)
	}
	return Reply{name, time.Since(begin), string(body), fmt.Sprintf("curl -H 'Host: %s' http://%s/", where.Host, gateway)}, nil
}
