package image

import (
	"io"
	"log"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/google/go-containerregistry/pkg/registry"
)

func published(t *testing.T, imageName, arch, content string) Image {
	t.Helper()
	i, err := Make(imageName, Settings{Entrypoint: []string{"/x"}, Published: &Published{Architecture: arch, Created: time.Unix(1, 0).UTC(), Labels: map[string]string{"v": "1"}}},
		[]Entry{{Path: "/etc/passwd", Content: []byte("base"), Mode: 0o644}}, []Entry{{Path: "/x", Content: []byte(content), Mode: 0o755}})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// The registry and the client are those of crane.
func TestALayoutIsPushedAndPulledByPlatform(t *testing.T) {
	const base = "registry.example.com/ebb/"
	dir := filepath.Join(t.TempDir(), "images")
	made, err := Layout(dir, "v0.1.0", []Image{published(t, base+"one", "arm64", "one on arm"), published(t, base+"two", "amd64", "two"), published(t, base+"one", "amd64", "one")})
	if err != nil {
		t.Fatal(err)
	}
	if len(made) != 2 || made[0].Name != base+"one" || !slices.Equal(made[0].Platforms, []string{"linux/amd64", "linux/arm64"}) || !strings.HasPrefix(made[0].Ref(), base+"one:v0.1.0@sha256:") {
		t.Fatalf("made %+v", made)
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	for _, m := range made {
		index, err := layout.ImageIndexFromPath(filepath.Join(dir, filepath.Base(m.Name)))
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := index.IndexManifest()
		if err != nil || len(manifest.Manifests) != 1 {
			t.Fatalf("crane pushes a layout with one entry; this has %v, %v", manifest, err)
		}
		inner, err := index.ImageIndex(manifest.Manifests[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		there, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/" + filepath.Base(m.Name) + ":v0.1.0")
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.WriteIndex(there, inner); err != nil {
			t.Fatal(err)
		}
		for _, platform := range m.Platforms {
			want, err := v1.ParsePlatform(platform)
			if err != nil {
				t.Fatal(err)
			}
			pulled, err := remote.Image(there, remote.WithPlatform(*want))
			if err != nil {
				t.Fatalf("%s for %s: %v", m.Name, platform, err)
			}
			config, err := pulled.ConfigFile()
			if err != nil || config.Architecture != want.Architecture || config.Config.User != "65532:65532" || config.Config.Labels["v"] != "1" {
				t.Errorf("%s for %s: %+v, %v", m.Name, platform, config, err)
			}
			if layers, err := pulled.Layers(); err != nil || len(layers) != 2 {
				t.Errorf("%s for %s: %d layers, %v", m.Name, platform, len(layers), err)
			}
		}
		if described, err := remote.Head(there); err != nil || described.Digest.String() != m.Digest {
			t.Errorf("pushed %v, %v, want the digest of the manifests, %s", described, err, m.Digest)
		}
	}
	again, err := Layout(filepath.Join(t.TempDir(), "images"), "v0.1.0", []Image{published(t, base+"one", "amd64", "one"), published(t, base+"one", "arm64", "one on arm")})
	if err != nil || again[0].Digest != made[0].Digest {
		t.Errorf("another order makes another digest: %v, %v", again, err)
	}
}
