package reference

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// binding is what parameters, variables and fields are on one way through the code.
type binding map[any]ast.Expr

// field is a field of what a variable holds.
type field struct {
	base types.Object
	name string
}

// Unknown stands in a text for what is known only when the code runs.
const Unknown = "..."

// Texts returns the texts that some expressions can have together, wherever in the code their parts
// come from: constants, formats, parameters, variables, fields of literals, results.
func (s *Source) Texts(expressions ...ast.Expr) [][]string {
	rows := map[string][]string{}
	s.follow(expressions, binding{}, 0, rows)
	sorted := slices.Collect(maps.Values(rows))
	slices.SortFunc(sorted, slices.Compare)
	return sorted
}

// Text is what an expression says by itself, without what comes from elsewhere.
func (s *Source) Text(x ast.Expr) string {
	e := evaluation{Source: s, binding: binding{}, last: true}
	return e.text(x)
}

const (
	mostSteps  = 12
	mostNested = 20
)

func (s *Source) follow(expressions []ast.Expr, b binding, depth int, rows map[string][]string) {
	e := evaluation{Source: s, binding: b, last: depth >= mostSteps}
	row := make([]string, len(expressions))
	for i, x := range expressions {
		row[i] = e.text(x)
		if e.open != nil {
			for _, more := range e.open {
				next := maps.Clone(b)
				maps.Copy(next, more)
				s.follow(expressions, next, depth+1, rows)
			}
			return
		}
	}
	rows[strings.Join(row, "\x00")] = row
}

// evaluation is of one expression under a binding. open are the ways to go on, if the binding does
// not say enough.
type evaluation struct {
	*Source
	binding binding
	last    bool
	open    []binding
	nested  int
	// within is true in a part of a longer text. Of it only parameters are followed: what else it
	// can be is no help to a reader.
	within bool
}

func (e *evaluation) text(x ast.Expr) string {
	if x == nil || e.open != nil {
		return ""
	}
	if e.nested++; e.nested > mostNested { // a variable that is set to something of itself
		e.nested--
		return Unknown
	}
	defer func() { e.nested-- }()
	if v := e.info.Types[x].Value; v != nil {
		if v.Kind() == constant.String {
			return constant.StringVal(v)
		}
		return v.String()
	}
	switch x := x.(type) {
	case *ast.ParenExpr:
		return e.text(x.X)
	case *ast.BinaryExpr:
		if x.Op == token.ADD {
			return e.part(x.X) + e.part(x.Y)
		}
	case *ast.KeyValueExpr:
		return e.text(x.Key) // a label of a metric
	case *ast.CompositeLit:
		return e.list(x.Elts)
	case *ast.IndexExpr:
		if table, ok := e.value(x.X).(*ast.CompositeLit); ok {
			key := e.text(x.Index)
			for _, pair := range table.Elts {
				if pair, ok := pair.(*ast.KeyValueExpr); ok && e.text(pair.Key) == key {
					return e.text(pair.Value)
				}
			}
		}
	case *ast.Ident:
		if o, ok := e.object(x).(*types.Var); ok {
			return e.variable(o)
		} else if x.Name == "nil" {
			return ""
		}
	case *ast.SelectorExpr:
		if o, ok := e.object(x).(*types.Var); ok && o.IsField() {
			return e.field(x, o)
		} else if ok {
			return e.variable(o)
		}
	case *ast.CallExpr:
		return e.call(x)
	}
	if e.open != nil {
		return ""
	}
	return Unknown
}

// part is the text of a part.
func (e *evaluation) part(x ast.Expr) string {
	was := e.within
	e.within = true
	defer func() { e.within = was }()
	return e.text(x)
}

