package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"ebb.dev/ebb/dev/ctl/internal/release"
	"ebb.dev/ebb/dev/ctl/internal/step"
)

func (i *issue) write(name string, content []byte) error {
	file := filepath.Join(i.out, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o644)
}

// releaseManifests writes the manifests, the chart and the samples, with the images' names in them.
func (c *control) releaseManifests(_ context.Context, i *issue, r *step.Report) error {
	m, err := release.Render(filepath.Join(c.Root, "config"), c.In("release", "overlays"), i.version, i.refs)
	if err != nil {
		return err
	}
	definitions, rest := release.Split(m.Default)
	_, ha := release.Split(m.HA)
	_, edge := release.Split(m.Edge)
	_, envoyGateway := release.Split(m.EnvoyGateway)
	files := map[string][]release.Object{"ebb-crds.yaml": definitions, "ebb.yaml": rest, "ebb-ha.yaml": ha, "ebb-edge.yaml": edge,
		"ebb-envoy-gateway.yaml": envoyGateway}
	for folder, objects := range m.Apart {
		files["ebb-"+folder+".yaml"] = objects
	}
	for name, objects := range files {
		text, err := release.YAML("Ebb "+i.version+", see docs/install.md.", objects)
		if err != nil {
			return err
		}
		if err := i.write(name, text); err != nil {
			return err
		}
	}
	chart, err := release.MakeChart(m, i.version, i.registry)
	if err != nil {
		return err
	}
	archive, err := chart.Archive(i.at)
	if err != nil {
		return err
	}
	r.Note("%d objects", len(m.Default))
	if err := i.write("ebb-"+strings.TrimPrefix(i.version, "v")+".tgz", archive); err != nil {
		return err
	}
	return c.releaseSamples(i)
}

// releaseSamples copies the samples' manifests, but for the large ones.
func (c *control) releaseSamples(i *issue) error {
	root := filepath.Join(c.Root, "samples")
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if slices.ContainsFunc(largeSamples, func(s interpreted) bool { return path == s.folder(c.Root) }) {
			return fs.SkipDir
		}
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for name, ref := range i.refs {
			text = bytes.ReplaceAll(text, []byte("dev.local/ebb/"+name+":dev"), []byte(ref))
		}
		relative, err := filepath.Rel(c.Root, path)
		if err != nil {
			return err
		}
		if bytes.Contains(text, []byte("dev.local/")) {
			return fmt.Errorf("%s names an image that is not in the release", relative)
		}
		return i.write(relative, text)
	})
}

// releasePlugins builds kubectl-ebb for each platform and packs it.
func (c *control) releasePlugins(ctx context.Context, i *issue, r *step.Report) error {
	license, err := os.ReadFile(filepath.Join(c.Root, "LICENSE"))
	if err != nil {
		return err
	}
	var downloads []release.Download
	for _, platform := range i.plugins {
		system, arch, found := strings.Cut(platform, "/")
		if !found {
			return fmt.Errorf("the platform %q of the plugin is not one such as linux/amd64", platform)
		}
		binaries, err := c.compile(ctx, func(done, total int) { r.Progress(done, total, "packages for "+platform) }, i.linked(system, arch),
			c.In("release", system+"-"+arch), []string{plugin})
		if err != nil {
			return err
		}
		if err := i.bill.Program(plugin, withSuffix(binaries[plugin], system)); err != nil {
			return err
		}
		d, err := i.pack(system, arch, binaries[plugin], license)
		if err != nil {
			return err
		}
		downloads = append(downloads, d)
	}
	r.Note("%d platforms", len(downloads))
	manifest, err := release.Krew(i.version, i.downloads, downloads)
	if err != nil {
		return err
	}
	return i.write("krew/ebb.yaml", manifest)
}

func withSuffix(binary, system string) string {
	if system == "windows" {
		return binary + ".exe"
	}
	return binary
}

func (i *issue) pack(system, arch, binary string, license []byte) (release.Download, error) {
	d := release.Download{OS: system, Arch: arch, Binary: withSuffix(plugin, system), File: fmt.Sprintf("%s_%s_%s_%s", plugin, i.version, system, arch)}
	content, err := os.ReadFile(withSuffix(binary, system))
	if err != nil {
		return d, err
	}
	files := map[string]release.File{d.Binary: {Content: content, Mode: 0o755}, "LICENSE": {Content: license, Mode: 0o644}}
	if system == "windows" {
		d.File += ".zip"
		d.Content, err = release.Zip(files, i.at)
	} else {
		d.File += ".tar.gz"
		d.Content, err = release.TarGz(files, i.at)
	}
	if err != nil {
		return d, err
	}
	return d, i.write(d.File, d.Content)
}

// releasePapers writes what tells about the other files.
func (c *control) releasePapers(_ context.Context, i *issue, _ *step.Report) error {
	changelog, err := os.ReadFile(filepath.Join(c.Root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	notes, err := release.Notes(string(changelog), i.version)
	if err != nil {
		return err
	}
	bill, err := i.bill.JSON()
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{"RELEASE_NOTES.md": []byte(notes), "sbom.cdx.json": bill} {
		if err := i.write(name, content); err != nil {
			return err
		}
	}
	if err := release.Sums(i.out); err != nil || i.key == nil {
		return err
	}
	return release.Sign(i.out, i.key)
}
