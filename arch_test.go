package ebb

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "ebb.dev/ebb"

// layer is one row of the import table: the packages of this module that a folder may import.
// A folder may always import what lies under itself. The first row that matches a file counts.
type layer struct {
	folder string   // path prefix, relative to the root
	own    []string // path prefixes of this module
	// only, when set, lists the prefixes of every package that may be imported besides own; "std"
	// stands for the standard library.
	only []string
	// tests are path prefixes of this module that only the folder's tests may import.
	tests []string
	why   string
}

var std = []string{"std"}

// forTests are what the tests of every folder may use.
var forTests = []string{"internal/testing", "test/apiservertest", "test/golden", "test/eventually"}

// effects spells what the state machines ask for.
const effects = "internal/machine"

var layers = []layer{
	{folder: "wire", own: []string{"standby"}, only: std, why: "queue-proxy carries it into every pod"},
	{folder: "queue-proxy/limit", only: std, why: "a pure core"},
	{folder: "activator/pick", only: std, why: "a pure core"},
	{folder: "activator/bind", own: []string{effects}, only: std, why: "a pure core"},
	{folder: "autoscaler/window", only: std, why: "a pure core"},
	{folder: "autoscaler/decide", own: []string{"autoscaler/window"}, only: std, why: "a pure core"},
	{folder: "autoscaler/zero", only: std, why: "a pure core"},
	{folder: "autoscaler/keep", only: std, why: "a pure core"},
	{folder: "autoscaler/alive", only: std, why: "a pure core"},
	{folder: "standby", own: []string{effects}, only: std, why: "a pure core"},
	{folder: "judge", own: []string{"wire"}, only: std, why: "a pure core"},
	{folder: "autoscaler/revision", own: []string{"autoscaler/window", "autoscaler/decide", "autoscaler/zero", "autoscaler/keep", "autoscaler/alive", "standby", "wire"}, only: std, why: "a pure core"},
	{folder: "api", own: []string{"wire", "standby", "judge"}, why: "the public kinds stand on nothing of ours but what admission must know of queue-proxy and of guards"},
	{folder: "settings", own: []string{"api", "internal/lease", "internal/otlp"}},
	{folder: "forward/exchange", own: []string{effects}, only: std, why: "a pure core: no socket, no lock, no goroutine, no clock"},
	{folder: "forward", why: "the forwarder stands on nothing of ours"},
	{folder: "internal/component", own: []string{"settings", "wire", "internal"}, why: "it is how processes begin, and knows no other domain words"},
	{folder: effects, only: std, why: "a pure core"},
	{folder: "internal/testing", why: "tests of every folder use it"},
	{folder: "internal/", own: []string{"internal", "forward", "wire"}, why: "leaf libraries know no domain words"},
	{folder: "node-agent", own: []string{"standby", "wire", "internal"}, why: "it runs on every node, as root: it is small"},
	{folder: "shim", only: std, why: "it is copied into other people's images"},
	{folder: "queue-proxy", own: []string{"forward", "wire", "internal", "standby"}, why: "it knows no Kubernetes"},
	{folder: "activator", own: []string{"api", "settings", "forward", "wire", "ingress/plan", "internal"}},
	{folder: "autoscaler", own: []string{"standby", "api", "settings", "wire", "internal"}},
	{folder: "courier", own: []string{"api", "settings", "wire", "internal"}},
	{folder: "coap", own: []string{"internal"}, why: "it knows no Kubernetes"},
	{folder: "ingress/resting", own: []string{effects}, only: std, why: "a pure core"},
	{folder: "ingress", own: []string{"api", "settings", "wire"}},
	{folder: "controller", own: []string{"standby", "judge", "api", "settings", "wire", "ingress", "internal"}},
	{folder: "webhook", own: []string{"api", "settings", "internal"}},
	{folder: "dashboard", own: []string{"api", "internal"}, tests: []string{"test/fleet", "test/browser"}, why: "it hands on what a page asks, and knows no more"},
	{folder: "kubectl-ebb", own: []string{"api", "settings", "internal", "dashboard/page"}, why: "it asks the API server, not the components"},
	{folder: "cmd/ebb", own: []string{"activator/process", "autoscaler/process", "controller/process", "webhook/process", "coap", "wire", "internal"}, why: "it starts components and does nothing else"},
	{folder: "sim", own: []string{"queue-proxy/limit", "activator/pick", "activator/bind", "autoscaler/window", "autoscaler/decide", "autoscaler/zero", "autoscaler/keep", "autoscaler/revision", "judge", "ingress/rollout", "wire"},
		why: "it runs the production cores and no shell"},
	{folder: "test/reference", own: []string{"api", "settings"}, why: "it writes pages"},
	{folder: "test/bench/scale", own: []string{"ingress/plan", "settings", "test"}, why: "its copies have the hash that the plan of a service has"},
	{folder: "test/golden", why: "tests of every folder use it"},
	{folder: "test/eventually", why: "tests of every folder use it"},
	{folder: "test", own: []string{"api", "wire", "internal", "samples/grpc/greeting"}, why: "a test that links a component tests something else than what runs"},
	{folder: "monitoring", only: append(std, "sigs.k8s.io/yaml"), why: "it writes files"},
	{folder: "samples", only: append(std, "google.golang.org/grpc", "google.golang.org/protobuf", "github.com/gorilla/websocket", "github.com/lib/pq"), why: "a sample is what a user would write"},
}

