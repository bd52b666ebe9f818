package install

import (
	"bytes"
	"context"
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
	"sync"
	"time"

	"sigs.k8s.io/yaml"
)

// source is the prefix of images in config/, which names the package that an image is built from,
// as ko does.
const source = "ko://ebb.dev/ebb/"

// Domain is the cluster's domain: a service's host is <service>.<namespace>.Domain. The name is
// reserved for tests, so nobody can own it.
const Domain = "ebb.test"

// Overlay is a kustomization that puts the built images into config/, which the components change.
// With monitoring, the pods of revisions serve metrics. With grouped, each node's kubelet has a
// --cgroup-root of the node's name, because several nodes share the machine.
func Overlay(refs map[string]string, monitoring, grouped bool, components []string, config ...string) ([]byte, error) {
	type imageName struct {
		Name    string `json:"name"`
		NewName string `json:"newName"`
		NewTag  string `json:"newTag"`
	}
	overlay := map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1",
		"kind":       "Kustomization",
		"resources":  config,
		"components": components,
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
	// kustomize does not know these fields as images.
	for name, key := range map[string]string{"queue-proxy": "queue-sidecar-image", "shim": "shim-image"} {
		if ref := refs["dev.local/ebb/"+name]; ref != "" {
			if settings["config-deployment"] == nil {
				settings["config-deployment"] = map[string]any{}
			}
			settings["config-deployment"][key] = ref
		}
	}
	if monitoring {
		settings["config-observability"] = map[string]any{"request-metrics-protocol": "prometheus"}
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
	if grouped {
		patch, err := yaml.Marshal(cgroupRoots())
		if err != nil {
			return nil, err
		}
		patches = append(patches, map[string]any{"target": map[string]any{"kind": "DaemonSet", "name": "node-agent"}, "patch": string(patch)})
	}
	overlay["patches"] = patches
	return yaml.Marshal(overlay)
}

// cgroupRoots tell the node agent's two containers where the pods of their node are. The operations
// append: a variable has to come after the one that it names.
func cgroupRoots() []map[string]any {
	add := func(container int, variable map[string]any) map[string]any {
		return map[string]any{"op": "add", "path": fmt.Sprintf("/spec/template/spec/containers/%d/env/-", container), "value": variable}
	}
	const node = "EBB_NODE_NAME"
	root := map[string]any{"name": "EBB_CGROUP_ROOT", "value": "/$(" + node + ")"}
	name := map[string]any{"name": node, "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": "spec.nodeName"}}}
	return []map[string]any{add(0, root), add(1, name), add(1, root)} // the agent has its node's name
}

// ApplyInOrder applies namespaces and definitions before the objects that need them.
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
		// Programmed means that istiod has seen the Gateway, not that its Envoy serves.
		if _, err := k.Run(ctx, nil, "-n", "knative-serving", "get", "deployment", g.Metadata.Name+"-istio"); err == nil {
			if err := k.Rollout(ctx, "knative-serving", "deployment/"+g.Metadata.Name+"-istio", limit); err != nil {
				return nil, err
			}
		}
		for _, a := range g.Status.Addresses {
			said = append(said, g.Metadata.Name+" at "+a.Value)
		}
	}
	return said, nil
}

// Settled asks once whether each of the components, named as deployment/activator, and of the
// Deployments behind the Gateways, serves its newest template and every Gateway is programmed.
// Usually that is so, and asking one by one takes seconds.
func Settled(ctx context.Context, k Kubectl, components []string) (gateways []string, settled bool) {
	var all objects
	if err := k.Get(ctx, &all, "-n", "knative-serving", "deployment,daemonset,statefulset,gateway"); err != nil {
		return nil, false // waiting for each one will say what is wrong
	}
	return all.settled(components)
}

type objects struct {
	Items []struct {
		Kind     string
		Metadata struct {
			Name       string
			Generation int64
		}
		Spec   struct{ Replicas int32 }
		Status struct {
			ObservedGeneration                           int64
			Replicas, UpdatedReplicas, AvailableReplicas int32

			DesiredNumberScheduled, UpdatedNumberScheduled, NumberAvailable int32

			Addresses  []struct{ Value string }
			Conditions []struct {
				Type, Status       string
				ObservedGeneration int64
			}
		}
	}
}

