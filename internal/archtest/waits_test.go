package archtest

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A test must not depend on the clock: a machine under load passes any bound of seconds. A bound of minutes only ends a
// test that has failed already. A sleep of an hour stands for code that hangs: no test waits until it ends.
const (
	leastBound = time.Minute
	leastHang  = time.Hour
)

// finding is a wait that depends on the clock. An entry of the list of waits names its place.
type finding struct {
	place string // file:function
	line  int
	words string
}

func (f finding) String() string {
	file, function, _ := strings.Cut(f.place, ":")
	return fmt.Sprintf("%s:%d: %s: %s", file, f.line, function, f.words)
}

// waits maps functions of the standard library that wait to the argument that says how long, or until when.
var waits = map[string]map[string]int{
	"time": {"Sleep": 0, "After": 0, "AfterFunc": 0, "NewTimer": 0, "NewTicker": 0, "Tick": 0},
	"context": {"WithTimeout": 1, "WithTimeoutCause": 1, "WithDeadline": 1,
		"WithDeadlineCause": 1},
	"net": {"DialTimeout": 2},
}

// waitMethods are found by name, whatever their type. Their first argument says until when.
var waitMethods = []string{"SetDeadline", "SetReadDeadline", "SetWriteDeadline"}

// waitFields of the standard library's types say how long.
var waitFields = map[string][]string{
	"net": {"Dialer.Timeout", "Dialer.KeepAlive"}, "net/http": {"Client.Timeout", "Server.ReadTimeout"},
	"os/exec": {"Cmd.WaitDelay"},
}

// judge looks for waits in the tests of one package.
type judge struct {
	fset *token.FileSet
	root string
	info *types.Info
	pkg  []*ast.File

	test    func(*ast.File) bool // says which files are judged
	sources map[types.Object][]ast.Expr
	bubbles []span // where testing/synctest's clock runs
	stepped []span // calls that have a daemon follow the clock of the test
	callees map[ast.Expr]bool
	found   []finding
}

type span struct{ from, to token.Pos }

func (s span) holds(p token.Pos) bool { return s.from <= p && p < s.to }

// waitsIn returns the waits of a package's tests that depend on the clock.
func waitsIn(fset *token.FileSet, root string, files []*ast.File, info *types.Info,
	test func(*ast.File) bool) []finding {
	j := &judge{fset: fset, root: root, info: info, pkg: files, test: test, sources: map[types.Object][]ast.Expr{},
		callees: map[ast.Expr]bool{}}
	j.findSources()
	j.findBubbles()
	j.findStepped()
	for _, f := range files {
		if test(f) {
			ast.Inspect(f, j.look)
		}
	}
	slices.SortFunc(j.found, func(a, b finding) int {
		return strings.Compare(fmt.Sprintf("%s %6d %s", a.place, a.line, a.words),
			fmt.Sprintf("%s %6d %s", b.place, b.line, b.words))
	})
	return slices.Compact(j.found)
}

// look judges one node.
func (j *judge) look(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CallExpr:
		j.callees[ast.Unparen(n.Fun)] = true
		j.call(n)
		j.words(n.Args)
	case *ast.SelectorExpr:
		j.renamed(n)
	case *ast.BasicLit:
		if text, ok := plainText(n); ok {
			j.text(n.Pos(), text)
		}
	case *ast.CompositeLit:
		j.words(n.Elts)
		for _, e := range n.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				if name, ok := kv.Key.(*ast.Ident); ok && j.isWaitField(n.Type, name.Name) {
					j.refuse(kv.Value, name.Name)
				}
			}
		}
	case *ast.AssignStmt:
		for i, l := range n.Lhs {
			if s, ok := l.(*ast.SelectorExpr); ok && s.Sel.Name == "WaitDelay" && len(n.Lhs) == len(n.Rhs) {
				j.refuse(n.Rhs[i], s.Sel.Name)
			}
		}
	case *ast.BinaryExpr:
		j.compare(n)
	}
	return true
}