// noKubernetes lists packages that must not reach these folders even through third parties' names.
var noKubernetes = []string{"k8s.io/", "knative.dev/", "sigs.k8s.io/"}

func TestFoldersImportOnlyWhatTheTableAllows(t *testing.T) {
	seen := map[string]bool{}
	walkGo(t, func(file string) {
		// A test may use what it likes from outside the module, but of other folders only what the
		// table names.
		isTest := strings.HasSuffix(file, "_test.go")
		row := slices.IndexFunc(layers, func(l layer) bool {
			return strings.HasPrefix(file, l.folder+"/") || strings.HasSuffix(l.folder, "/") && strings.HasPrefix(file, l.folder)
		})
		if row < 0 {
			if strings.Contains(file, "/") {
				t.Errorf("%s lies in a folder without a row in the import table", file)
			}
			return
		}
		l := layers[row]
		seen[l.folder] = true
		for _, imported := range imports(t, file) {
			ours, isOurs := strings.CutPrefix(imported, module+"/")
			switch {
			case !isTest && under(ours, "internal/testing") && !under(path.Dir(file), "internal/testing") && !under(path.Dir(file), "test"):
				t.Errorf("%s imports %s, which is for tests", file, imported)
			case isTest && slices.ContainsFunc(forTests, func(p string) bool { return under(ours, p) }):
			case isTest && isOurs && slices.ContainsFunc(l.tests, func(p string) bool { return under(ours, p) }):
			case isOurs && (under(ours, l.folder) || slices.ContainsFunc(l.own, func(p string) bool { return under(ours, p) })):
			case isOurs:
				t.Errorf("%s imports %s, which the import table does not allow %s (%s)", file, imported, l.folder, l.why)
			case l.only != nil && !isTest && !allowed(imported, l.only):
				t.Errorf("%s imports %s; %s may import only %v (%s)", file, imported, l.folder, l.only, l.why)
			case (strings.HasPrefix(file, "queue-proxy/") || strings.HasPrefix(file, "forward/")) && !isTest && allowed(imported, noKubernetes):
				t.Errorf("%s imports %s: the data path knows no Kubernetes", file, imported)
			}
		}
	})
	for _, l := range layers {
		if _, err := os.Stat(strings.TrimSuffix(l.folder, "/")); err == nil && !seen[l.folder] {
			t.Logf("no Go file under %s", l.folder)
		}
	}
}

// folders is a row of ARCHITECTURE's table of what folders may import; span is what is set as code.
var (
	folders = regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|[^|]*\\|([^|]*)\\|$")
	span    = regexp.MustCompile("`([^`]*)`")
)

// words are those in the spans of a cell.
func words(cell string) (all []string) {
	for _, s := range span.FindAllStringSubmatch(cell, -1) {
		all = append(all, strings.Fields(s[1])...)
	}
	return all
}

