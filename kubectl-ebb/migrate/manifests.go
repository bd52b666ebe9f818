package migrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/settings"
)

// Manifests are Ebb's.
type Manifests []Object

// largest bounds the manifests that are read.
const largest = 32 << 20

// Read reads Ebb's manifests from files, "-" for the standard input, and URLs.
func Read(ctx context.Context, places []string) (Manifests, error) {
	var all Manifests
	for _, place := range places {
		text, err := fetch(ctx, place)
		if err != nil {
			return nil, fmt.Errorf("read the manifests of Ebb: %w", err)
		}
		objects, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("read the manifests of Ebb in %s: %w", place, err)
		}
		all = append(all, objects...)
	}
	return all, all.check()
}

func fetch(ctx context.Context, place string) ([]byte, error) {
	var from io.ReadCloser = os.Stdin
	switch {
	case place == "-":
	case strings.HasPrefix(place, "https://") || strings.HasPrefix(place, "http://"):
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, place, nil)
		if err != nil {
			return nil, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		if from = response.Body; response.StatusCode != http.StatusOK {
			response.Body.Close()
			return nil, fmt.Errorf("%s: %s", place, response.Status)
		}
	default:
		file, err := os.Open(place)
		if err != nil {
			return nil, err
		}
		from = file
	}
	defer from.Close()
	text, err := io.ReadAll(io.LimitReader(from, largest+1))
	if err == nil && len(text) > largest {
		err = fmt.Errorf("%s is larger than %d MiB", place, largest>>20)
	}
	return text, err
}

func parse(text []byte) (all []Object, err error) {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(&o.Object); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		if len(o.Object) == 0 {
			continue
		}
		if o.GetKind() == "" || o.GetName() == "" {
			return nil, errors.New("an object has no kind or no name")
		}
		all = append(all, o)
	}
}

// components are the Deployments that a move waits for.
var components = []string{"activator", "autoscaler", "controller", "webhook"}

// check makes sure that these are the manifests of a whole Ebb.
func (m Manifests) check() error {
	for _, name := range components {
		d := m.deployment(name)
		if d == nil {
			return fmt.Errorf("the manifests have no Deployment %s of Ebb: name ebb-crds.yaml and ebb.yaml of a release with --manifests", name)
		}
		for _, image := range imagesOf(d) {
			if strings.HasPrefix(image, "ko://") {
				return fmt.Errorf("the manifests name the image %s, which no node can pull: use those of a release", image)
			}
			if strings.Contains(image, "knative-releases") {
				return fmt.Errorf("the manifests name the image %s, which is not Ebb's", image)
			}
		}
	}
	if !slices.ContainsFunc(m, isDefinition) {
		return errors.New("the manifests have no definitions of kinds: name ebb-crds.yaml with --manifests too")
	}
	return nil
}

func (m Manifests) deployment(name string) Object {
	for _, o := range m {
		if o.GetKind() == "Deployment" && o.GetNamespace() == names.SystemNamespace && o.GetName() == name {
			return o
		}
	}
	return nil
}

func isDefinition(o Object) bool { return o.GetKind() == "CustomResourceDefinition" }

// taken are the keys of a ConfigMap that a move sets although the ConfigMap exists.
var taken = []string{settings.ExampleKey, "queue-sidecar-image", "shim-image"}

// settingsOver returns a ConfigMap of Ebb's with the data that the cluster has: the settings are
// taken over.
func settingsOver(have, want Object) Object {
	data, _, _ := unstructured.NestedStringMap(have.Object, "data")
	ours, _, _ := unstructured.NestedStringMap(want.Object, "data")
	next := map[string]any{}
	for key, value := range data {
		next[key] = value
	}
	for _, key := range taken {
		if value, found := ours[key]; found {
			next[key] = value
		}
	}
	want = want.DeepCopy()
	want.Object["data"] = next
	return want
}

// imagesOf returns the images of a workload.
func imagesOf(o Object) (all []string) {
	for _, kind := range []string{"initContainers", "containers"} {
		list, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", kind)
		for _, entry := range list {
			if c, ok := entry.(map[string]any); ok {
				if image, ok := c["image"].(string); ok && !slices.Contains(all, image) {
					all = append(all, image)
				}
			}
		}
	}
	return all
}

// images returns all images of the manifests, that of queue-proxy among them.
func (m Manifests) images() (all []string) {
	for _, o := range m {
		all = append(all, imagesOf(o)...)
		if o.GetKind() == "ConfigMap" && o.GetName() == settings.DeploymentName {
			for _, key := range []string{"queue-sidecar-image", "shim-image"} {
				if image, found, _ := unstructured.NestedString(o.Object, "data", key); found && image != "" {
					all = append(all, image)
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