func (e *evaluation) list(parts []ast.Expr) string {
	var texts []string
	for _, p := range parts {
		if text := e.text(p); text != "" {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, ", ")
}

// value is where an expression comes from, as far as the binding says: a literal or a call.
func (e *evaluation) value(x ast.Expr) ast.Expr {
	for range mostNested {
		switch at := x.(type) {
		case *ast.ParenExpr:
			x = at.X
			continue
		case *ast.UnaryExpr:
			x = at.X
			continue
		case *ast.Ident:
			o, ok := e.object(at).(*types.Var)
			if !ok {
				return nil
			}
			if x, ok = e.binding[o]; ok {
				continue
			}
			if e.open = e.ways(o); e.open == nil && e.results[o] {
				return &ast.CompositeLit{}
			}
			return nil
		case *ast.CallExpr:
			if bound, ok := e.binding[at]; ok {
				x = bound
				continue
			}
			e.open = e.backs(at)
			return nil
		}
		return x
	}
	return nil
}

// ways are what a variable or parameter can be.
func (e *evaluation) ways(o types.Object) (ways []binding) {
	if e.last || !ours(o) || isError(o.Type()) {
		return nil
	}
	p, isParam := e.params[o]
	if isParam {
		for _, call := range e.calls[p.function] {
			ways = append(ways, arguments(p, call))
		}
	}
	if e.within && !isParam {
		return nil
	}
	for _, x := range e.set[o] {
		ways = append(ways, binding{o: x})
	}
	r, ok := e.split[o]
	if !ok {
		return ways
	}
	for _, back := range e.returns[e.object(r.call.Fun)] {
		if len(back) == len(r.all) {
			way := binding{}
			for i, o := range r.all {
				if o != nil {
					way[o] = back[i]
				}
			}
			ways = append(ways, way)
		}
	}
	return ways
}

func (e *evaluation) variable(o types.Object) string {
	if x, ok := e.binding[o]; ok {
		return e.text(x)
	}
	if e.open = e.ways(o); e.open == nil {
		return Unknown
	}
	return ""
}

// field is the text of a field: of the literal that the binding says, or else of any literal of the
// struct and any assignment. All fields of a literal are bound together.
func (e *evaluation) field(x *ast.SelectorExpr, o *types.Var) string {
	if e.within {
		return Unknown
	}
	key := field{e.object(x.X), o.Name()}
	if bound, ok := e.binding[key]; ok {
		return e.text(bound)
	}
	from := e.value(x.X)
	if e.open != nil {
		return ""
	}
	structure := e.named(x.X)
	if e.last || structure == nil || !ours(structure) {
		return Unknown
	}
	fields, ok := structure.Type().Underlying().(*types.Struct)
	if !ok {
		return Unknown
	}
	literals := e.made[structure]
	if literal, ok := from.(*ast.CompositeLit); ok {
		literals = []*ast.CompositeLit{literal}
	}
	for _, literal := range literals {
		way := binding{}
		for i := range fields.NumFields() {
			way[field{key.base, fields.Field(i).Name()}] = element(literal, i, fields.Field(i).Name())
		}
		e.open = append(e.open, way)
	}
	for _, value := range e.set[o] {
		e.open = append(e.open, binding{key: value})
	}
	if e.open == nil {
		return Unknown
	}
	return ""
}

func ours(o types.Object) bool {
	return o.Pkg() != nil && strings.HasPrefix(o.Pkg().Path(), module)
}

// element is a field of a literal, or nil.
func element(literal *ast.CompositeLit, i int, name string) ast.Expr {
	for at, part := range literal.Elts {
		pair, keyed := part.(*ast.KeyValueExpr)
		switch {
		case keyed && pair.Key.(*ast.Ident).Name == name:
			return pair.Value
		case !keyed && at == i:
			return part
		}
	}
	return nil
}

func arguments(p param, call *ast.CallExpr) binding {
	b := binding{}
	for i, o := range p.all {
		switch {
		case o == nil:
		case p.variadic && i == len(p.all)-1 && !call.Ellipsis.IsValid():
			b[o] = &ast.CompositeLit{Elts: call.Args[min(i, len(call.Args)):]}
		case i < len(call.Args):
			b[o] = call.Args[i]
		}
	}
	return b
}

func (e *evaluation) call(x *ast.CallExpr) string {
	switch e.callee(x) {
	case "fmt.Sprintf", "fmt.Errorf":
		return e.format(x.Args)
	case "append", "slices.Concat":
		return e.list(x.Args)
	case "slices.Clone":
		return e.text(x.Args[0])
	case "errors.New":
		return e.text(x.Args[0])
	case "String":
		return Unknown
	}
	if t := e.info.Types[x.Fun]; t.IsType() && len(x.Args) == 1 {
		return e.text(x.Args[0]) // a conversion
	}
	if bound, ok := e.binding[x]; ok {
		return e.text(bound)
	}
	if e.open = e.backs(x); e.open == nil {
		return Unknown
	}
	return ""
}

// backs are what a call returns first.
func (e *evaluation) backs(x *ast.CallExpr) (ways []binding) {
	callee := e.object(x.Fun)
	if e.last || callee == nil {
		return nil
	}
	for _, back := range e.returns[callee] {
		way := binding{x: back[0]}
		if f, ok := callee.(*types.Func); ok {
			for p := range f.Signature().Params().Variables() {
				if known, ok := e.params[p]; ok {
					maps.Copy(way, arguments(known, x))
				}
			}
		}
		ways = append(ways, way)
	}
	return ways
}

// callee names what is called, as package.Function or as method.
func (s *Source) callee(x *ast.CallExpr) string {
	if x.Fun == sprintf {
		return "fmt.Sprintf"
	}
	switch o := s.object(x.Fun).(type) {
	case nil:
		return ""
	case *types.Func:
		if o.Signature().Recv() == nil && o.Pkg() != nil {
			return o.Pkg().Name() + "." + o.Name()
		}
		return o.Name()
	default:
		return o.Name()
	}
}

var verb = regexp.MustCompile(`%[-+# 0]*[0-9.]*[a-zA-Z%]`)

// format is the text of a format and its arguments.
func (e *evaluation) format(args []ast.Expr) string {
	text := e.text(args[0])
	if (text == "%s" || text == "%v") && len(args) == 2 {
		return e.text(args[1])
	}
	i := 0
	return verb.ReplaceAllStringFunc(text, func(v string) string {
		if v == "%%" {
			return "%"
		}
		i++
		text := Unknown
		if i < len(args) && e.info.Types[args[i]].Value != nil {
			text = e.text(args[i])
		}
		if strings.HasSuffix(v, "q") {
			return `"` + text + `"`
		}
		return text
	})
}

func isError(t types.Type) bool {
	return types.Identical(t, types.Universe.Lookup("error").Type())
}
