// Package manifests reads the YAML that this repository ships, so that tests can check it without a
// cluster. It reads config/ as `kubectl apply -k` would and samples/ as `kubectl apply -f` would.
//
// Owns, writes: nothing. Reads: files. Never: connects to a cluster. It supports only the parts of
// kustomize that config/ uses, and rejects others: resources, labels, and patches, which it does
// not apply.
package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	syaml "sigs.k8s.io/yaml"

	ebbscheme "ebb.dev/ebb/api/client/versioned/scheme"
)

// Object is one object of a file.
type Object struct {
	File string
	runtime.Object
}

// kustomization is the part of a kustomization.yaml that config/ uses.
type kustomization struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Resources  []string `json:"resources"`
	Labels     []struct {
		Pairs map[string]string `json:"pairs"`
	} `json:"labels"`
	Patches []struct {
		Target struct {
			Kind string `json:"kind"`
			Name string `json:"name"`
		} `json:"target"`
		Patch string `json:"patch"`
	} `json:"patches"`
}

const kustomizationFile = "kustomization.yaml"

// Files returns the manifests that the kustomization of a directory names, in order, including
// those of directories that it names.
func Files(folder string) ([]string, error) {
	name := filepath.Join(folder, kustomizationFile)
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var k kustomization
	if err := syaml.UnmarshalStrict(text, &k); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var files []string
	for _, resource := range k.Resources {
		path := filepath.Join(folder, resource)
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("%s names %s: %w", name, resource, err)
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		below, err := Files(path)
		if err != nil {
			return nil, err
		}
		files = append(files, below...)
	}
	return files, nil
}

// Decoder decodes objects of every kind that this repository ships, strictly: an unknown or
// duplicate field is an error.
type Decoder struct{ decoder runtime.Decoder }

// NewDecoder supports the kinds of Kubernetes, the Gateway API and Ebb, CustomResourceDefinition
// and APIService.
func NewDecoder() (*Decoder, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, gatewayv1.Install, ebbscheme.AddToScheme, addAPIService,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return &Decoder{serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()}, nil
}

// Read returns a file's objects.
func (d *Decoder) Read(file string) ([]Object, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	documents := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	defer documents.Close()
	var objects []Object
	for {
		document := make([]byte, len(text)+1)
		n, err := documents.Read(document)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		document = document[:n]
		var nothing any
		if err := syaml.Unmarshal(document, &nothing); err == nil && nothing == nil {
			continue // comments only
		}
		object, _, err := d.decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		objects = append(objects, Object{file, object})
	}
}

// ReadAll returns the objects of all files.
func (d *Decoder) ReadAll(files []string) ([]Object, error) {
	var all []Object
	for _, file := range files {
		objects, err := d.Read(file)
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	return all, nil
}
