package source

import (
	"errors"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/ident"
)

// TestNamesThatAreNoUTF8: Linux takes any bytes for names, protobuf takes UTF-8 only. What a dataset says about itself
// is always text; what it does goes by the bytes, so names that look alike stay different samples.
func TestNamesThatAreNoUTF8(t *testing.T) {
	root := t.TempDir() + "/d\xe4ta"
	if err := os.Mkdir(root, 0o700); errors.Is(err, unix.EILSEQ) {
		t.Skip("this file system takes UTF-8 only")
	}
	rels := []string{"caf\xe8/\xfe.jpg", "caf\xe8/\xff.jpg", "caf\xe9/x.jpg", "tea/\xc3(.jpg"}
	for _, r := range rels {
		write(t, root, r, "content of "+r)
	}
	age(t, root)
	index := t.TempDir()
	for _, name := range []string{"", "train"} { // the second time from the saved index
		c, _ := open(t, index)
		d := add(t, c, name, root)
		if d.Len() != len(rels) || len(d.Classes()) != 3 || d.Label(1) != 0 || d.Label(2) != 1 || d.Label(3) != 2 {
			t.Fatalf("%d samples, classes %q, label of 2: %d", d.Len(), d.Classes(), d.Label(2))
		}
		texts := append([]string{d.Name(), d.URI()}, d.Classes()...)
		for i, rel := range rels {
			s := ident.SampleID(i)
			shown, _ := c.ObjectPath(d.Object(s))
			texts = append(texts, d.Key(s), d.Class(s), shown)
			if want := strings.ToValidUTF8(rel, "\uFFFD"); d.Key(s) != want || d.Path(s) != root+"/"+rel {
				t.Errorf("sample %d: key %q at %q, want %q", i, d.Key(s), d.Path(s), want)
			}
			if got, err := c.Read(t.Context(), d.Object(s), nil); err != nil || string(got) != "content of "+rel {
				t.Errorf("sample %d: %q, %v", i, got, err)
			}
		}
		for expr, want := range map[string]int{
			`class == "` + "caf\xe9" + `"`: 1, `class ~ "caf?"`: 3, `key ~ "*/?.jpg"`: 3, `key == "tea/` + "\xc3(.jpg" + `"`: 1,
		} {
			if ids, err := d.Select(expr); err != nil || len(ids) != want {
				t.Errorf("%q selects %d, %v; want %d", expr, len(ids), err, want)
			}
		}
		_, empty := d.Select(`class == "` + "\xff" + `"`)
		_, syntax := d.Select(`class == "` + "\xff" + `" or`)
		must(t, os.Remove(d.Path(2)))
		_, gone := c.Read(t.Context(), d.Object(2), nil)
		_, unknown := c.Open(t.Context(), "\xff")
		_, named := c.Add(t.Context(), "\xff", "imagefolder:"+root)
		for i, err := range []error{empty, syntax, gone, unknown, named} {
			f, ok := errors.AsType[*errs.Error](err)
			if !ok || f.Hint == "" {
				t.Fatalf("error %d: %v", i, err)
			}
			texts = append(texts, f.Subject, f.Error())
		}
		for _, s := range texts {
			if !utf8.ValidString(s) {
				t.Errorf("%q is no UTF-8", s)
			}
		}
		write(t, root, rels[2], "content of "+rels[2])
		age(t, root)
		must(t, c.Close())
	}
}
