// Package reference writes the pages of docs/reference from the code that they are about.
//
// Owns: docs/reference. Reads: the types and literals of the packages that run in a cluster, the
// definitions of kinds in config/crd, the table of annotations, and what admission defaults.
// Writes: docs/reference, by `go test ./test/reference -update`. Never: has a sentence of its own
// about what code says.
package reference

import (
	"fmt"
	"slices"
	"strings"
)

// Pages returns the pages, by their names in docs/reference.
func Pages(source *Source, root string) (map[string]string, error) {
	kinds, err := kinds(root)
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"kinds.md":       kinds,
		"annotations.md": annotations(),
		"environment.md": environment(source),
		"metrics.md":     metrics(source),
		"conditions.md":  conditions(source),
		"answers.md":     answers(source),
		"refusals.md":    refusals(source),
	}, nil
}

// page begins a page.
func page(title, intro string) *strings.Builder {
	b := &strings.Builder{}
	fmt.Fprintf(b, "# %s\n\n<!-- Made from code by `go test ./test/reference -update`. -->\n\n%s\n", title, intro)
	return b
}

// table writes rows in their order, each of them once.
func table(b *strings.Builder, head []string, rows [][]string) {
	fmt.Fprintf(b, "\n| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	before := ""
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(strings.TrimSpace(cell))
		}
		if line := "| " + strings.Join(cells, " | ") + " |\n"; line != before {
			b.WriteString(line)
			before = line
		}
	}
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

func sorted(rows [][]string) [][]string {
	slices.SortFunc(rows, slices.Compare)
	return rows
}

// component is the process in which a package runs.
func component(pkg string) string {
	first, _, _ := strings.Cut(pkg, "/")
	switch first {
	case "forward":
		return "activator, queue-proxy"
	case "internal":
		return "all"
	}
	return first
}
