// Package image makes container images out of files, without a container
// engine, and hands them to containerd.
//
// Owns: the form of the images. Reads: the files it packs. Writes: image archives and, for a
// release, OCI layouts. Never: asks a registry; names under dev.local exist only here.
package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Entry is one path of a layer: a file with content, a link or a folder.
type Entry struct {
	Path    string // absolute in the image
	From    string // file on this machine
	Content []byte // used when From is empty
	Link    string // target of a symbolic link
	Dir     bool
	Mode    fs.FileMode
	Owner   int
}

// Settings is the image's configuration for the container runtime.
type Settings struct {
	Entrypoint []string
	Env        []string
	User       string
	WorkingDir string
	Ports      []string // "8080/tcp"
	// Published is set for an image that leaves this machine.
	Published *Published
}

// Published is what an image of a release has and one of this machine has not: another
// architecture, compressed layers and annotations.
type Published struct {
	Architecture string
	Created      time.Time
	Labels       map[string]string
}

// Image is a built image. Its tag is a digest of its content.
type Image struct {
	Name  string // without a tag: dev.local/ebb/activator
	Tag   string
	image v1.Image
	// platform is the architecture that it is for.
	platform string
}

// Ref is the name that changes with the content.
func (i Image) Ref() string { return i.Name + ":" + i.Tag }

// Stable is the name that always stands for the newest build.
func (i Image) Stable() string { return i.Name + ":dev" }

// Make builds an image from layers, lowest first. Equal input gives equal bytes: the image contains
// no time, no owner and no file order of this machine.
func Make(imageName string, settings Settings, layers ...[]Entry) (Image, error) {
	img := empty.Image
	for _, entries := range layers {
		archive, err := pack(entries)
		if err != nil {
			return Image{}, fmt.Errorf("image %s: %w", imageName, err)
		}
		layer, err := layerOf(archive, settings.Published != nil)
		if err != nil {
			return Image{}, fmt.Errorf("image %s: %w", imageName, err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			return Image{}, fmt.Errorf("image %s: %w", imageName, err)
		}
	}
	file, err := img.ConfigFile()
	if err != nil {
		return Image{}, err
	}
	file = file.DeepCopy()
	file.Architecture, file.OS = "amd64", "linux"
	file.Config = v1.Config{
		Entrypoint: settings.Entrypoint,
		Env:        append([]string{"PATH=/usr/local/bin:/usr/bin:/bin"}, settings.Env...),
		User:       cmp.Or(settings.User, "65532:65532"),
		WorkingDir: cmp.Or(settings.WorkingDir, "/"),
	}
	if len(settings.Ports) > 0 {
		file.Config.ExposedPorts = map[string]struct{}{}
		for _, p := range settings.Ports {
			file.Config.ExposedPorts[p] = struct{}{}
		}
	}
	if p := settings.Published; p != nil {
		file.Architecture, file.Created, file.Config.Labels = p.Architecture, v1.Time{Time: p.Created}, p.Labels
		img = mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON)
	}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		return Image{}, fmt.Errorf("image %s: %w", imageName, err)
	}
	digest, err := img.ConfigName()
	if err != nil {
		return Image{}, err
	}
	return Image{Name: imageName, Tag: digest.Hex[:12], image: img, platform: file.Architecture}, nil
}

// layerOf makes a layer of a tar archive. One that only containerd on this machine reads, once, is
// not compressed.
func layerOf(archive []byte, published bool) (v1.Layer, error) {
	if !published {
		return static.NewLayer(archive, types.DockerUncompressedLayer), nil
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// Write puts images, each under both its names, into one archive.
func Write(file string, images []Image) error {
	refs := map[name.Reference]v1.Image{}
	for _, i := range images {
		for _, n := range []string{i.Ref(), i.Stable()} {
			tag, err := name.NewTag(n, name.StrictValidation)
			if err != nil {
				return fmt.Errorf("image name: %w", err)
			}
			refs[tag] = i.image
		}
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := tarball.MultiRefWrite(refs, out); err != nil {
		out.Close()
		return fmt.Errorf("write %s: %w", file, err)
	}
	return out.Close()
}

// pack writes a tar archive that depends on nothing but the entries.
func pack(entries []Entry) ([]byte, error) {
	byPath := map[string]Entry{}
	for _, e := range entries {
		e.Path = strings.Trim(filepath.Clean("/"+e.Path), "/")
		byPath[e.Path] = e
		for dir := filepath.Dir(e.Path); dir != "."; dir = filepath.Dir(dir) {
			if _, ok := byPath[dir]; !ok {
				byPath[dir] = Entry{Path: dir, Dir: true, Mode: 0o755}
			}
		}
	}
	sorted := make([]Entry, 0, len(byPath))
	for _, e := range byPath {
		if e.Path != "" {
			sorted = append(sorted, e)
		}
	}
	slices.SortFunc(sorted, func(a, b Entry) int { return cmp.Compare(a.Path, b.Path) })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range sorted {
		if err := write(w, e); err != nil {
			return nil, fmt.Errorf("pack /%s: %w", e.Path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func write(w *tar.Writer, e Entry) error {
	h := &tar.Header{
		Name: e.Path, Mode: int64(e.Mode.Perm()), Uid: e.Owner, Gid: e.Owner,
		ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
	}
	if e.Mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	switch {
	case e.Link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.Link, 0o777
		return w.WriteHeader(h)
	case e.Dir:
		h.Typeflag, h.Name = tar.TypeDir, e.Path+"/"
		return w.WriteHeader(h)
	}
	content := e.Content
	if e.From != "" {
		var err error
		if content, err = os.ReadFile(e.From); err != nil {
			return err
		}
	}
	h.Typeflag, h.Size = tar.TypeReg, int64(len(content))
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(w, bytes.NewReader(content))
	return err
}

// Tree turns a folder of this machine into entries below a path of the image.
// skip leaves out a path (relative to the folder), and what is below it.
func Tree(dir, at string, skip func(rel string) bool) ([]Entry, error) {
	var entries []Entry
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil || rel == "." {
			return err
		}
		if skip != nil && skip(rel) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		e := Entry{Path: filepath.Join(at, rel), Mode: info.Mode()}
		switch {
		case d.IsDir():
			e.Dir = true
		case info.Mode()&fs.ModeSymlink != 0:
			if e.Link, err = os.Readlink(path); err != nil {
				return err
			}
		case info.Mode().IsRegular():
			e.From = path
		default:
			return nil // sockets and devices are left out
		}
		entries = append(entries, e)
		return nil
	})
	return entries, err
}
