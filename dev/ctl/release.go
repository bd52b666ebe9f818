package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/dev/ctl/internal/build"
	"ebb.dev/ebb/dev/ctl/internal/fetch"
	"ebb.dev/ebb/dev/ctl/internal/image"
	"ebb.dev/ebb/dev/ctl/internal/release"
	"ebb.dev/ebb/dev/ctl/internal/step"
)

// issue is a release on its way.
type issue struct {
	version, registry, downloads, out string

	key             *ecdsa.PrivateKey // signs; nil does not
	samples         bool              // and nothing else
	images, plugins []string          // architectures, and platforms such as darwin/arm64
	at              time.Time
	commit          string
	refs            map[string]string // component or sample -> image by digest
	bill            *release.Bill
}

// release writes dist/: everything that a user installs, made from this checkout.
func (c *control) release(ctx context.Context, args []string, stderr io.Writer) error {
	i, err := c.readIssue(ctx, args, stderr)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.In("log"), 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Cache, 0o755); err != nil {
		return err
	}
	for _, left := range []string{i.out, c.In("release")} {
		if err := os.RemoveAll(left); err != nil {
			return err
		}
	}
	steps := []stage{
		{"images for " + strings.Join(i.images, ", "), c.releaseImages},
		{"manifests, chart and samples", c.releaseManifests},
		{"kubectl ebb", c.releasePlugins},
		{"bill of materials, notes and checksums", c.releasePapers},
	}
	if i.samples {
		steps = []stage{steps[0], {"manifests and checksums", func(context.Context, *issue, *step.Report) error {
			return errors.Join(c.releaseSamples(i), release.Sums(i.out))
		}}}
	}
	for _, s := range steps {
		if err := c.steps.Do(ctx, s.title, func(ctx context.Context, r *step.Report) error { return s.do(ctx, i, r) }); err != nil {
			return err
		}
	}
	if i.samples {
		fmt.Fprintf(c.out, "the samples are in %s; samples/README.md says how to use them\n", i.out)
	} else {
		fmt.Fprintf(c.out, "%s is in %s; docs/install.md says how to use it\n", i.version, i.out)
	}
	return nil
}

// sign signs a release that is there already, as on another machine that has the key.
func sign(args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("sign", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("key", "", "file with the key that signs, of cosign or in PEM; COSIGN_PASSWORD has its password")
	out := flags.String("out", "dist", "folder of the release")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *file == "" {
		return errors.New("a key is needed: run `make sign KEY=cosign.key`")
	}
	key, err := release.ReadKey(*file, os.Getenv("COSIGN_PASSWORD"))
	if err != nil {
		return err
	}
	return release.Sign(*out, key)
}

// stage is a step of a release.
type stage struct {
	title string
	do    func(context.Context, *issue, *step.Report) error
}

func (c *control) readIssue(ctx context.Context, args []string, stderr io.Writer) (*issue, error) {
	i := &issue{refs: map[string]string{}}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&i.version, "version", "", "such as v0.1.0")
	flags.StringVar(&i.registry, "registry", "registry.example.com/ebb", "where users will pull the images from")
	flags.StringVar(&i.downloads, "downloads", "", "URL of the folder that the files will be downloaded from, for Krew")
	flags.StringVar(&i.out, "out", "dist", "folder to write; what is in it is deleted")
	flags.BoolVar(&i.samples, "samples", false, "only the samples: their images and manifests")
	key := flags.String("key", "", "file with the key that signs, of cosign or in PEM; COSIGN_PASSWORD has its password")
	images := flags.String("images", "amd64,arm64", "architectures of the images")
	plugins := flags.String("plugins", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64", "platforms of kubectl ebb")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if err := release.CheckVersion(i.version); err != nil {
		return nil, fmt.Errorf("%w: run `make release VERSION=v0.1.0`", err)
	}
	if i.registry == "" || strings.HasSuffix(i.registry, "/") || strings.ContainsAny(i.registry, " @") {
		return nil, fmt.Errorf("the registry %q is not one such as registry.example.com/ebb", i.registry)
	}
	if i.downloads == "" {
		i.downloads = "https://downloads.example.com/ebb/" + i.version
	}
	i.images, i.plugins = strings.Split(*images, ","), strings.Split(*plugins, ",")
	if entries, err := os.ReadDir(i.out); err == nil && len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(i.out, "SHA256SUMS")); err != nil {
			return nil, fmt.Errorf("the folder %s is not one of a release: delete it, or name another with -out", i.out)
		}
	}
	var err error
	i.out, err = filepath.Abs(i.out)
	if err != nil {
		return nil, err
	}
	if *key != "" {
		if i.key, err = release.ReadKey(*key, os.Getenv("COSIGN_PASSWORD")); err != nil {
			return nil, err
		}
	}
	i.commit, i.at, err = c.origin(ctx)
	i.bill = release.NewBill(i.version)
	return i, err
}