// ARCHITECTURE tells for each folder what may be imported there and below, but for what lies below
// and has a row of its own.
func TestArchitectureTellsWhatFoldersMayImport(t *testing.T) {
	told, want := map[string][]string{}, map[string][]string{}
	for _, row := range folders.FindAllStringSubmatch(read(t, "ARCHITECTURE.md"), -1) {
		for _, folder := range words(row[1]) {
			told[strings.TrimSuffix(strings.TrimSuffix(folder, ","), "/")] = words(row[2])
		}
	}
	for _, l := range layers {
		of, row := strings.TrimSuffix(l.folder, "/"), ""
		for folder := range told {
			if under(of, folder) && len(folder) > len(row) {
				row = folder
			}
		}
		if row == "" {
			t.Errorf("ARCHITECTURE.md has no row for %s", of)
		}
		for _, own := range l.own {
			if !under(own, row) {
				want[row] = append(want[row], own)
			}
		}
	}
	for folder, got := range told {
		least := func(all []string) string {
			slices.Sort(all)
			all = slices.Compact(all)
			return strings.Join(slices.DeleteFunc(slices.Clone(all), func(p string) bool {
				return slices.ContainsFunc(all, func(above string) bool { return above != p && under(p, above) })
			}), " ")
		}
		if got, want := least(got), least(want[folder]); got != want {
			t.Errorf("ARCHITECTURE.md says that %s may import %q, the import table says %q", folder, got, want)
		}
	}
}

// kindOfFolders is a row of ARCHITECTURE's table of folders: the kind, and the folders in one span.
var kindOfFolders = regexp.MustCompile("(?m)^\\| (Core|Optional|Tools): [^|]*\\| `([^`]*)` \\|$")

// Whoever wants Ebb without an optional part deletes it: the core must not need it.
func TestTheCoreImportsOnlyTheCore(t *testing.T) {
	kinds := map[string]string{}
	for _, row := range kindOfFolders.FindAllStringSubmatch(read(t, "ARCHITECTURE.md"), -1) {
		for _, folder := range strings.Fields(row[2]) {
			if kinds[folder] != "" {
				t.Errorf("ARCHITECTURE.md lists %s twice", folder)
			}
			if _, err := os.Stat(folder); err != nil {
				t.Errorf("ARCHITECTURE.md lists %s, which does not exist", folder)
			}
			kinds[folder] = row[1]
		}
	}
	walkGo(t, func(file string) {
		folder, _, below := strings.Cut(file, "/")
		if !below {
			return
		}
		if kinds[folder] == "" {
			t.Errorf("%s: ARCHITECTURE.md does not say whether %s is core, optional or a tool", file, folder)
		}
		if kinds[folder] != "Core" || strings.HasSuffix(file, "_test.go") {
			return
		}
		for _, imported := range imports(t, file) {
			if ours, isOurs := strings.CutPrefix(imported, module+"/"); isOurs {
				if to, _, _ := strings.Cut(ours, "/"); kinds[to] != "Core" {
					t.Errorf("%s is core and imports %s", file, imported)
				}
			}
		}
	})
}

// What a pure core of the data path must not even name: time is an argument of it, and it belongs
// to one goroutine at a time.
func TestTheExchangeDoesNoIO(t *testing.T) {
	walkGo(t, func(file string) {
		if !strings.HasPrefix(file, "forward/exchange/") && !strings.HasPrefix(file, "activator/bind/") || strings.HasSuffix(file, "_test.go") {
			return
		}
		for _, imported := range imports(t, file) {
			if !slices.Contains([]string{"errors", "fmt", "time", module + "/" + effects}, imported) {
				t.Errorf("%s imports %s", file, imported)
			}
		}
		for _, word := range []string{"time.Now", "time.Since", "time.Until", "time.After", "time.New", "go func", "chan ", "select {"} {
			if strings.Contains(read(t, file), word) {
				t.Errorf("%s has %q", file, word)
			}
		}
	})
}