func (j *judge) call(n *ast.CallExpr) {
	s, ok := ast.Unparen(n.Fun).(*ast.SelectorExpr)
	if !ok {
		if name, ok := ast.Unparen(n.Fun).(*ast.Ident); ok { // of a package imported with a dot
			if f, ok := j.info.Uses[name].(*types.Func); ok && f.Pkg() != nil && f.Signature().Recv() == nil {
				j.wait(n, f.Pkg().Path(), f.Name())
			}
		}
		return
	}
	if pkg := j.imported(s.X); pkg != "" {
		j.wait(n, pkg, s.Sel.Name)
		return
	}
	switch {
	case slices.Contains(waitMethods, s.Sel.Name) && len(n.Args) == 1:
		j.refuse(n.Args[0], s.Sel.Name)
	case s.Sel.Name == "Reset" && len(n.Args) == 1 && j.isOfTime(s.X, "Timer", "Ticker"):
		j.refuse(n.Args[0], "Reset")
	case (s.Sel.Name == "After" || s.Sel.Name == "Before") && len(n.Args) == 1:
		if c, ok := ast.Unparen(s.X).(*ast.CallExpr); ok && j.isCall(c, "time", "Now") {
			j.refuse(n.Args[0], "time.Now()."+s.Sel.Name)
		}
	}
}

// wait judges a call of a function of the standard library.
func (j *judge) wait(n *ast.CallExpr, pkg, name string) {
	arg, ok := waits[pkg][name]
	if !ok || arg >= len(n.Args) {
		return
	}
	if name != "Sleep" {
		j.refuse(n.Args[arg], pkg+"."+name)
		return
	}
	if l := j.least(n.Args[0], nil); !l.known || l.wait < leastHang {
		j.report(n.Pos(), "time.Sleep")
	}
}

// compare refuses a time that passed beside a bound of seconds.
func (j *judge) compare(n *ast.BinaryExpr) {
	if !slices.Contains([]token.Token{token.LSS, token.LEQ, token.GTR, token.GEQ}, n.Op) {
		return
	}
	for _, side := range [][2]ast.Expr{{n.X, n.Y}, {n.Y, n.X}} {
		for _, e := range append([]ast.Expr{side[0]}, j.of(side[0])...) {
			if c, ok := ast.Unparen(e).(*ast.CallExpr); ok && (j.isCall(c, "time", "Since") || j.isCall(c, "time", "Until")) {
				j.refuse(side[1], "a time that passed, compared")
			}
		}
	}
}

// refuse reports a bound that is too short, or whose length cannot be seen.
func (j *judge) refuse(bound ast.Expr, what string) {
	l := j.least(bound, nil)
	switch {
	case !l.known:
		j.report(bound.Pos(), what+" with a length that is no constant")
	case l.wait > 0 && l.wait < leastBound:
		if len(l.short) == 0 {
			l.short = []short{{bound.Pos(), l.wait}}
		}
		for _, s := range l.short {
			if !j.inBubble(bound.Pos()) {
				j.report(s.at, fmt.Sprintf("%s after %v", what, s.wait))
			}
		}
	}
}

func (j *judge) report(at token.Pos, words string) {
	if j.inBubble(at) {
		return
	}
	p := j.fset.Position(at)
	file, err := filepath.Rel(j.root, p.Filename)
	if err != nil {
		file = p.Filename
	}
	j.found = append(j.found, finding{filepath.ToSlash(file) + ":" + j.function(at), p.Line, words})
}

// function names the declaration that holds a position.
func (j *judge) function(at token.Pos) string {
	for _, f := range j.pkg {
		for _, d := range f.Decls {
			if at < d.Pos() || at >= d.End() {
				continue
			}
			switch d := d.(type) {
			case *ast.FuncDecl:
				return declared(d)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if v, ok := s.(*ast.ValueSpec); ok && v.Pos() <= at && at < v.End() {
						return v.Names[0].Name
					}
				}
			}
		}
	}
	return "?"
}

func declared(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return d.Name.Name
	}
	e := d.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
			continue
		case *ast.IndexExpr:
			e = x.X
			continue
		case *ast.IndexListExpr:
			e = x.X
			continue
		case *ast.Ident:
			return x.Name + "." + d.Name.Name
		}
		return d.Name.Name
	}
}

