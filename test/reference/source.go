package reference

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// Source is the code of Ebb, with its types.
type Source struct {
	fset  *token.FileSet
	info  types.Info
	files []*file
	// scopes are the names of packages.
	scopes map[string]*types.Scope
	// calls are all calls of a function of ours, by it or by the variable that holds it.
	calls map[types.Object][]*ast.CallExpr
	// made are all literals of a struct of ours, and set is what variables and fields are set to.
	made map[*types.TypeName][]*ast.CompositeLit
	set  map[types.Object][]ast.Expr
	// split are the variables that are set to one of several results of a call.
	split map[types.Object]result
	// params are where parameters belong, and returns what functions return.
	params  map[types.Object]param
	returns map[types.Object][][]ast.Expr
	// results are named results, which are zero until they are set.
	results map[types.Object]bool
}

type file struct {
	pkg    string // without the name of the module
	syntax *ast.File
}

type param struct {
	function types.Object
	all      []types.Object
	variadic bool
}

type result struct {
	call *ast.CallExpr
	all  []types.Object
}

const module = "ebb.dev/ebb/"

// Load reads the packages of the module that run in a cluster.
func Load(root string) (*Source, error) {
	const mode = packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports
	fset := token.NewFileSet()
	found, err := packages.Load(&packages.Config{Dir: root, Mode: mode, Fset: fset}, "./activator/...", "./api/...", "./autoscaler/...",
		"./cmd/ebb/...", "./controller/...", "./courier/...", "./dashboard/...", "./forward/...", "./ingress/...", "./internal/...", "./node-agent/...",
		"./queue-proxy/...", "./settings/...", "./webhook/...", "./wire/...")
	if err != nil {
		return nil, err
	}
	s := &Source{fset: fset, calls: map[types.Object][]*ast.CallExpr{}, made: map[*types.TypeName][]*ast.CompositeLit{},
		set: map[types.Object][]ast.Expr{}, split: map[types.Object]result{}, params: map[types.Object]param{},
		returns: map[types.Object][][]ast.Expr{}, results: map[types.Object]bool{}, scopes: map[string]*types.Scope{},
		info: types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
			Selections: map[*ast.SelectorExpr]*types.Selection{}}}
	slices.SortFunc(found, func(a, b *packages.Package) int { return cmp.Compare(a.PkgPath, b.PkgPath) })
	for _, p := range found {
		if len(p.Errors) > 0 {
			return nil, fmt.Errorf("load %s: %w", p.PkgPath, p.Errors[0])
		}
		maps.Copy(s.info.Types, p.TypesInfo.Types)
		maps.Copy(s.info.Uses, p.TypesInfo.Uses)
		maps.Copy(s.info.Defs, p.TypesInfo.Defs)
		maps.Copy(s.info.Selections, p.TypesInfo.Selections)
		s.scopes[strings.TrimPrefix(p.PkgPath, module)] = p.Types.Scope()
		if strings.HasPrefix(p.PkgPath, module+"api/client") {
			continue
		}
		for _, syntax := range p.Syntax {
			s.files = append(s.files, &file{strings.TrimPrefix(p.PkgPath, module), syntax})
		}
	}
	for _, f := range s.files {
		s.index(f.syntax)
	}
	return s, nil
}

// index notes what the other methods ask for.
func (s *Source) index(f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Body != nil {
				s.function(s.info.Defs[n.Name], n.Type, n.Body)
			}
		case *ast.CallExpr:
			if callee := s.object(n.Fun); callee != nil {
				s.calls[callee] = append(s.calls[callee], n)
			}
		case *ast.CompositeLit:
			if name := s.named(n); name != nil {
				s.made[name] = append(s.made[name], n)
			}
		case *ast.AssignStmt:
			s.assign(n.Lhs, n.Rhs)
		case *ast.ValueSpec:
			left := make([]ast.Expr, len(n.Names))
			for i, name := range n.Names {
				left[i] = name
			}
			s.assign(left, n.Values)
		}
		return true
	})
}

