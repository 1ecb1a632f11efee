package errs

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		err  *Error
		want string
	}{
		{New(NotFound, "a", "look elsewhere", "no job is named %q", "a"), `no job is named "a" (look elsewhere)`},
		{New(NotFound, "a", "", "no job"), "no job"},
		{New(Internal, "a", "make room", "write %d bytes", 3).Because(errors.New("disk full")),
			"write 3 bytes: disk full (make room)"},
		{New(Internal, "a", "make room", "write").Because(nil), "write (make room)"},
		{&Error{Message: "100 % wrong"}, "100 % wrong"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestBecauseKeepsEveryCause(t *testing.T) {
	first, second := errors.New("disk full"), errors.New("is read-only")
	e := New(Internal, "a", "make room", "write").Because(nil).Because(first).Because(nil).Because(second)
	if !errors.Is(e, first) || !errors.Is(e, second) {
		t.Error("a cause is not in the chain")
	}
	if got, want := e.Error(), "write: disk full; is read-only (make room)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFromAndIs(t *testing.T) {
	f := New(RankHeld, "job", "end it", "rank 0 is held")
	f.RetryAfter = time.Second
	deep := fmt.Errorf("attach: %w", errors.Join(errors.New("other"), f))
	if got := From(deep); got != f {
		t.Errorf("From lost the error in the chain: %+v", got)
	}
	if !Is(deep, RankHeld) || Is(deep, Stale) || Is(nil, RankHeld) || Is(errors.New("x"), Internal) {
		t.Error("Is looks at something else than the chain's reason")
	}
	if From(nil) != nil {
		t.Error("no error became one")
	}
	plain := New(Unavailable, "", "try again", "stopped").Because(context.Canceled)
	if !errors.Is(plain, context.Canceled) {
		t.Error("the cause is not in the chain")
	}
	made := From(fs.ErrNotExist)
	if made.Reason != Internal || made.Hint == "" || !errors.Is(made, fs.ErrNotExist) ||
		!strings.Contains(made.Error(), "file does not exist") {
		t.Errorf("From(%v) = %v", fs.ErrNotExist, made)
	}
}

// TestReasonsIsComplete reads the file: a constant that is not in Reasons would have no code, exit status and docs.
func TestReasonsIsComplete(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "errs.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var words []Reason
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if id, ok := v.Type.(*ast.Ident); !ok || id.Name != "Reason" {
				t.Errorf("constant %v has another type than Reason, or none", v.Names)
			}
			for _, x := range v.Values {
				word, err := strconv.Unquote(x.(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				words = append(words, Reason(word))
			}
		}
	}
	if len(words) < 10 {
		t.Fatalf("only %d constants were found", len(words))
	}
	if !slices.Equal(words, Reasons) {
		t.Errorf("the constants are %q,\nReasons has    %q", words, Reasons)
	}
	seen := map[Reason]bool{}
	for _, r := range Reasons {
		if seen[r] || string(r) != strings.ToUpper(string(r)) || strings.ContainsAny(string(r), " -.") {
			t.Errorf("%q is there twice, or no word in capitals", r)
		}
		seen[r] = true
	}
}

// TestEveryErrorHasAHint reads all code of larder: an error that a user can see names what to do.
func TestEveryErrorHasAHint(t *testing.T) {
	calls := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "python" || d.Name() == ".git"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, src, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f, ok := c.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := f.X.(*ast.Ident)
			const hint = 2
			if !ok || x.Name != "errs" || f.Sel.Name != "New" || len(c.Args) <= hint {
				return true
			}
			calls++
			is := func(i int, text string) bool {
				lit, ok := c.Args[i].(*ast.BasicLit)
				return ok && lit.Value == text
			}
			if is(hint, `""`) && !is(hint+1, `"%s"`) { // a message that is passed on brings its own advice
				t.Errorf("%s: the error has no hint", set.Position(c.Pos()))
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if calls < 200 {
		t.Errorf("only %d errors were looked at", calls)
	}
}