// A reader keeps only so many fields in mind. The forwarder's structs have them in groups with a
// name each: what belongs to one request, to the reader, to the writer.
func TestStructsOfTheForwarderAreSmall(t *testing.T) {
	const maxFields = 30
	structs := 0
	walkGo(t, func(file string) {
		if !strings.HasPrefix(file, "forward/") || strings.HasSuffix(file, "_test.go") {
			return
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			s, ok := n.(*ast.StructType)
			if !ok {
				return true
			}
			structs++
			fields := 0
			for _, f := range s.Fields.List {
				fields += max(1, len(f.Names)) // an embedded one has no name
			}
			if fields > maxFields {
				t.Errorf("%s: a struct has %d fields, want at most %d: group them", file, fields, maxFields)
			}
			return true
		})
	})
	if structs < 30 {
		t.Errorf("only %d structs were found", structs)
	}
}

// floorsOfForward are the files of the forwarder above its ground floor, which all others are: the
// shells for the two protocols, and the top, which knows both.
var floorsOfForward = map[string][]string{
	"the top":  {"server.go"},
	"HTTP/1.1": {"h1*.go"},
	"HTTP/2":   {"h2*.go"},
}

type noImports struct{}

func (noImports) Import(string) (*types.Package, error) {
	return nil, errors.New("nothing is imported")
}

// A floor can be read without those above it, and a shell without the other.
func TestNoFloorOfTheForwarderUsesOneAboveIt(t *testing.T) {
	const folder = "forward"
	floor := map[string]string{}
	for name, patterns := range floorsOfForward {
		for _, pattern := range patterns {
			found, err := filepath.Glob(filepath.Join(folder, pattern))
			if err != nil || len(found) == 0 {
				t.Fatalf("%s has no %s (%v)", folder, pattern, err)
			}
			for _, file := range found {
				floor[filepath.ToSlash(file)] = name
			}
		}
	}
	fset := token.NewFileSet()
	var files []*ast.File
	walkGo(t, func(file string) {
		if path.Dir(file) != folder || strings.HasSuffix(file, "_test.go") || strings.HasSuffix(file, "_race.go") {
			return
		}
		parsed, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, parsed)
	})
	// Nothing is imported: only the names of this package matter, and what stays unknown is
	// ignored.
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	ignored := types.Config{Error: func(error) {}, Importer: noImports{}}
	_, _ = ignored.Check(module+"/"+folder, fset, files, info)
	crossed := 0
	for name, object := range info.Uses {
		if !object.Pos().IsValid() {
			continue // of another package, or of the language
		}
		from, to := fset.Position(name.Pos()), fset.Position(object.Pos())
		if from.Filename != to.Filename {
			crossed++
		}
		if a, b := floor[from.Filename], floor[to.Filename]; a != b && a != "the top" && b != "" {
			t.Errorf("%s uses %s of %s, which is of %s", from, name.Name, to.Filename, b)
		}
	}
	if crossed < 1000 {
		t.Errorf("only %d uses of names of other files were found", crossed)
	}
}

// sidecarFile has both directions of queue-proxy's environment. A name of it that stood in a second
// file could come to mean something else there.
const sidecarFile = "wire/sidecar.go"

func TestTheNamesOfTheSidecarsEnvironmentStandInOneFile(t *testing.T) {
	quoted := regexp.MustCompile(`"((?:EBB|SERVING)_[A-Z0-9_]+)`)
	own := map[string]bool{}
	for _, name := range quoted.FindAllStringSubmatch(read(t, sidecarFile), -1) {
		own[name[1]] = true
	}
	if len(own) < 20 {
		t.Fatalf("%s has only %d names", sidecarFile, len(own))
	}
	// Components have these names, too, for the same things.
	delete(own, "EBB_AUTOSCALER")
	delete(own, "EBB_METRICS_PORT")
	delete(own, "EBB_PPROF_PORT")
	walkGo(t, func(file string) {
		if file == sidecarFile || strings.HasSuffix(file, "_test.go") {
			return
		}
		for _, name := range quoted.FindAllStringSubmatch(read(t, file), -1) {
			if own[name[1]] || strings.HasPrefix(file, "queue-proxy/") || strings.HasPrefix(file, "controller/internal/revision/") {
				t.Errorf("%s names %s, which belongs into %s", file, name[1], sidecarFile)
			}
		}
	})
}

