package image

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Names under which tools find an image in a layout: skopeo by the first, containerd by the second.
const (
	refName        = "org.opencontainers.image.ref.name"
	containerdName = "io.containerd.image.name"
)

// Release is one program's image for several architectures.
type Release struct {
	Name, Tag string // registry.example.com/ebb/activator, v0.1.0
	Digest    string // sha256:..., once it is in a layout
	Platforms []string
}

// Ref names the image by tag and digest.
func (r Release) Ref() string { return r.Name + ":" + r.Tag + "@" + r.Digest }

// Layout makes the folder an OCI layout and puts images into it, those of one name as one image
// index. crane pushes a layout only if that has one entry, so that each image also has a layout of
// its own, in a folder of its name, that shares the blobs.
func Layout(dir, tag string, images []Image) ([]Release, error) {
	all, err := layout.Write(dir, empty.Index)
	if err != nil {
		return nil, fmt.Errorf("make the OCI layout %s: %w", dir, err)
	}
	byName := map[string][]Image{}
	var names []string
	for _, i := range images {
		if byName[i.Name] == nil {
			names = append(names, i.Name)
		}
		byName[i.Name] = append(byName[i.Name], i)
	}
	slices.Sort(names)
	var releases []Release
	for _, name := range names {
		index, platforms, err := indexOf(byName[name])
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		digest, err := index.Digest()
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		r := Release{Name: name, Tag: tag, Digest: digest.String(), Platforms: platforms}
		// Manifests name images by digest; containerd finds them so only if it has them under that
		// name, too.
		tagged, pinned := name+":"+tag, name+"@"+r.Digest
		if err := all.AppendIndex(index, layout.WithAnnotations(map[string]string{refName: tagged, containerdName: tagged})); err != nil {
			return nil, fmt.Errorf("write image %s: %w", name, err)
		}
		if err := all.AppendIndex(index, layout.WithAnnotations(map[string]string{containerdName: pinned})); err != nil {
			return nil, fmt.Errorf("write image %s: %w", name, err)
		}
		if err := alone(filepath.Join(dir, filepath.Base(name)), tagged, index); err != nil {
			return nil, fmt.Errorf("write image %s: %w", name, err)
		}
		releases = append(releases, r)
	}
	return releases, nil
}

func indexOf(images []Image) (v1.ImageIndex, []string, error) {
	slices.SortFunc(images, func(a, b Image) int { return cmp.Compare(a.platform, b.platform) })
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var platforms []string
	for _, i := range images {
		platform := &v1.Platform{OS: "linux", Architecture: i.platform}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: i.image, Descriptor: v1.Descriptor{Platform: platform}})
		platforms = append(platforms, platform.String())
	}
	return index, platforms, nil
}

// alone makes a layout of one image whose blobs are those of the layout around it.
func alone(dir, ref string, index v1.ImageIndex) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Symlink("../blobs", filepath.Join(dir, "blobs")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644); err != nil {
		return err
	}
	text, err := index.RawManifest()
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	entry := v1.Descriptor{MediaType: types.OCIImageIndex, Size: int64(len(text)), Digest: digest, Annotations: map[string]string{refName: ref}}
	text, err = json.MarshalIndent(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{entry}}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "index.json"), text, 0o644)
}
