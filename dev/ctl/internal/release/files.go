package release

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

var semantic = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

// CheckVersion refuses what Helm, Krew and a label would not take.
func CheckVersion(version string) error {
	if !semantic.MatchString(version) || len(version) > 60 {
		return fmt.Errorf("the version %q is not one such as v0.1.0 or v0.2.0-rc.1", version)
	}
	return nil
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// File is one file of an archive.
type File struct {
	Content []byte
	Mode    fs.FileMode
}

// TarGz packs files. Equal files give equal bytes.
func TarGz(files map[string]File, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	w := tar.NewWriter(zipped)
	for _, name := range sorted(files) {
		f := files[name]
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: int64(f.Mode), Size: int64(len(f.Content)), ModTime: at, Format: tar.FormatPAX}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.Content); err != nil {
			return nil, err
		}
	}
	err := errors.Join(w.Close(), zipped.Close())
	return out.Bytes(), err
}

// Zip packs files, for Windows.
func Zip(files map[string]File, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, name := range sorted(files) {
		h := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: at.UTC()}
		h.SetMode(files[name].Mode)
		part, err := w.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := part.Write(files[name].Content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// Archive is the chart as `helm install` takes it.
func (chart Chart) Archive(at time.Time) ([]byte, error) {
	files := map[string]File{}
	for name, text := range chart {
		files["ebb/"+name] = File{text, 0o644}
	}
	return TarGz(files, at)
}

// Sums writes SHA256SUMS of all files of a folder, as `sha256sum -c` reads it.
func Sums(dir string) error {
	var out bytes.Buffer
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		fmt.Fprintf(&out, "%x  %s\n", h.Sum(nil), filepath.ToSlash(relative))
		return err
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, sums), out.Bytes(), 0o644)
}

// localLink is a link to a file of the repository, which is not beside the notes.
var localLink = regexp.MustCompile(`\[([^\]]+)\]\([^):]+\)`)

// Notes are the part of the changelog about a version, or what is unreleased.
func Notes(changelog, version string) (string, error) {
	for _, heading := range []string{"## " + version, "## Unreleased"} {
		for _, section := range strings.Split("\n"+changelog, "\n## ") {
			title, text, _ := strings.Cut(section, "\n")
			if name, _, _ := strings.Cut("## "+title, " - "); strings.TrimSpace(name) == heading {
				return fmt.Sprintf("# Ebb %s\n\n%s\n", version, strings.TrimSpace(localLink.ReplaceAllString(text, "$1"))), nil
			}
		}
	}
	return "", fmt.Errorf("CHANGELOG.md has neither a section %q nor one %q", version, "Unreleased")
}

// Download is an archive of the plugin for one platform.
type Download struct {
	OS, Arch, File, Binary string
	Content                []byte
}

// Krew is the manifest with which `kubectl krew install --manifest` installs the plugin.
func Krew(version, downloads string, files []Download) ([]byte, error) {
	var platforms []any
	for _, f := range files {
		platforms = append(platforms, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]string{"os": f.OS, "arch": f.Arch}},
			"uri":      strings.TrimSuffix(downloads, "/") + "/" + f.File,
			"sha256":   fmt.Sprintf("%x", sha256.Sum256(f.Content)),
			"bin":      f.Binary,
		})
	}
	return yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin",
		"metadata": map[string]string{"name": "ebb"},
		"spec": map[string]any{
			"version": version, "platforms": platforms,
			"shortDescription": "Show what Ebb does with your Services, and why",
			"description":      "Tells how many pods a Service has and why, lists the pods of Services, and finds what is\nwrong with an installation of Ebb.\n",
		},
	})
}
