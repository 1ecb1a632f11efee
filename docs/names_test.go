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

// TestFilesExist: every file and folder of the repository that a page names exists. A name without a folder, such as
// `plan.go`, stands for any file of that name.
func TestFilesExist(t *testing.T) {
	const root = ".."
	have := map[string]bool{} // files by name and by path, folders by path
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		skip := strings.HasPrefix(e.Name(), ".") || e.Name() == "out" || e.Name() == "shared"
		if e.IsDir() && path != root && skip {
			return fs.SkipDir
		}
		if !e.IsDir() {
			have[e.Name()] = true
		}
		have[strings.TrimPrefix(path, root+"/")] = true
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	rooms := []string{"bench", "cachepolicy", "client", "cmd", "dsa", "internal", "jobs", "proto", "python", "tiers"}
	named := regexp.MustCompile("`([a-z_][A-Za-z0-9_./-]*)`")
	file := regexp.MustCompile(`\.(?:go|py|sh|c|txtar|proto)$`)
	checked := 0
	err = filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".md") {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text := string(data)
		for _, m := range named.FindAllStringSubmatchIndex(text, -1) {
			name := text[m[2]:m[3]]
			room, _, below := strings.Cut(name, "/")
			isPath := below && slices.Contains(rooms, room) && !strings.Contains(name, "...")
			if !isPath && (below || !strings.HasSuffix(name, ".go")) {
				continue
			}
			if checked++; !have[strings.TrimSuffix(name, "/")] && (file.MatchString(name) || isPath) {
				complain(t, path, text, m[0], "there is no "+name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 100 {
		t.Errorf("only %d names of files were found", checked)
	}
}
