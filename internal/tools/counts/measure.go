package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const (
	here         = "internal/tools/counts" // its own phrases are not counted
	countsFile   = here + "/counts.txt"
	waitsFile    = "internal/archtest/testdata/waits.txt"
	glossaryFile = "docs/glossary.md"
	binaryKey    = "binary.KiB"
)

// tree is the repository that is measured.
type tree struct {
	root, python string
	files        []string // relative to root, with slashes
}

// openTree lists the files that git tracks or would track. Without git it takes all that lie in no build folder.
func openTree(root, python string) (*tree, error) {
	t := &tree{root: root, python: python}
	out, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err == nil {
		for name := range strings.SplitSeq(string(out), "\x00") {
			if info, err := os.Lstat(filepath.Join(root, name)); err == nil && info.Mode().IsRegular() {
				t.files = append(t.files, name)
			}
		}
		slices.Sort(t.files)
		t.files = slices.Compact(t.files)
		return t, nil
	}
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, name)
		base := d.Name()
		if d.IsDir() && rel != "." && (strings.HasPrefix(base, ".") && base != ".ci" ||
			slices.Contains([]string{"bin", "out", "build", "node_modules", "__pycache__"}, base)) {
			return filepath.SkipDir
		}
		if d.Type().IsRegular() {
			t.files = append(t.files, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing the files of %s: %w", root, err)
	}
	return t, nil
}

func (t *tree) read(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(t.root, filepath.FromSlash(name)))
}

func (t *tree) has(name string) bool {
	_, found := slices.BinarySearch(t.files, name)
	return found
}

// measure counts everything but the binary, and leaves nothing out for its limit.
func (t *tree) measure() (numbers, error) {
	all := numbers{"comments.is-what": 0, "words.docs": 0, "words.changelog": 0}
	for _, p := range phrases {
		all["banned."+p] = 0
	}
	code := newGoCode()
	var scripts []string
	for _, name := range t.files {
		if strings.Contains(name, "testdata/") && path.Ext(name) != ".md" {
			continue
		}
		text, err := t.read(name)
		if err != nil {
			return nil, fmt.Errorf("counting: %w", err)
		}
		if path.Ext(name) == ".py" {
			scripts = append(scripts, name)
		}
		generated, err := countFile(all, code, name, text)
		if err != nil {
			return nil, err
		}
		if key := lineKey(name); key != "" && !generated && !isTest(name) {
			all["lines."+key] += strings.Count(string(text), "\n")
		}
	}
	code.result(all)
	if err := t.countPython(all, scripts); err != nil {
		return nil, err
	}
	if t.has(waitsFile) {
		text, err := t.read(waitsFile)
		if err != nil {
			return nil, fmt.Errorf("counting waits: %w", err)
		}
		all["waits.entries"] = entries(string(text))
	}
	if t.has(glossaryFile) {
		text, err := t.read(glossaryFile)
		if err != nil {
			return nil, fmt.Errorf("counting meanings: %w", err)
		}
		all["glossary.two-meanings"] = len(twoMeanings(string(text)))
	}
	return all, nil
}

// countFile counts what needs no Python, and says whether the file is generated code.
func countFile(all numbers, code *goCode, name string, text []byte) (generated bool, err error) {
	own := path.Dir(name) == here
	switch ext := path.Ext(name); {
	case ext == ".go":
		f, err := parseGo(name, text)
		if err != nil || f == nil {
			return f == nil, err
		}
		if !isTest(name) {
			code.add(name, f)
		}
		if !own {
			countGoTexts(all, f)
		}
	case ext == ".md":
		countPhrases(all, string(text))
		words := len(strings.Fields(string(text)))
		switch {
		case name == "CHANGELOG.md":
			all["words.changelog"] += words
		case name == "README.md", name == "CONTRIBUTING.md", strings.HasPrefix(name, "docs/"):
			all["words.docs"] += words
		}
	case slices.Contains([]string{".c", ".h", ".sh", ".proto"}, ext), name == "Makefile", name == ".ci/run":
		countPhrases(all, string(text))
	}
	return false, nil
}

var codeSuffixes = []string{".go", ".py", ".c", ".h", ".s", ".sh", ".proto", ".js", ".css", ".html"}

// lineKey is the package whose lines a file adds to: its top folder, or its folder in internal; none if it is no code.
func lineKey(name string) string {
	parts := strings.Split(name, "/")
	if len(parts) < 2 || !slices.Contains(codeSuffixes, path.Ext(name)) {
		return ""
	}
	if parts[0] == "internal" && len(parts) > 2 {
		return "internal/" + parts[1]
	}
	return parts[0]
}

func isTest(name string) bool {
	base := path.Base(name)
	return strings.HasSuffix(name, "_test.go") || strings.Contains(name, "/tests/") ||
		path.Ext(name) == ".py" && (strings.HasPrefix(base, "test_") || base == "conftest.py")
}

// The linker and the C library add and take some bytes, so the ceiling of the binary stands above its size.
const (
	binaryMargin = 500
	binaryStep   = 100
)

// binaryCeiling is the ceiling in KiB that a binary of so many bytes gets.
func binaryCeiling(size int64) int {
	kib := int((size+1023)/1024) + binaryMargin
	return (kib + binaryStep - 1) / binaryStep * binaryStep
}

// countBinary adds the ceiling of a binary. A listed one stays if the binary is below it and nearer than two margins.
func countBinary(into, file numbers, size int64) {
	kib := int((size + 1023) / 1024)
	if listed, known := file[binaryKey]; known && kib <= listed && kib > listed-2*binaryMargin {
		into[binaryKey] = listed
		return
	}
	into[binaryKey] = binaryCeiling(size)
}
