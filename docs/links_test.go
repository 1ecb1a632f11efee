// Package docs tests the documentation of the repository: its links and its navigation. The pages are Markdown.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// complain reports what is wrong at a place of a page, with its line.
func complain(t *testing.T, page, text string, at int, what string) {
	t.Helper()
	t.Errorf("%s:%d: %s", page, 1+strings.Count(text[:at], "\n"), what)
}

// markdown reads every Markdown file of the repository, by path from its root.
func markdown(t *testing.T) map[string]string {
	t.Helper()
	const root = ".."
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := e.Name()
		skipped := strings.HasPrefix(name, ".") || slices.Contains([]string{"out", "bin", "shared", "testdata"}, name)
		if e.IsDir() && path != root && skipped {
			return fs.SkipDir
		}
		if strings.HasSuffix(name, ".md") {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			out[filepath.ToSlash(strings.TrimPrefix(path, root+"/"))] = string(b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var (
	fence   = regexp.MustCompile("(?ms)^ *```.*?^ *```[ \t]*$")
	inline  = regexp.MustCompile("`[^`\n]+`")
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	named   = regexp.MustCompile(`<a id="([^"]+)">`)
	link    = regexp.MustCompile(`(?s)\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]\(([^()\s]+)\)`)
)

// blank replaces what re finds by as many spaces, and keeps its line breaks, so that places stay what they are.
func blank(re *regexp.Regexp, text string) string {
	return re.ReplaceAllStringFunc(text, func(s string) string {
		return strings.Map(func(r rune) rune {
			if r == '\n' {
				return r
			}
			return ' '
		}, s)
	})
}

// anchors are the names that a link may end in: the headings of a page as GitHub spells them, and names given by hand.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(blank(fence, text), -1) {
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])
		for n, name := 1, slug; ; n++ {
			if !out[name] {
				out[name] = true
				break
			}
			name = slug + "-" + strconv.Itoa(n)
		}
	}
	for _, m := range named.FindAllStringSubmatch(text, -1) {
		out[m[1]] = true
	}
	return out
}

// TestDocsLinks checks every relative link of every page: the file is there, and so is the heading or name after #.
func TestDocsLinks(t *testing.T) {
	all := markdown(t)
	checked := 0
	for page, text := range all {
		plain := blank(inline, blank(fence, text))
		for _, m := range link.FindAllStringSubmatchIndex(plain, -1) {
			target := plain[m[2]:m[3]]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			checked++
			file, name, _ := strings.Cut(target, "#")
			to := page
			if file != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(page), file))
				if _, err := os.Stat(filepath.Join("..", to)); err != nil {
					complain(t, page, text, m[0], "there is no "+to)
					continue
				}
			}
			if other, ok := all[to]; name != "" && (!ok || !anchors(other)[name]) {
				complain(t, page, text, m[0], to+" has no heading or name "+name)
			}
		}
	}
	if checked < 150 {
		t.Errorf("only %d links were found", checked)
	}
}

// TestDocsAreInTheNavigation: docs/index.md leads to every page below docs, and to nothing else.
func TestDocsAreInTheNavigation(t *testing.T) {
	all := markdown(t)
	var patterns []string
	toctree := regexp.MustCompile("(?ms)^```\\{toctree\\}$(.*?)^```$")
	for _, m := range toctree.FindAllStringSubmatch(all["docs/index.md"], -1) {
		for line := range strings.Lines(m[1]) {
			line = strings.TrimSpace(line)
			if _, inner, ok := strings.Cut(line, " <"); ok {
				line = strings.TrimSuffix(inner, ">")
			}
			if line != "" && !strings.HasPrefix(line, ":") {
				patterns = append(patterns, "docs/"+line+".md")
			}
		}
	}
	if len(patterns) < 20 {
		t.Fatalf("only %d entries were found", len(patterns))
	}
	led := map[string]int{}
	for _, p := range patterns {
		n := 0
		for page := range all {
			if ok, err := filepath.Match(p, page); err != nil {
				t.Fatal(err)
			} else if ok {
				led[page]++
				n++
			}
		}
		if n == 0 && !strings.Contains(p, "*") {
			t.Errorf("docs/index.md: there is no %s", p)
		}
	}
	for page := range all {
		if strings.HasPrefix(page, "docs/") && page != "docs/index.md" && led[page] != 1 {
			t.Errorf("docs/index.md leads to %s %d times", page, led[page])
		}
	}
}

// TestDocsNameTargets: every `make TARGET` of a page is a target of the Makefile.
func TestDocsNameTargets(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):`).FindAllSubmatch(makefile, -1) {
		targets[string(m[1])] = true
	}
	code := regexp.MustCompile("(?ms)^```.*?^```|`[^`\n]+`")
	call := regexp.MustCompile("(?m)(?:^|`)make (?:[A-Z]+=\\S+ )*([a-z][a-z-]*)")
	checked := 0
	for page, text := range markdown(t) {
		if page == "CHANGELOG.md" { // describes earlier versions
			continue
		}
		for _, c := range code.FindAllStringIndex(text, -1) {
			for _, m := range call.FindAllStringSubmatch(text[c[0]:c[1]], -1) {
				if checked++; !targets[m[1]] {
					complain(t, page, text, c[0], "the Makefile has no target "+m[1])
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d targets were found", checked)
	}
}

// TestDocsNameFiles: every source file that a page outside of docs names with its folder exists.
func TestDocsNameFiles(t *testing.T) {
	path := regexp.MustCompile("`((?:[a-z_]+/)+[\\w-]+\\.(?:go|py|c|h|sh|yaml|proto|txtar))`")
	checked := 0
	for page, text := range markdown(t) {
		if page == "CHANGELOG.md" || strings.HasPrefix(page, "docs/") {
			continue
		}
		for _, m := range path.FindAllStringSubmatchIndex(text, -1) {
			name := text[m[2]:m[3]]
			if checked++; !exists("../" + name) {
				complain(t, page, text, m[0], "there is no "+name)
			}
		}
	}
	if checked < 5 {
		t.Errorf("only %d files were found", checked)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
