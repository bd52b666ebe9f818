package reference

import (
	"go/ast"
	"slices"
	"strings"
)

// conditionSets say, by the call that sets a condition, its status, and where the type, the reason
// and the sentence stand among the arguments.
var conditionSets = map[string]string{"MarkFalse": "False", "MarkUnknown": "Unknown", "MarkTrueWithReason": "True"}

// conditions lists every reason of a condition or an event that a component writes.
func conditions(s *Source) string {
	folders := []string{"api", "autoscaler", "controller"}
	var rows, events [][]string
	add := func(pkg string, status string, row []string) {
		if row[1] != "" && row[1] != Unknown {
			rows = append(rows, []string{code(row[1]), row[0], status, row[2]})
		}
	}
	s.Calls(func(pkg, callee string, x *ast.CallExpr) {
		status := conditionSets[callee]
		switch {
		case status != "" && len(x.Args) >= 3:
			for _, row := range s.Texts(x.Args[0], x.Args[1], formatted(x.Args[2:])) {
				add(pkg, status, row)
			}
		case callee == "Event" && len(x.Args) == 4:
			for _, row := range s.Texts(x.Args[2], x.Args[1], x.Args[3]) {
				events = append(events, []string{code(row[0]), row[1], component(pkg), row[2]})
			}
		case callee == "Eventf" && len(x.Args) >= 4:
			for _, row := range s.Texts(x.Args[2], x.Args[1], formatted(x.Args[3:])) {
				events = append(events, []string{code(row[0]), row[1], component(pkg), row[2]})
			}
		}
	}, folders...)
	s.Literals("apis.Condition", func(pkg string, x *ast.CompositeLit) {
		for _, row := range s.Texts(element(x, 0, "Type"), element(x, 0, "Reason"), element(x, 0, "Message"), element(x, 0, "Status")) {
			add(pkg, row[3], row[:3])
		}
	}, folders...)
	// A sentence may come from a function that returns "" as well.
	all := slices.Clone(rows)
	rows = slices.DeleteFunc(rows, func(row []string) bool {
		return row[3] == "" && slices.ContainsFunc(all, func(other []string) bool { return other[3] != "" && slices.Equal(row[:3], other[:3]) })
	})
	b := page("Conditions and events", "Every reason that a component of Ebb gives in a condition of a Service, Configuration, Revision, Route, DomainMapping or\n"+
		"PodAutoscaler, and every event. `...` stands for what is known only when it happens. A Service shows the conditions of\n"+
		"its Configuration and its Route. Of pods, the reason is that of Kubernetes, such as `ImagePullBackOff`.\n"+
		"[Troubleshooting](../troubleshooting.md) says what to do.\n\n## Conditions")
	table(b, []string{"Reason", "Condition", "Status", "Message"}, sorted(rows))
	b.WriteString("\n## Events\n")
	events = slices.DeleteFunc(events, func(row []string) bool { return strings.Contains(row[0], Unknown) })
	table(b, []string{"Reason", "Type", "Component", "Message"}, sorted(events))
	return b.String()
}

// formatted is the call of fmt.Sprintf with the same arguments.
func formatted(args []ast.Expr) ast.Expr {
	return &ast.CallExpr{Fun: sprintf, Args: args}
}
