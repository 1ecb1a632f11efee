package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strconv"
)

// goCode collects what Go files declare. Files for other systems count too: a method that two of them declare is one.
type goCode struct {
	methods    map[string]map[string]bool // of a type
	fields     numbers
	interfaces map[string]map[string]bool // of a package
	parameters numbers
	arguments  numbers
}

func newGoCode() *goCode {
	return &goCode{methods: map[string]map[string]bool{}, fields: numbers{}, interfaces: map[string]map[string]bool{},
		parameters: numbers{}, arguments: numbers{}}
}

// parseGo parses a file; generated ones are nil.
func parseGo(name string, text []byte) (*ast.File, error) {
	f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("counting in %s: %w", name, err)
	}
	if ast.IsGenerated(f) {
		return nil, nil
	}
	return f, nil
}

// add counts the declarations of a file that is no test.
func (g *goCode) add(name string, f *ast.File) {
	dir := path.Dir(name)
	ast.Inspect(f, func(n ast.Node) bool {
		switch d := n.(type) {
		case *ast.FuncDecl:
			g.function(dir, d)
		case *ast.TypeSpec:
			g.named(dir, d)
		}
		return true
	})
}

func (g *goCode) function(dir string, d *ast.FuncDecl) {
	name, public := d.Name.Name, d.Name.IsExported()
	if d.Recv != nil && len(d.Recv.List) == 1 {
		receiver := typeName(d.Recv.List[0].Type)
		put(g.methods, dir+"."+receiver, d.Name.Name)
		name, public = receiver+"."+name, public && ast.IsExported(receiver)
	}
	into := g.parameters
	if public && dir == "client" {
		into = g.arguments
	}
	key := dir + "." + name
	into[key] = max(into[key], width(d.Type.Params))
}

func (g *goCode) named(dir string, d *ast.TypeSpec) {
	key := dir + "." + d.Name.Name
	g.fields[key] += 0 // a type of any kind is declared, with methods or without
	if g.methods[key] == nil {
		g.methods[key] = map[string]bool{}
	}
	switch t := d.Type.(type) {
	case *ast.StructType:
		g.fields[key] = max(g.fields[key], fieldsOf(t))
	case *ast.InterfaceType:
		put(g.interfaces, dir, d.Name.Name)
		for _, m := range t.Methods.List {
			for _, name := range m.Names {
				put(g.methods, key, name.Name)
			}
		}
	}
}

// result returns the numbers of all that was added.
func (g *goCode) result(into numbers) {
	for key, names := range g.methods {
		into["methods."+key] = len(names)
	}
	for key, names := range g.interfaces {
		into["interfaces."+key] = len(names)
	}
	for family, all := range map[string]numbers{
		"fields.": g.fields, "parameters.": g.parameters, "arguments.": g.arguments,
	} {
		for key, n := range all {
			into[family+key] = n
		}
	}
}

func put(into map[string]map[string]bool, key, name string) {
	if into[key] == nil {
		into[key] = map[string]bool{}
	}
	into[key][name] = true
}

// typeName is the name of a receiver's type, without pointer and type parameters.
func typeName(e ast.Expr) string {
	switch t := e.(type) {
	case *ast.StarExpr:
		return typeName(t.X)
	case *ast.IndexExpr:
		return typeName(t.X)
	case *ast.IndexListExpr:
		return typeName(t.X)
	case *ast.Ident:
		return t.Name
	}
	return "?"
}

// width is the number of parameters or fields of a list. One without a name counts as one.
func width(list *ast.FieldList) int {
	n := 0
	for _, f := range list.List {
		n += max(1, len(f.Names))
	}
	return n
}

// fieldsOf counts an embedded type as one, and a field of an inline struct by the fields of that struct as well.
func fieldsOf(t *ast.StructType) int {
	n := width(t.Fields)
	for _, f := range t.Fields.List {
		if inner, is := f.Type.(*ast.StructType); is {
			n += fieldsOf(inner)
		}
	}
	return n
}

// countGoTexts counts phrases in comments and strings. Literals that are added up are one string.
func countGoTexts(into numbers, f *ast.File) {
	for _, group := range f.Comments {
		text := group.Text()
		countPhrases(into, text)
		countIsWhat(into, text)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if _, is := n.(*ast.ImportSpec); is {
			return false
		}
		e, is := n.(ast.Expr)
		if !is {
			return true
		}
		text, whole := literal(e)
		if whole {
			countPhrases(into, text)
		}
		return !whole
	})
}

// literal is the value of a string literal, or of a sum of them.
func literal(e ast.Expr) (string, bool) {
	switch x := e.(type) {
	case *ast.BasicLit:
		if x.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(x.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		left, ok := literal(x.X)
		right, ok2 := literal(x.Y)
		return left + right, ok && ok2 && x.Op == token.ADD
	}
	return "", false
}
