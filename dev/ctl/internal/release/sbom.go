package release

import (
	"bufio"
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// Bill lists what the programs and images of a release are made of.
type Bill struct {
	version    string
	components map[string]cdx.Component
	dependsOn  map[string][]string
}

// NewBill starts the bill of a version.
func NewBill(version string) *Bill {
	return &Bill{version: version, components: map[string]cdx.Component{}, dependsOn: map[string][]string{}}
}

func (b *Bill) part(of, ref string, component cdx.Component) {
	component.BOMRef, component.PackageURL = ref, ref
	b.components[ref] = component
	if !slices.Contains(b.dependsOn[of], ref) {
		b.dependsOn[of] = append(b.dependsOn[of], ref)
	}
}

// whole is a program or image of the release.
func (b *Bill) whole(name string) string {
	ref := name + "@" + b.version
	b.components[ref] = cdx.Component{BOMRef: ref, Type: cdx.ComponentTypeApplication, Name: name, Version: b.version}
	return ref
}

// Program adds a Go program with the modules that its binary says it has.
func (b *Bill) Program(name, binary string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return fmt.Errorf("read what %s is made of: %w", binary, err)
	}
	ref := b.whole(name)
	b.part(ref, "pkg:golang/std@"+strings.TrimPrefix(info.GoVersion, "go"), cdx.Component{Type: cdx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion})
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		b.part(ref, "pkg:golang/"+m.Path+"@"+m.Version, cdx.Component{Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version})
	}
	return nil
}

// Debian adds the Debian packages whose status is in a folder to an image.
func (b *Bill) Debian(name, status string) error {
	files, err := filepath.Glob(filepath.Join(status, "*"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("%s has no package's status: %w", status, err)
	}
	ref := b.whole(name)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		field := map[string]string{}
		for line := range strings.Lines(string(text)) {
			if key, value, found := strings.Cut(line, ": "); found {
				field[key] = strings.TrimSpace(value)
			}
		}
		b.part(ref, fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", field["Package"], strings.ReplaceAll(field["Version"], "+", "%2B"), field["Architecture"]),
			cdx.Component{Type: cdx.ComponentTypeLibrary, Name: field["Package"], Version: field["Version"]})
	}
	return nil
}

// Python adds the packages of a requirements file to an image.
func (b *Bill) Python(name, requirements string) error {
	text, err := os.ReadFile(requirements)
	if err != nil {
		return err
	}
	ref := b.whole(name)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), " ")
		if pkg, version, found := strings.Cut(line, "=="); found {
			b.part(ref, "pkg:pypi/"+pkg+"@"+version, cdx.Component{Type: cdx.ComponentTypeLibrary, Name: pkg, Version: version})
		}
	}
	return lines.Err()
}

// JSON is the bill in CycloneDX's format.
func (b *Bill) JSON() ([]byte, error) {
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: "ebb@" + b.version, Name: "ebb", Version: b.version}}
	components, dependencies := []cdx.Component{}, []cdx.Dependency{}
	for _, ref := range sorted(b.components) {
		components = append(components, b.components[ref])
	}
	for _, ref := range sorted(b.dependsOn) {
		on := slices.Sorted(slices.Values(b.dependsOn[ref]))
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &on})
	}
	bom.Components, bom.Dependencies = &components, &dependencies
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return nil, fmt.Errorf("write the bill of materials: %w", err)
	}
	return out.Bytes(), nil
}