// Two ways to find the cluster's domain could have two answers.
func TestOnePackageFindsTheClusterDomain(t *testing.T) {
	walkGo(t, func(file string) {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "internal/component/") {
			return
		}
		for _, call := range []string{"clusterdomain." + "Read(", "GetCluster" + "DomainName("} {
			if strings.Contains(read(t, file), call) {
				t.Errorf("%s calls %s; component.New has the answer for all", file, call)
			}
		}
	})
}

// The options of a component are variables, which docs/reference lists. Tools have flags.
func TestComponentsHaveOneFlag(t *testing.T) {
	walkGo(t, func(file string) {
		folder, _, _ := strings.Cut(file, "/")
		if slices.Contains([]string{"kubectl-ebb", "monitoring", "sim", "samples", "test"}, folder) || strings.HasSuffix(file, "_test.go") {
			return
		}
		if slices.Contains(imports(t, file), "flag") && file != "controller/process/run.go" {
			t.Errorf("%s has flags; only -reconciliation-timeout of the controller is one, because Knative has it", file)
		}
	})
}

func TestMainsAreLists(t *testing.T) {
	walkGo(t, func(file string) {
		if path.Base(file) != "main.go" || strings.HasPrefix(file, "samples/") || strings.HasPrefix(file, "test/images/") {
			return
		}
		if n := strings.Count(read(t, file), "\n"); n > 120 {
			t.Errorf("%s has %d lines, want at most 120: a main parses, builds, runs and stops", file, n)
		}
	})
}

// Names that say nothing about what a package owns.
var emptyNames = []string{"pkg", "util", "utils", "common", "helpers", "helper", "misc", "base"}

// A program that was built in a checkout, and added with it, stays in every clone for ever.
func TestNoTrackedFileIsLarge(t *testing.T) {
	const most = 1 << 20
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("this is no checkout of git: %v", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if info, err := os.Stat(name); err == nil && info.Size() > most {
			t.Errorf("%s has %d bytes, more than %d", name, info.Size(), most)
		}
	}
}

func TestNoFolderHasAnEmptyName(t *testing.T) {
	walkGo(t, func(file string) {
		for _, part := range strings.Split(path.Dir(file), "/") {
			if slices.Contains(emptyNames, part) {
				t.Errorf("%s lies in a folder named %q, which says nothing", file, part)
			}
		}
	})
}

// shownBy is a test and the cases of it in parentheses: `TestGolden` (service-flags, service-full).
var shownBy = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Za-z0-9_]+)[^`]*`(?: \\(([^()]*)\\))?")

// caseExists reports whether a case is a file in a testdata folder beside a test of that name, or
// is named in its source.
func caseExists(t *testing.T, sources map[string][]string, test, name string) bool {
	for _, file := range sources[test] {
		folder := filepath.Join(filepath.Dir(file), "testdata")
		for _, pattern := range []string{name, name + ".*", filepath.Join("*", name), filepath.Join("*", name+".*")} {
			if found, err := filepath.Glob(filepath.Join(folder, pattern)); err == nil && len(found) > 0 {
				return true
			}
		}
		if strings.Contains(read(t, file), strconv.Quote(name)) {
			return true
		}
	}
	return false
}

// Every row of docs/COMPAT.md ends in the names of tests. They exist, with the cases that it names.
func TestEveryRowOfCompatNamesATestThatExists(t *testing.T) {
	text, err := os.ReadFile("docs/COMPAT.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t)
	for number, line := range strings.Split(string(text), "\n") {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|--") || strings.HasPrefix(line, "| --") || strings.Contains(line, "| Test |") {
			continue
		}
		if len(cells) < 3 {
			t.Errorf("docs/COMPAT.md:%d has %d cells, want behaviour, how, test", number+1, len(cells))
			continue
		}
		if strings.Contains(cells[len(cells)-1], "``") {
			t.Errorf("docs/COMPAT.md:%d names a test without a name: %s", number+1, line)
		}
		names := shownBy.FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(names) == 0 {
			t.Errorf("docs/COMPAT.md:%d names no test: %s", number+1, line)
		}
		for _, name := range names {
			if len(tests[name[1]]) == 0 {
				t.Errorf("docs/COMPAT.md:%d names %s, which does not exist", number+1, name[1])
				continue
			}
			for _, one := range strings.Split(name[2], ", ") {
				if one != "" && !strings.HasPrefix(one, "in ") && !caseExists(t, tests, name[1], one) {
					t.Errorf("docs/COMPAT.md:%d names the case %s of %s, which does not exist", number+1, one, name[1])
				}
			}
		}
	}
}

var (
	linkTarget = regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)]*)?\)`)
	codeSpan   = regexp.MustCompile("`[^`\n]+`")
)