func (s *Source) function(object types.Object, t *ast.FuncType, body *ast.BlockStmt) {
	p := param{function: object}
	for _, field := range t.Params.List {
		_, p.variadic = field.Type.(*ast.Ellipsis)
		for _, name := range field.Names {
			p.all = append(p.all, s.info.Defs[name])
		}
		if len(field.Names) == 0 {
			p.all = append(p.all, nil)
		}
	}
	for _, one := range p.all {
		if one != nil {
			s.params[one] = p
		}
	}
	if t.Results != nil {
		for _, field := range t.Results.List {
			for _, name := range field.Names {
				s.results[s.info.Defs[name]] = true
			}
		}
	}
	ast.Inspect(body, func(n ast.Node) bool {
		if back, ok := n.(*ast.ReturnStmt); ok && len(back.Results) > 0 {
			s.returns[object] = append(s.returns[object], back.Results)
		}
		_, inner := n.(*ast.FuncLit)
		return !inner
	})
}

func (s *Source) assign(left, right []ast.Expr) {
	objects := make([]types.Object, len(left))
	for i, l := range left {
		objects[i] = s.object(l)
	}
	for i, o := range objects {
		switch {
		case o == nil:
		case len(left) == len(right):
			s.set[o] = append(s.set[o], right[i])
			if f, ok := right[i].(*ast.FuncLit); ok {
				s.function(o, f.Type, f.Body)
			}
		case len(right) == 1:
			if call, ok := right[0].(*ast.CallExpr); ok {
				s.split[o] = result{call, objects}
			}
		}
	}
}

// object is what an expression names: a function, a variable or a field.
func (s *Source) object(e ast.Expr) types.Object {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		if o := s.info.Defs[e]; o != nil {
			return o
		}
		return s.info.Uses[e]
	case *ast.SelectorExpr:
		switch o := s.info.Uses[e.Sel].(type) {
		case *types.Func:
			return o.Origin()
		case *types.Var:
			return o.Origin()
		}
	}
	return nil
}

// named is the type of a literal.
func (s *Source) named(e ast.Expr) *types.TypeName {
	t := s.info.TypeOf(e)
	if pointer, ok := t.(*types.Pointer); ok {
		t = pointer.Elem()
	}
	if n, ok := t.(*types.Named); ok {
		return n.Obj()
	}
	return nil
}

// Constants are the texts of a package's constants, by name.
func (s *Source) Constants(pkg string) map[string]string {
	found := map[string]string{}
	for _, name := range s.scopes[pkg].Names() {
		if c, ok := s.scopes[pkg].Lookup(name).(*types.Const); ok && c.Val().Kind() == constant.String {
			found[name] = constant.StringVal(c.Val())
		}
	}
	return found
}

// Calls visits the calls of functions in the packages below some folders.
func (s *Source) Calls(visit func(pkg, callee string, x *ast.CallExpr), folders ...string) {
	s.each(folders, func(pkg string, n ast.Node) {
		if x, ok := n.(*ast.CallExpr); ok {
			visit(pkg, s.callee(x), x)
		}
	})
}

// Literals visits the literals of a struct in the packages below some folders.
func (s *Source) Literals(name string, visit func(pkg string, x *ast.CompositeLit), folders ...string) {
	s.each(folders, func(pkg string, n ast.Node) {
		if x, ok := n.(*ast.CompositeLit); ok {
			if t := s.named(x); t != nil && t.Pkg() != nil && t.Pkg().Name()+"."+t.Name() == name {
				visit(pkg, x)
			}
		}
	})
}

func (s *Source) each(folders []string, visit func(pkg string, n ast.Node)) {
	for _, f := range s.files {
		if slices.ContainsFunc(folders, func(folder string) bool { return f.pkg == folder || strings.HasPrefix(f.pkg, folder+"/") }) {
			ast.Inspect(f.syntax, func(n ast.Node) bool { visit(f.pkg, n); return true })
		}
	}
}
