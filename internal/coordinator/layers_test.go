package coordinator

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// layers are the components from the lowest to the highest, as in the package doc.
var layers = []string{"step", "roster", "needs", "tiering", "flights", "planner", "lifecycle", "Core"}

// TestComponentsKnowOnlyLowerLayers: no field of a component names the type of a component of its own or a higher
// layer, be it behind a pointer, in a table, or in the signature of a function value.
func TestComponentsKnowOnlyLowerLayers(t *testing.T) {
	structs := componentStructs(t, ".")
	for at, name := range layers {
		if structs[name] == nil {
			t.Errorf("component %s is no struct of this package", name)
			continue
		}
		for _, bad := range namesIn(structs[name], layers[at:]) {
			t.Errorf("%s holds %s, which is not below it: give it a function value or an interface", name, bad)
		}
	}
}

// TestLayersAreThoseOfTheDoc: the package doc lists the components in the same order.
func TestLayersAreThoseOfTheDoc(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for line := range strings.Lines(f.Doc.Text()) {
		if first, rest, ok := strings.Cut(strings.TrimPrefix(line, "\t"), "  "); ok && line[0] == '\t' && rest != "" {
			listed = append(listed, first)
		}
	}
	slices.Reverse(listed)
	if !slices.Equal(listed, layers[:len(layers)-1]) {
		t.Errorf("the package doc lists %v, the layers are %v", listed, layers)
	}
}

// TestLayerRuleFindsWhatIsForbidden: the rule finds an upward pointer, in a table and in a signature too.
func TestLayerRuleFindsWhatIsForbidden(t *testing.T) {
	const src = "package p\ntype needs struct { a *planner; b map[int]*step; c func(*Core, *stream) }"
	f, err := parser.ParseFile(token.NewFileSet(), "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := namesIn(structsOf(f)["needs"], layers[slices.Index(layers, "needs"):])
	if !slices.Equal(got, []string{"planner", "Core"}) {
		t.Errorf("found %v", got)
	}
}

// componentStructs are the struct types of a folder's package, by name.
func componentStructs(t *testing.T, dir string) map[string]*ast.StructType {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*ast.StructType{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(out, structsOf(f))
	}
	return out
}

func structsOf(f *ast.File) map[string]*ast.StructType {
	out := map[string]*ast.StructType{}
	ast.Inspect(f, func(n ast.Node) bool {
		if d, ok := n.(*ast.TypeSpec); ok {
			if s, ok := d.Type.(*ast.StructType); ok {
				out[d.Name.Name] = s
			}
		}
		return true
	})
	return out
}

// namesIn are those of the names that the types of a struct's fields have, in their order.
func namesIn(s *ast.StructType, names []string) []string {
	var found []string
	for _, field := range s.Fields.List {
		ast.Inspect(field.Type, func(n ast.Node) bool {
			if _, ok := n.(*ast.SelectorExpr); ok { // a type of another package
				return false
			}
			if id, ok := n.(*ast.Ident); ok && slices.Contains(names, id.Name) {
				found = append(found, id.Name)
			}
			return true
		})
	}
	return found
}
