package archtest

import (
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// tree is the source of the module, whatever the build tags of its files. It is checked against the source of the
// packages that define durations; all others of the standard library and of other modules are empty. That needs no
// compiled package and takes seconds; constants of larder's own packages are known.
type tree struct {
	root  string // of the module larder
	fset  *token.FileSet
	rooms map[string]*room // by import path
	std   types.ImporterFrom
	empty map[string]*types.Package
}

// room is a folder of source.
type room struct {
	name    string // of its package
	plain   []*ast.File
	inside  []*ast.File // tests in the package
	outside []*ast.File // tests in the package name_test

	pkg *types.Package // of plain, once it is imported
}

// durations are packages whose types and constants say how long.
var durations = []string{"time", "context"}

func readTree(root string) (*tree, error) {
	t := &tree{root: root, fset: token.NewFileSet(), rooms: map[string]*room{}, empty: map[string]*types.Package{}}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	build.Default.GOROOT = strings.TrimSpace(string(goroot)) // a test built with -trimpath does not know it
	t.std = importer.ForCompiler(token.NewFileSet(), "source", nil).(types.ImporterFrom)
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != root && (base[0] == '.' || slices.Contains([]string{"testdata", "bin", "out"}, base)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || !d.Type().IsRegular() {
			return nil
		}
		f, err := parser.ParseFile(t.fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !isOfTests(name, f) { // its declarations are enough
			for _, d := range f.Decls {
				if d, ok := d.(*ast.FuncDecl); ok {
					d.Body = nil
				}
			}
		}
		dir, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		t.add(path.Join("larder", filepath.ToSlash(dir)), name, f)
		return nil
	})
	return t, err
}

func (t *tree) add(importPath, file string, f *ast.File) {
	r := t.rooms[importPath]
	if r == nil {
		r = &room{}
		t.rooms[importPath] = r
	}
	switch {
	case !strings.HasSuffix(file, "_test.go"):
		r.plain, r.name = append(r.plain, f), f.Name.Name
	case strings.HasSuffix(f.Name.Name, "_test"):
		r.outside = append(r.outside, f)
	default:
		r.inside, r.name = append(r.inside, f), f.Name.Name
	}
}

// Import implements types.Importer.
func (t *tree) Import(p string) (*types.Package, error) {
	if slices.Contains(durations, p) {
		return t.std.ImportFrom(p, t.root, 0)
	}
	if r := t.rooms[p]; r != nil {
		if r.pkg == nil {
			r.pkg = types.NewPackage(p, r.name) // of imports in a circle, which do not compile
			r.pkg, _ = t.check(p, r.plain, nil, true)
		}
		return r.pkg, nil
	}
	if t.empty[p] == nil {
		name := path.Base(p)
		if len(name) > 1 && name[0] == 'v' && strings.Trim(name[1:], "0123456789") == "" {
			name = path.Base(path.Dir(p))
		}
		t.empty[p] = types.NewPackage(p, name)
		t.empty[p].MarkComplete()
	}
	return t.empty[p], nil
}

// check finds the types that can be known. Errors are passed over: the compiler reports those that are real.
func (t *tree) check(p string, files []*ast.File, own *types.Package, brief bool) (*types.Package, *types.Info) {
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{},
		Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importing{t, own}, Error: func(error) {}, FakeImportC: true, IgnoreFuncBodies: brief}
	pkg, _ := config.Check(p, t.fset, files, info) // it tells the first error
	return pkg, info
}

// importing imports for a test outside its package, which sees that package with its tests.
type importing struct {
	*tree
	own *types.Package
}

func (i importing) Import(p string) (*types.Package, error) {
	if i.own != nil && i.own.Path() == p {
		return i.own, nil
	}
	return i.tree.Import(p)
}

// isOfTests says whether a file holds tests, or helps them: it imports testing, or is of testenv.
func isOfTests(name string, f *ast.File) bool {
	return strings.HasSuffix(name, "_test.go") || strings.Contains(name, "/internal/testenv/") ||
		slices.ContainsFunc(f.Imports, func(s *ast.ImportSpec) bool { return s.Path.Value == `"testing"` })
}

// waits returns the waits of the module's tests and of what helps them.
func (t *tree) waits() []finding {
	judged := func(f *ast.File) bool { return isOfTests(t.fset.Position(f.Pos()).Filename, f) }
	var out []finding
	for p, r := range t.rooms {
		files := slices.Concat(r.plain, r.inside)
		var own *types.Package
		if slices.ContainsFunc(files, judged) || len(r.outside) > 0 {
			pkg, info := t.check(p, files, nil, false)
			own = pkg
			out = append(out, waitsIn(t.fset, t.root, files, info, judged)...)
		}
		if len(r.outside) > 0 {
			_, info := t.check(p+"_test", r.outside, own, false)
			out = append(out, waitsIn(t.fset, t.root, r.outside, info, judged)...)
		}
	}
	slices.SortFunc(out, func(a, b finding) int { return strings.Compare(a.place, b.place) })
	return out
}
