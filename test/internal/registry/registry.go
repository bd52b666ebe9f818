// Package registry serves images that no node has.
//
// Owns: a registry in this process, at 127.0.0.1, where containerd asks for images without TLS.
// Reads: nothing. Writes: nothing else. Never: is reached by a node with a network of its own.
package registry

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"ebb.dev/ebb/internal/testing/process"
)

// Registry is one that runs until it is closed.
type Registry struct{ *httptest.Server }

// Start starts a registry that delays each part of an image.
func Start(delay time.Duration) Registry {
	all := registry.New()
	return Registry{httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			time.Sleep(delay)
		}
		all.ServeHTTP(w, r)
	}))}
}

// Push makes an image of a program of Ebb, such as samples/hello-go, and of so many random bytes
// that it is a new one. It returns the image by its digest.
func (r Registry) Push(ctx context.Context, program string, size int) (image string, err error) {
	dir, err := os.MkdirTemp("", "ebb-image-")
	if err != nil {
		return "", fmt.Errorf("make a folder for %s: %w", program, err)
	}
	defer os.RemoveAll(dir)
	if err := process.Build(ctx, dir, program); err != nil {
		return "", err
	}
	executable, err := os.ReadFile(filepath.Join(dir, filepath.Base(program)))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", program, err)
	}
	ballast := make([]byte, size)
	rand.Read(ballast)
	image, err = r.push(ctx, map[string][]byte{"program": executable, "ballast": ballast})
	if err != nil {
		return "", fmt.Errorf("push an image of %s: %w", program, err)
	}
	return image, nil
}

func (r Registry) push(ctx context.Context, files map[string][]byte) (string, error) {
	var packed bytes.Buffer
	archive := tar.NewWriter(&packed)
	for name, content := range files {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
			return "", err
		}
		if _, err := archive.Write(content); err != nil {
			return "", err
		}
	}
	if err := archive.Close(); err != nil {
		return "", err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed.Bytes())), nil })
	if err != nil {
		return "", err
	}
	made, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return "", err
	}
	if made, err = mutate.Config(made, v1.Config{Entrypoint: []string{"/program"}}); err != nil {
		return "", err
	}
	digest, err := made.Digest()
	if err != nil {
		return "", err
	}
	reference, err := name.NewDigest(strings.TrimPrefix(r.URL, "http://") + "/team/app@" + digest.String())
	if err != nil {
		return "", err
	}
	return reference.String(), remote.Write(reference, made, remote.WithContext(ctx))
}