// length is the least that an expression may be: how long, or how long from now.
type length struct {
	wait  time.Duration
	known bool
	short []short // constants that make it shorter than leastBound
}

type short struct {
	at   token.Pos
	wait time.Duration
}

func constantly(wait time.Duration, at token.Pos) length {
	l := length{wait: wait, known: true}
	if wait > 0 && wait < leastBound {
		l.short = []short{{at, wait}}
	}
	return l
}

// least returns the least value of an expression: constants, sums and products of them, and variables, fields and
// parameters with all that this package gives them.
func (j *judge) least(e ast.Expr, seen []types.Object) length {
	e = ast.Unparen(e)
	if v := j.info.Types[e].Value; v != nil {
		if i := constant.ToInt(v); i.Kind() == constant.Int {
			if n, exact := constant.Int64Val(i); exact {
				return constantly(time.Duration(n), e.Pos())
			}
		}
		return length{}
	}
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return combined(e.Op, j.least(e.X, seen), j.least(e.Y, seen))
	case *ast.CallExpr:
		return j.called(e, seen)
	case *ast.CompositeLit:
		return length{known: j.isOfTime(e, "Time") && len(e.Elts) == 0} // no deadline
	case *ast.Ident, *ast.SelectorExpr:
		o := j.object(e)
		if o == nil || slices.Contains(seen, o) {
			return length{}
		}
		return j.given(o, append(slices.Clip(seen), o))
	}
	return length{}
}

// given returns the least of what the package gives a variable, a field or a parameter outside of bubbles.
func (j *judge) given(o types.Object, seen []types.Object) length {
	out, unknown := length{}, len(j.sources[o]) == 0
	for _, s := range j.sources[o] {
		if j.inBubble(s.Pos()) {
			continue
		}
		l := j.least(s, seen)
		unknown = unknown || !l.known
		if l.known && l.wait > 0 && (!out.known || l.wait < out.wait) {
			out.wait, out.known = l.wait, true
		}
		out.short = append(out.short, l.short...)
	}
	if unknown && len(out.short) == 0 {
		return length{}
	}
	out.known = true
	return out
}

// called returns the least that a call may return.
func (j *judge) called(c *ast.CallExpr, seen []types.Object) length {
	if t, ok := j.info.Types[c.Fun]; ok && t.IsType() && len(c.Args) == 1 { // a conversion
		return j.least(c.Args[0], seen)
	}
	if f, ok := ast.Unparen(c.Fun).(*ast.Ident); ok && (f.Name == "max" || f.Name == "min") {
		out := j.least(c.Args[0], seen)
		for _, a := range c.Args[1:] {
			l := j.least(a, seen)
			switch {
			case f.Name == "max" && l.known && (!out.known || l.wait > out.wait):
				out = l
			case f.Name == "min" && (!l.known || out.known && l.wait < out.wait):
				out = l
			}
		}
		return out
	}
	s, ok := ast.Unparen(c.Fun).(*ast.SelectorExpr)
	switch {
	case j.isCall(c, "time", "Now"):
		return length{known: true}
	case j.isCall(c, "time", "Until") && len(c.Args) == 1:
		return j.least(c.Args[0], seen)
	case ok && s.Sel.Name == "Add" && len(c.Args) == 1:
		return combined(token.ADD, j.least(s.X, seen), j.least(c.Args[0], seen))
	}
	return length{}
}

func combined(op token.Token, a, b length) length {
	out := length{known: a.known && b.known, short: slices.Concat(a.short, b.short)}
	switch op {
	case token.ADD:
		out.wait = a.wait + b.wait
	case token.SUB:
		out.wait = a.wait - b.wait
	case token.MUL:
		out.wait = a.wait * b.wait
	case token.QUO:
		if out.known = out.known && b.wait != 0; out.known {
			out.wait = a.wait / b.wait
		}
	default:
		out.known = false
	}
	if !out.known || out.wait >= leastBound {
		out.short = nil
	}
	return out
}
