package reference

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"
)

// processes are the packages whose variables more, or others, than their folder read.
var processes = map[string]string{
	"internal/component": "activator, autoscaler, controller, courier, webhook",
	"cmd/ebb":            "ebb",
}

// Variable is one of the environment of a process.
type Variable struct{ Of, Name, Default, Use string }

// Environment lists the variables that components read: each call of a method of env.Reader. Its
// first argument is the name, its last one what the variable is for.
func (s *Source) Environment() []Variable {
	var all []Variable
	s.Calls(func(pkg, callee string, x *ast.CallExpr) {
		method, ok := s.object(x.Fun).(*types.Func)
		if !ok || method.Pkg() == nil || method.Pkg().Path() != module+"internal/env" || method.Signature().Recv() == nil || len(x.Args) < 2 {
			return
		}
		usual := ast.Expr(nil)
		if len(x.Args) > 2 {
			usual = x.Args[1]
		}
		for _, row := range s.Texts(x.Args[0], usual, x.Args[len(x.Args)-1]) {
			v := Variable{component(pkg), row[0], row[1], row[2]}
			if of := processes[pkg]; of != "" {
				v.Of = of
			}
			switch {
			case strings.Contains(v.Default, Unknown):
				v.Default = ""
			case strings.HasPrefix(callee, "Needed"):
				v.Default = "must be set"
			case v.Default != "":
				v.Default = code(v.Default)
			}
			all = append(all, v)
		}
	}, "activator", "autoscaler", "cmd/ebb", "controller", "courier", "dashboard", "internal/component", "node-agent", "webhook")
	slices.SortFunc(all, func(a, b Variable) int { return strings.Compare(a.Of+" "+a.Name, b.Of+" "+b.Name) })
	return all
}

func environment(s *Source) string {
	b := page("Environment", "The variables that the components read when they start. A component that cannot read one ends, and names all that are wrong.\n"+
		"What begins with `EBB_` is Ebb's own; Knative or Kubernetes know the others by the same names. Settings that apply while\n"+
		"Ebb runs are in [Settings](../settings.md). [The data path](../data-path.md#environment-of-queue-proxy) has the environment of\n"+
		"queue-proxy. `ebb` is all components in one process: it reads what they read, too. There is one flag, Knative's\n"+
		"`-reconciliation-timeout` of the controller.")
	var rows [][]string
	for _, v := range s.Environment() {
		rows = append(rows, []string{v.Of, code(v.Name), v.Default, v.Use})
	}
	table(b, []string{"Component", "Variable", "Default", "Meaning"}, rows)
	return b.String()
}
