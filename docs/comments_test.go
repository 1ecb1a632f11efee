package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// cited finds where code names something below docs, from the root of the repository: docs/tiers.md#waiting.
var cited = regexp.MustCompile(`(?m)(?:^|[^\w/.]|\.\./)(docs/[\w./-]*\w)(#[\w-]*\w)?`)

// sources calls check with each file of the repository that is code: its path from the root and its text.
func sources(t *testing.T, check func(path, text string)) {
	t.Helper()
	code := []string{".go", ".py", ".c", ".h", ".proto", ".sh"}
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := e.Name()
		skipped := strings.HasPrefix(name, ".") || slices.Contains([]string{"out", "bin", "shared", "testdata"}, name)
		if e.IsDir() {
			if path != ".." && skipped {
				return fs.SkipDir
			}
			return nil
		}
		if slices.Contains(code, filepath.Ext(name)) {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			check(filepath.ToSlash(strings.TrimPrefix(path, "../")), string(b))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCodeCitesPages: every path below docs that code names, in a comment or a message, is there, and so is the heading
// or name after #.
func TestCodeCitesPages(t *testing.T) {
	pages := markdown(t)
	checked := 0
	sources(t, func(file, text string) {
		for _, m := range cited.FindAllStringSubmatchIndex(text, -1) {
			checked++
			to := text[m[2]:m[3]]
			if !exists("../" + to) {
				complain(t, file, text, m[2], "there is no "+to)
				continue
			}
			if m[4] < 0 {
				continue
			}
			if name := text[m[4]+1 : m[5]]; !anchors(pages[to])[name] {
				complain(t, file, text, m[2], to+" has no heading or name "+name)
			}
		}
	})
	if checked < 150 {
		t.Errorf("only %d citations were found", checked)
	}
}
