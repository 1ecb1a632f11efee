package archtest

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// findSources notes what each variable, field and parameter of the package is given.
func (j *judge) findSources() {
	for _, f := range j.pkg {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for i, l := range n.Lhs {
					if len(n.Lhs) == len(n.Rhs) {
						j.give(j.object(l), n.Rhs[i])
					} else {
						j.give(j.object(l), n.Rhs[0])
					}
				}
			case *ast.ValueSpec:
				for i, name := range n.Names {
					if i < len(n.Values) {
						j.give(j.object(name), n.Values[i])
					}
				}
			case *ast.RangeStmt:
				j.give(j.object(n.Key), n.X)
				j.give(j.object(n.Value), n.X)
			case *ast.CompositeLit:
				j.fields(n)
			}
			return true
		})
	}
	for _, f := range j.pkg { // what functions are given needs the variables that hold functions
		ast.Inspect(f, func(n ast.Node) bool {
			if c, ok := n.(*ast.CallExpr); ok {
				j.parameters(c)
			}
			return true
		})
	}
}

func (j *judge) give(o types.Object, e ast.Expr) {
	if v, ok := o.(*types.Var); ok {
		j.sources[v] = append(j.sources[v], e)
	}
}

// fields notes what a literal gives the fields of a struct, by name or in their order.
func (j *judge) fields(n *ast.CompositeLit) {
	t := j.info.TypeOf(n)
	if t == nil {
		return
	}
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	s, ok := t.Underlying().(*types.Struct)
	if !ok {
		return
	}
	for i, e := range n.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if name, ok := kv.Key.(*ast.Ident); ok {
				j.give(j.info.Uses[name], kv.Value)
			}
		} else if i < s.NumFields() {
			j.give(s.Field(i), e)
		}
	}
}

// parameters notes what a call gives the parameters of a function of the package.
func (j *judge) parameters(c *ast.CallExpr) {
	var functions []*types.Signature
	fun := ast.Unparen(c.Fun)
	switch x := fun.(type) {
	case *ast.IndexExpr:
		fun = x.X
	case *ast.IndexListExpr:
		fun = x.X
	}
	literals := []ast.Expr{fun}
	switch o := j.object(fun).(type) {
	case *types.Func:
		functions = append(functions, o.Origin().Signature())
	case *types.Var:
		literals = append(literals, j.sources[o]...)
	}
	for _, e := range literals {
		if l, ok := ast.Unparen(e).(*ast.FuncLit); ok {
			if s, ok := j.info.TypeOf(l).(*types.Signature); ok {
				functions = append(functions, s)
			}
		}
	}
	for _, s := range functions {
		for i, a := range c.Args {
			if i < s.Params().Len() {
				j.give(s.Params().At(i), a)
			}
		}
	}
}

// of returns what the package gives a variable, a field or a parameter.
func (j *judge) of(e ast.Expr) []ast.Expr {
	if o := j.object(e); o != nil {
		return j.sources[o]
	}
	return nil
}

// object returns what an identifier or a selector names; nil where that is unknown.
func (j *judge) object(e ast.Expr) types.Object {
	switch e := e.(type) {
	case *ast.Ident:
		return j.info.ObjectOf(e)
	case *ast.SelectorExpr:
		return j.info.ObjectOf(e.Sel)
	case *ast.ParenExpr:
		return j.object(e.X)
	}
	return nil
}

// imported returns the path of the package that an expression names, or "".
func (j *judge) imported(e ast.Expr) string {
	if name, ok := e.(*ast.Ident); ok {
		if p, ok := j.info.Uses[name].(*types.PkgName); ok {
			return p.Imported().Path()
		}
	}
	return ""
}

func (j *judge) isCall(c *ast.CallExpr, pkg, name string) bool {
	s, ok := ast.Unparen(c.Fun).(*ast.SelectorExpr)
	return ok && s.Sel.Name == name && j.imported(s.X) == pkg
}

func (j *judge) isOfTime(e ast.Expr, names ...string) bool {
	t := j.info.TypeOf(e)
	if t == nil {
		return false
	}
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	n, ok := t.(*types.Named)
	return ok && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == "time" && slices.Contains(names, n.Obj().Name())
}

func (j *judge) isWaitField(typ ast.Expr, field string) bool {
	s, ok := typ.(*ast.SelectorExpr)
	return ok && slices.Contains(waitFields[j.imported(s.X)], s.Sel.Name+"."+field)
}

// findBubbles finds the code whose clock is testing/synctest's: functions passed to synctest.Test, and declared ones
// that are used nowhere else.
func (j *judge) findBubbles() {
	bodies := map[types.Object]*ast.FuncDecl{}
	uses := map[types.Object][]*ast.Ident{}
	passed := map[*ast.Ident]bool{} // names of functions that are passed to synctest.Test
	for _, f := range j.pkg {
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil && !isEntry(d) {
				bodies[j.info.Defs[d.Name]] = d
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				switch o := j.info.Uses[n].(type) {
				case *types.Func:
					uses[o.Origin()] = append(uses[o.Origin()], n)
				}
			case *ast.CallExpr:
				if j.isCall(n, "testing/synctest", "Test") && len(n.Args) == 2 {
					switch a := ast.Unparen(n.Args[1]).(type) {
					case *ast.FuncLit:
						j.bubbles = append(j.bubbles, span{a.Pos(), a.End()})
					case *ast.Ident:
						passed[a] = true
						for _, e := range j.of(a) {
							j.bubbles = append(j.bubbles, span{e.Pos(), e.End()})
						}
					}
				}
			}
			return true
		})
	}
	for grew := true; grew; {
		grew = false
		for o, d := range bodies {
			outside := func(u *ast.Ident) bool { return !passed[u] && !j.inBubble(u.Pos()) }
			if !j.inBubble(d.Body.Pos()) && len(uses[o]) > 0 && !slices.ContainsFunc(uses[o], outside) {
				j.bubbles = append(j.bubbles, span{d.Pos(), d.End()})
				grew = true
			}
		}
	}
}

// isEntry says whether go test itself calls a function.
func isEntry(d *ast.FuncDecl) bool {
	starts := func(s string) bool { return strings.HasPrefix(d.Name.Name, s) }
	return d.Recv == nil && slices.ContainsFunc([]string{"Test", "Benchmark", "Fuzz", "Example", "init"}, starts)
}

func (j *judge) inBubble(p token.Pos) bool {
	return slices.ContainsFunc(j.bubbles, func(s span) bool { return s.holds(p) })
}