func (all objects) settled(components []string) (gateways []string, settled bool) {
	serves := map[string]bool{}
	for _, o := range all.Items {
		s := o.Status
		seen := s.ObservedGeneration >= o.Metadata.Generation
		switch o.Kind {
		case "StatefulSet":
			serves["statefulset/"+o.Metadata.Name] = seen && s.UpdatedReplicas >= o.Spec.Replicas && s.AvailableReplicas >= o.Spec.Replicas
		case "Deployment":
			serves["deployment/"+o.Metadata.Name] = seen && s.Replicas == s.UpdatedReplicas &&
				s.UpdatedReplicas >= o.Spec.Replicas && s.AvailableReplicas >= o.Spec.Replicas
		case "DaemonSet":
			serves["daemonset/"+o.Metadata.Name] = seen && s.UpdatedNumberScheduled == s.DesiredNumberScheduled &&
				s.NumberAvailable == s.DesiredNumberScheduled
		}
	}
	for _, name := range components {
		if !serves[name] {
			return nil, false
		}
	}
	for _, o := range all.Items {
		if o.Kind != "Gateway" {
			continue
		}
		if behind, is := serves["deployment/"+o.Metadata.Name+"-istio"]; is && !behind {
			return nil, false
		}
		programmed := false
		for _, c := range o.Status.Conditions {
			programmed = programmed || c.Type == "Programmed" && c.Status == "True" && c.ObservedGeneration >= o.Metadata.Generation
		}
		if !programmed {
			return nil, false
		}
		for _, a := range o.Status.Addresses {
			gateways = append(gateways, o.Metadata.Name+" at "+a.Value)
		}
	}
	return gateways, len(gateways) > 0
}

// Reply is a sample's answer to its first request.
type Reply struct {
	Name string
	Took time.Duration
	Body string
	Curl string
}

// Samples applies samples and sends each a request as soon as it is Ready.
func Samples(ctx context.Context, k Kubectl, dir string, names []string, refs map[string]string) ([]Reply, error) {
	var present []string
	var manifests [][]byte
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name, "service.yaml"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		// With the tag :dev a new build would not be rolled out.
		for name, ref := range refs {
			text = bytes.ReplaceAll(text, []byte(name+":dev"), []byte(ref))
		}
		manifests = append(manifests, text)
		present = append(present, name)
	}
	if len(present) == 0 {
		return nil, nil
	}
	if _, err := k.Apply(ctx, bytes.Join(manifests, []byte("\n---\n"))); err != nil {
		return nil, err
	}
	gateway, err := address(ctx, k)
	if err != nil {
		return nil, err
	}
	urls, err := samplesReady(ctx, k, present)
	if err != nil {
		return nil, err
	}
	replies, errs := make([]Reply, len(present)), make([]error, len(present))
	var all sync.WaitGroup
	for i, name := range present {
		all.Go(func() { replies[i], errs[i] = first(ctx, name, urls[name], gateway) })
	}
	all.Wait()
	return replies, errors.Join(errs...)
}

func address(ctx context.Context, k Kubectl) (string, error) {
	out, err := k.Run(ctx, nil, "-n", "knative-serving", "get", "gateway", "ebb-external", "-o", "jsonpath={.status.addresses[0].value}")
	if err == nil && len(out) == 0 {
		err = errors.New("the gateway ebb-external has no address")
	}
	return string(out), err
}

// samplesReady waits for all samples and returns their addresses.
func samplesReady(ctx context.Context, k Kubectl, names []string) (urls map[string]string, err error) {
	args := []string{"wait", "--for=condition=Ready", "--timeout=120s"}
	for _, name := range names {
		args = append(args, "ksvc/"+name)
	}
	if _, err := k.Run(ctx, nil, args...); err != nil {
		said, _ := k.Run(ctx, nil, append([]string{"get", "ksvc", "-o", `jsonpath={range .items[*]}{.metadata.name}: {.status.conditions}{"\n"}{end}`}, names...)...)
		return nil, fmt.Errorf("the samples are not Ready: %w; their conditions: %s", err, said)
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct{ URL string }
		}
	}
	if err := k.Get(ctx, &list, "ksvc"); err != nil {
		return nil, err
	}
	urls = map[string]string{}
	for _, service := range list.Items {
		urls[service.Metadata.Name] = service.Status.URL
	}
	return urls, nil
}

func first(ctx context.Context, name, address, gateway string) (Reply, error) {
	where, err := url.Parse(address)
	if err != nil || where.Host == "" {
		return Reply{}, fmt.Errorf("the sample %s has no usable URL: %q", name, address)
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
