package manifests

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents are what users read first. Each command in them has to exist.
var documents = []string{"README.md", "CONTRIBUTING.md", "docs/first-steps.md", "docs/install.md"}

var (
	codeBlock  = regexp.MustCompile("(?s)```sh\n(.*?)```") // what the test of pages runs
	bashBlock  = regexp.MustCompile("(?s)```bash\n(.*?)```")
	codeSpan   = regexp.MustCompile("`([^`\n]+)`")
	makeTarget = regexp.MustCompile(`\bmake (?:-s )?([a-z0-9-]+)`)
	localPath  = regexp.MustCompile(`(?:^|\s|\./)((?:samples|config|docs|test|dev)/[A-Za-z0-9_./-]+)`)
)

func TestCommandsInDocumentsExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	for _, document := range documents {
		text, err := os.ReadFile(filepath.Join(root, document))
		if err != nil {
			t.Fatal(err)
		}
		var snippets []string
		for _, block := range append(codeBlock.FindAllStringSubmatch(string(text), -1), bashBlock.FindAllStringSubmatch(string(text), -1)...) {
			snippets = append(snippets, block[1])
		}
		for _, span := range codeSpan.FindAllStringSubmatch(string(text), -1) {
			snippets = append(snippets, span[1])
		}
		for _, snippet := range snippets {
			for _, target := range makeTarget.FindAllStringSubmatch(snippet, -1) {
				commands++
				if !hasTarget(string(makefile), target[1]) {
					t.Errorf("%s says `make %s`; the Makefile has no such target", document, target[1])
				}
			}
			for _, path := range localPath.FindAllStringSubmatch(snippet, -1) {
				commands++
				if _, err := os.Stat(filepath.Join(root, strings.TrimSuffix(path[1], "/..."))); err != nil {
					t.Errorf("%s names %s, which does not exist", document, path[1])
				}
			}
		}
	}
	if commands < 20 {
		t.Errorf("only %d commands and paths were found: the expressions of this test no longer match the documents", commands)
	}
}

// hasTarget knows that bench-% stands for the programs in test/bench.
func hasTarget(makefile, target string) bool {
	if bench, ok := strings.CutPrefix(target, "bench-"); ok {
		_, err := os.Stat(filepath.Join(root, "test", "bench", bench, "main.go"))
		return err == nil && regexp.MustCompile(`(?m)^bench-%:`).MatchString(makefile)
	}
	return regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(target) + `:`).MatchString(makefile)
}

func TestTheServiceInTheReadmeIsASample(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```yaml\n")
	manifest, _, closed := strings.Cut(rest, "```")
	sample, err := os.ReadFile(filepath.Join(root, "samples/hello-go/service.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !found || !closed || !strings.HasPrefix(string(sample), manifest) {
		t.Errorf("README.md shows\n%s\nwhich differs from samples/hello-go/service.yaml", manifest)
	}
}

// What runs in the tests of pages leaves the installation alone: other tests use it meanwhile.
func TestHowToPagesDoNotChangeTheInstallation(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs/how-to/*.md"))
	if err != nil || len(pages) < 10 {
		t.Fatalf("found %d pages: %v", len(pages), err)
	}
	changes := regexp.MustCompile(`ebb(-[a-z]+)?\.yaml|\bhelm\b|kubectl (drain|cordon)|--all-namespaces --all|delete (apiservice|namespace|crd)|-n knative-serving (apply|delete|patch|scale|edit|set)`)
	apart := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range codeBlock.FindAllStringSubmatch(string(text), -1) {
			if found := changes.FindString(block[1]); found != "" {
				t.Errorf("%s: %q changes the installation: make it a bash block", page, found)
			}
		}
		if strings.Contains(string(text), "```bash\n") {
			apart++
			if !strings.Contains(string(text), "<!-- Blocks of bash") {
				t.Errorf("%s does not say why it has blocks that the test of pages does not run", page)
			}
		}
	}
	if apart != 4 {
		t.Errorf("%d pages have bash blocks, want those of high availability, the move from Knative, upgrade and uninstall", apart)
	}
}

// What the test of pages leaves out, test/release runs, or test/migration.
func TestBlocksThatChangeTheInstallationAreRun(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(root, "test/release/release_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	calls := regexp.MustCompile(`s\.page\("([^"]+)", "([^"]+)"`).FindAllStringSubmatch(string(source), -1)
	if source, err = os.ReadFile(filepath.Join(root, "test/migration/run.go")); err != nil {
		t.Fatal(err)
	}
	for _, flag := range regexp.MustCompile(`"migrate", "(--[a-z]+)"`).FindAllStringSubmatch(string(source), -1) {
		calls = append(calls, []string{"", "how-to/move-from-knative.md", "kubectl ebb migrate " + flag[1]})
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs/how-to/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range bashBlock.FindAllStringSubmatch(string(text), -1) {
			blocks++
			if !slices.ContainsFunc(calls, func(call []string) bool {
				return call[1] == "how-to/"+filepath.Base(page) && strings.Contains(block[1], call[2])
			}) {
				t.Errorf("no test runs this block of %s:\n%s", page, block[1])
			}
		}
	}
	if blocks < 9 {
		t.Errorf("found only %d blocks", blocks)
	}
}
