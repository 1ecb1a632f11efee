package source

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/internal/source/packed"
)

// The table testdata/kinds.tsv says which test tries a kind of odd file in a format, or why the format has none: each
// kind has each scheme once, and each test names the scheme.
func TestEveryKindOfOddFileInEveryFormat(t *testing.T) {
	tests := testsOf(t, ".", "packed")
	b, err := os.ReadFile("testdata/kinds.tsv")
	must(t, err)
	has := map[string][]string{}
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(cells) != 3 || cells[2] == "" || cells[2] == "- " {
			t.Fatalf("%q: a row has a kind, schemes, and tests or a reason", line)
		}
		schemes := strings.Fields(cells[1])
		has[cells[0]] = append(has[cells[0]], schemes...)
		if strings.HasPrefix(cells[2], "- ") {
			continue
		}
		for _, scheme := range schemes {
			names := regexp.MustCompile(fmt.Sprintf(`(?i)["\x60]%s[:"\x60]|\b%[1]s\{`, scheme))
			if !slices.ContainsFunc(strings.Fields(cells[2]), func(n string) bool { return names.MatchString(tests[n]) }) {
				t.Errorf("%s: %s tests nothing of %s", cells[0], cells[2], scheme)
			}
		}
	}
	want := append(packed.Schemes(), "imagefolder")
	slices.Sort(want)
	for kind, schemes := range has { // order-free: each by itself
		slices.Sort(schemes)
		if !slices.Equal(schemes, want) {
			t.Errorf("%s: %q, and each of %q once is wanted", kind, schemes, want)
		}
	}
	if len(has) != 14 {
		t.Errorf("%d kinds", len(has))
	}
}

// testsOf are the bodies of the tests of some packages, each with those of the helpers that it calls.
func testsOf(t *testing.T, dirs ...string) map[string]string {
	t.Helper()
	function := regexp.MustCompile(`(?ms)^func (\w+)[[(].*?^}`)
	call := regexp.MustCompile(`\b(\w+)\(`)
	all := map[string]string{}
	for _, dir := range dirs {
		files, err := filepath.Glob(dir + "/*_test.go")
		must(t, err)
		bodies := map[string]string{}
		for _, f := range files {
			b, err := os.ReadFile(f)
			must(t, err)
			for _, m := range function.FindAllStringSubmatch(string(b), -1) {
				bodies[m[1]] = m[0]
			}
		}
		for name, body := range bodies { // order-free: each by itself
			for _, m := range call.FindAllStringSubmatch(body, -1) {
				if m[1] != name {
					body += bodies[m[1]]
				}
			}
			all[name] = body
		}
	}
	return all
}

// Text that is not UTF-8 is refused in every format that has text, when it is indexed or read: no byte of it becomes
// U+FFFD.
func TestTextThatIsNoUTF8(t *testing.T) {
	const text = "caf\xe9 au lait"
	for uri, x := range map[string]struct{ file, content string }{
		"text:%s":             {"a.txt", "first\n" + text + "\n"},
		"csv:%s":              {"a.csv", "x,s\n1,first\n2," + text + "\n"},
		"jsonl:%s":            {"a.jsonl", `{"s": "first"}` + "\n" + `{"s": "` + text + `"}` + "\n"},
		"imagefiles:%s/a.csv": {"a.csv", "path,label\n1.jpg,cat\n2.jpg," + text + "\n"},
		"wds:%s?fields=txt":   {"a.tar", tarOfMembers(t, "1.txt", "first", "2.txt", text)},
		"wds:%s":              {"a.tar", tarOfMembers(t, "1.jpg", "i", "1.cls", "cat", "2.jpg", "j", "2.cls", text)},
		"mds:%s?fields=text":  {"shard.00000.mds", mdsFile(t, "first", text)},
		"parquet:%s":          {"a.parquet", parquetOf(t, struct{ S string }{"first"}, struct{ S string }{text})},
	} { // order-free: each by itself
		root := t.TempDir()
		write(t, root, "1.jpg", "image")
		write(t, root, "2.jpg", "image")
		write(t, root, x.file, x.content)
		if strings.HasPrefix(uri, "mds:") {
			write(t, root, "index.json", mdsSet(x.content)["index.json"])
		}
		c, _ := open(t, "")
		d, err := c.Add(t.Context(), "", fmt.Sprintf(uri, root))
		if err != nil {
			if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(fullText(err)+err.Error(), "UTF-8") {
				t.Errorf("%s: %v", uri, err)
			}
			continue
		}
		got, err := c.Read(t.Context(), d.Object(1), nil)
		if err == nil || !strings.Contains(err.Error(), "UTF-8") {
			t.Errorf("%s: %q, %v", uri, got, err)
		}
	}
}

// A key that comes twice in an index or in an archive is refused: readers take the last one, or a part of each.
func TestKeysThatComeTwiceInAnIndex(t *testing.T) {
	set := mdsSet(mdsFile(t, "a", "bc"))
	for name, x := range map[string]struct{ old, new, says string }{
		"of the index": {`{"version":2,`, `{"version":2,"version":2,`, `key "version" twice`},
		"of a shard":   {`"samples":2,`, `"samples":1,"samples":2,`, `key "samples" twice`},
		"of its file":  {`"bytes":`, `"bytes":1,"bytes":`, `key "bytes" twice`},
		"in capitals":  {`"samples":2,`, `"Samples":1,"samples":2,`, `key "samples" twice`},
	} { // order-free: each by itself
		root := t.TempDir()
		write(t, root, "shard.00000.mds", set["shard.00000.mds"])
		write(t, root, "index.json", strings.Replace(set["index.json"], x.old, x.new, 1))
		c, _ := open(t, "")
		_, err := c.Add(t.Context(), "", "mds:"+root)
		if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for range 2 {
		w, err := z.Create("x.npy")
		must(t, err)
		_, err = io.WriteString(w, npyFile(3))
		must(t, err)
	}
	must(t, z.Close())
	root := t.TempDir()
	write(t, root, "a.npz", b.String())
	c, _ := open(t, "")
	if _, err := c.Add(t.Context(), "", "npz:"+root); !errs.Is(err, errs.DatasetUnread) ||
		!strings.Contains(err.Error(), `it has array "x" twice`) {
		t.Error(err)
	}
}