func TestDocumentsLinkToFilesThatExist(t *testing.T) {
	walk(t, func(file string) {
		if path.Ext(file) != ".md" {
			return
		}
		for _, link := range linkTarget.FindAllStringSubmatch(codeSpan.ReplaceAllString(read(t, file), ""), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), link[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", file, link[1])
			}
		}
	})
}

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Za-z0-9_]+)\(`)

// testNames are the files in which a test of each name stands.
func testNames(t *testing.T) map[string][]string {
	names := map[string][]string{}
	walk(t, func(file string) {
		if strings.HasSuffix(file, "_test.go") {
			for _, name := range testFunction.FindAllStringSubmatch(read(t, file), -1) {
				names[name[1]] = append(names[name[1]], file)
			}
		}
	})
	return names
}

func under(name, folder string) bool {
	folder = strings.TrimSuffix(folder, "/")
	return name == folder || strings.HasPrefix(name, folder+"/")
}

func allowed(imported string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool {
		if p == "std" {
			first, _, _ := strings.Cut(imported, "/")
			return !strings.Contains(first, ".")
		}
		return strings.HasPrefix(imported, p)
	})
}

// walk calls visit with every file of the tree, nested modules included. Paths are relative to the
// root.
func walk(t *testing.T, visit func(file string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && file != "." && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "testdata") {
			return fs.SkipDir
		}
		if entry.Type().IsRegular() {
			visit(filepath.ToSlash(file))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// walkGo visits the Go files of the root module.
func walkGo(t *testing.T, visit func(file string)) {
	t.Helper()
	walk(t, func(file string) {
		if path.Ext(file) != ".go" {
			return
		}
		for folder := path.Dir(file); folder != "."; folder = path.Dir(folder) {
			if _, err := os.Stat(path.Join(folder, "go.mod")); err == nil {
				return // a module of its own, with rules of its own
			}
		}
		visit(file)
	})
}

func imports(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, imported)
	}
	return paths
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// Every test that docs/security.md names exists.
func TestEveryClaimOfSecurityNamesATestThatExists(t *testing.T) {
	tests := testNames(t)
	for _, name := range regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`").FindAllStringSubmatch(read(t, "docs/security.md"), -1) {
		if len(tests[name[1]]) == 0 {
			t.Errorf("docs/security.md names %s, which does not exist", name[1])
		}
	}
}

// maxCommentColumns is the width at which comments wrap; a tab counts as four columns.
const maxCommentColumns = 100

// Tables, lists and examples (indented text), markers of generators and addresses may be wider.
var mayBeWide = regexp.MustCompile(`^//(go:|\t|  | \+|.*https?://)`)

func TestCommentsWrap(t *testing.T) {
	walk(t, func(file string) {
		if path.Ext(file) != ".go" || generatedFile.MatchString(read(t, file)) {
			return
		}
		for number, line := range strings.Split(read(t, file), "\n") {
			text := strings.TrimSpace(line)
			if !strings.HasPrefix(text, "//") || mayBeWide.MatchString(text) {
				continue
			}
			if n := len([]rune(strings.ReplaceAll(line, "\t", "    "))); n > maxCommentColumns {
				t.Errorf("%s:%d: the comment is %d columns wide, want at most %d", file, number+1, n, maxCommentColumns)
			}
		}
	})
}

var generatedFile = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT`)
