package reference

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/test/golden"
)

const root = "../.."

var load = sync.OnceValues(func() (*Source, error) { return Load(root) })

func TestTheReferenceIsWhatTheCodeSays(t *testing.T) {
	source, err := load()
	if err != nil {
		t.Fatal(err)
	}
	pages, err := Pages(source, root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range pages {
		golden.File(t, filepath.Join(root, "docs", "reference", name), want)
	}
}

// notListed are annotations of api/names that are nobody's to set, and why they are not on the
// page.
var notListed = map[string]string{
	"LastPinnedAnnotation":       "it is carried along for tools of Knative",
	"LastAppliedAnnotation":      "it is kubectl's",
	"DefaultContainerAnnotation": "it is kubectl's",
}

func TestEveryAnnotationIsListed(t *testing.T) {
	listed := map[string]bool{}
	for _, a := range names.Annotations {
		if a.Effect == "" || listed[a.Key] || a.Values.Text != "" && a.Default == "" {
			t.Errorf("%s is listed twice, or lacks its default or effect", a.Key)
		}
		for _, key := range append(a.Older, a.Key) {
			listed[key] = true
		}
	}
	source, err := load()
	if err != nil {
		t.Fatal(err)
	}
	constants := source.Constants("api/names")
	for name, key := range constants {
		_, not := notListed[name]
		if isAnnotation := strings.Contains(name, "Annotation"); isAnnotation && listed[key] == not {
			t.Errorf("%s (%s) must be in names.Annotations, or else in notListed", name, key)
		}
	}
	for name := range notListed {
		if constants[name] == "" {
			t.Errorf("there is no %s any more", name)
		}
	}
}

// saysItAll are messages that need no entry in docs/troubleshooting.md, and why.
var saysItAll = map[string]string{
	"Created": progress, "ConfigurationReady": progress, "LatestReadyUpdate": progress, "RevisionReady": progress,
	"ScaledUp": progress, "ScaledDown": progress,

	"refused: asleep": toActivators, "refused: limit": toActivators, "refused: revision": toActivators,
	"use GET":         aRequest,
	"request timeout": "each component says which timer instead",
}

const (
	progress     = "it says how things go on"
	toActivators = "only activators get it"
	aRequest     = "it says what of the request is wrong"
)

// Every reason, event and answer is in docs/troubleshooting.md, or says it all. What begins with
// 400, 501 or 505 says what of the request is wrong, as the page has it.
func TestEveryMessageHasItsEntryInTroubleshooting(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for page, column := range map[string]int{"conditions.md": 0, "answers.md": 1} {
		reference, err := os.ReadFile(filepath.Join(root, "docs/reference", page))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(reference)) {
			cells := strings.Split(strings.TrimPrefix(line, "| "), " | ")
			if !strings.HasPrefix(line, "| ") || !strings.Contains(line, "`") || slices.Contains([]string{"400", "501", "505"}, cells[0]) {
				continue
			}
			message := strings.Trim(cells[column], "`")
			found[message] = true
			if !strings.Contains(string(text), "`"+message+"`") && saysItAll[message] == "" {
				t.Errorf("%s: %q has no entry in docs/troubleshooting.md", page, message)
			}
		}
	}
	for message := range saysItAll {
		if !found[message] {
			t.Errorf("%q is no message any more", message)
		}
	}
	if len(found) < 80 {
		t.Errorf("only %d messages were found", len(found))
	}
}

// The pages are read out of the code. What is known otherwise must be among what was found.
func TestTheReferenceMissesNothingThatIsKnown(t *testing.T) {
	source, err := load()
	if err != nil {
		t.Fatal(err)
	}
	conditions, metrics := conditions(source), metrics(source)
	for _, pkg := range []string{"api/serving/v1", "api/serving/v1beta1", "api/autoscaling/v1alpha1"} {
		for name, reason := range source.Constants(pkg) {
			if strings.HasPrefix(name, "Reason") && !strings.Contains(conditions, "`"+reason+"`") {
				t.Errorf("no condition has the reason %s", reason)
			}
		}
	}
	word := regexp.MustCompile(`\b(ebb|kn)_[a-z0-9_:]+`)
	found := 0
	for _, file := range []string{"rules.yaml", "dashboards/*.json"} {
		files, err := filepath.Glob(filepath.Join(root, "config/monitoring", file))
		if err != nil || len(files) == 0 {
			t.Fatalf("%d files %s: %v", len(files), file, err)
		}
		for _, path := range files {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range word.FindAllString(string(text), -1) {
				if strings.Contains(name, ":") || strings.HasSuffix(name, "_name") {
					continue // a recording rule or a label
				}
				found++
				family := regexp.MustCompile("_(bucket|sum|count)$").ReplaceAllString(name, "")
				if !strings.Contains(metrics, "`"+name+"`") && !strings.Contains(metrics, "`"+family+"`") {
					t.Errorf("%s asks for %s, which no component has", path, name)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d metrics were found in config/monitoring", found)
	}
}