// origin is the commit that a release is made from and its time, which stands in all files, so that
// another run makes the same bytes. SOURCE_DATE_EPOCH overrides the time.
func (c *control) origin(ctx context.Context) (commit string, at time.Time, err error) {
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = c.Root
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	stamp := os.Getenv("SOURCE_DATE_EPOCH")
	commit, err = git("rev-parse", "HEAD")
	if err != nil {
		if stamp == "" {
			return "", at, fmt.Errorf("ask git for the commit: %w: set SOURCE_DATE_EPOCH to release from a folder without git", err)
		}
		commit = "unknown"
	} else if changed, err := git("status", "--porcelain"); err == nil && changed != "" {
		commit += "-dirty"
	}
	if stamp == "" {
		if stamp, err = git("log", "-1", "--format=%ct"); err != nil {
			return "", at, fmt.Errorf("ask git for the time of the commit: %w", err)
		}
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return "", at, fmt.Errorf("the time of the release, %q, is not a number of seconds: %w", stamp, err)
	}
	return commit, time.Unix(seconds, 0).UTC(), nil
}

// linked is what a program of the release is linked with.
func (i *issue) linked(system, arch string) build.Target {
	return build.Target{OS: system, Arch: arch, LDFlags: "-X ebb.dev/ebb/internal/version.Version=" + i.version}
}

// releaseImages builds the components and samples for each architecture and puts their images into
// an OCI layout.
func (c *control) releaseImages(ctx context.Context, i *issue, r *step.Report) error {
	samples, err := mains(c.Root, "samples")
	if err != nil {
		return err
	}
	folders := samples
	if !i.samples {
		folders = append(slices.Sorted(maps.Keys(components)), samples...)
	}
	base, err := c.releaseBase(ctx, i)
	if err != nil {
		return err
	}
	var images []image.Image
	for _, arch := range i.images {
		binaries, err := c.compile(ctx, func(done, total int) { r.Progress(done, total, "packages") }, i.linked("linux", arch), c.In("release", "linux-"+arch), folders)
		if err != nil {
			return err
		}
		for _, folder := range folders {
			name := filepath.Base(folder)
			if err := i.bill.Program(name, binaries[folder]); err != nil {
				return err
			}
			inside := "/ko-app/" + name // where ko puts it
			img, err := image.Make(i.registry+"/"+name, image.Settings{Entrypoint: []string{inside}, Published: i.published(arch)},
				base, []image.Entry{{Path: inside, From: binaries[folder], Mode: 0o755}})
			if err != nil {
				return err
			}
			images = append(images, img)
		}
		for _, sample := range interpretedSamples {
			img, err := c.releaseInterpreted(ctx, i, sample, arch)
			if err != nil {
				return err
			}
			images = append(images, img)
		}
	}
	made, err := image.Layout(filepath.Join(i.out, "images"), i.version, images)
	if err != nil {
		return err
	}
	var list bytes.Buffer
	for _, m := range made {
		i.refs[filepath.Base(m.Name)] = m.Ref()
		fmt.Fprintf(&list, "%s\t%s\n", m.Ref(), strings.Join(m.Platforms, ","))
	}
	if edge, made := i.refs[filepath.Base(edgeProgram)]; made {
		i.refs[edgeProgram] = edge // config/ names programs by their folders
	}
	r.Note("%d images", len(made))
	return os.WriteFile(filepath.Join(i.out, "images.txt"), list.Bytes(), 0o644)
}

func (i *issue) published(arch string) *image.Published {
	return &image.Published{Architecture: arch, Created: i.at, Labels: map[string]string{
		"org.opencontainers.image.title": "Ebb", "org.opencontainers.image.version": i.version, "org.opencontainers.image.revision": i.commit,
		"org.opencontainers.image.licenses": "Apache-2.0"}}
}

// releaseBase is the layer below each Go program: a user and the certificates of authorities.
func (c *control) releaseBase(ctx context.Context, i *issue) ([]image.Entry, error) {
	tree, err := fetch.DebsFor(ctx, c.Cache, c.Log("downloads"), "amd64", []string{"ca-certificates"})
	if err != nil {
		return nil, err
	}
	if err := i.bill.Debian("base", filepath.Join(tree, fetch.StatusFolder)); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(tree, "usr/share/ca-certificates/mozilla/*.crt"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("the package ca-certificates in %s has no certificate: %w", tree, err)
	}
	var authorities []byte
	for _, f := range files { // sorted by name
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		authorities = append(authorities, text...)
	}
	status, err := image.Tree(filepath.Join(tree, fetch.StatusFolder), "/"+fetch.StatusFolder, nil)
	if err != nil {
		return nil, err
	}
	return append(status, temp,
		image.Entry{Path: "/etc/passwd", Content: []byte("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n"), Mode: 0o644},
		image.Entry{Path: "/etc/group", Content: []byte("root:x:0:\nnonroot:x:65532:\n"), Mode: 0o644},
		image.Entry{Path: "/etc/ssl/certs/ca-certificates.crt", Content: authorities, Mode: 0o644}), nil
}

// releaseInterpreted is the image of a sample that an interpreter runs.
func (c *control) releaseInterpreted(ctx context.Context, i *issue, sample interpreted, arch string) (image.Image, error) {
	tree, err := sample.tree(c, ctx, c.Log("downloads"), arch)
	if err != nil {
		return image.Image{}, err
	}
	if sample.requirements != "" {
		if err := i.bill.Python(sample.name, filepath.Join(sample.folder(c.Root), sample.requirements)); err != nil {
			return image.Image{}, err
		}
	}
	if err := i.bill.Debian(sample.name, filepath.Join(tree, fetch.StatusFolder)); err != nil {
		return image.Image{}, err
	}
	r, err := sample.recipe(c.Root, i.registry, tree, i.published(arch))
	if err != nil {
		return image.Image{}, err
	}
	return r.make()
}
