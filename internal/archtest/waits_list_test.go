package archtest

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// mostEntries is how many functions of tests may wait by the clock, in Go and Python together.
const mostEntries = 30

const (
	waitsList = "testdata/waits.txt"
	root      = "../.."
)

const waitsFix = "wait for an event, with a bound of minutes; testenv.Eventually; testing/synctest; a step of the " +
	"tests' clock. What must stay needs an entry in internal/archtest/" + waitsList

// entries reads a list: lines of file:function and a reason.
func entries(text string) (map[string]string, error) {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		place, reason, _ := strings.Cut(line, " ")
		switch {
		case !strings.Contains(place, ":") || len(strings.Fields(reason)) < 3:
			return nil, fmt.Errorf("%q is no entry: write file:function and a reason", line)
		case out[place] != "":
			return nil, fmt.Errorf("%s has two entries", place)
		}
		out[place] = strings.TrimSpace(reason)
	}
	return out, nil
}

// unlisted returns what is wrong with waits beside the entries that excuse them: waits without an entry, entries
// without a wait, too many entries.
func unlisted(found []finding, list map[string]string) []string {
	var out []string
	used := map[string]bool{}
	for _, f := range found {
		used[f.place] = true
		if list[f.place] == "" {
			out = append(out, f.String())
		}
	}
	for place := range list {
		if !used[place] {
			out = append(out, place+": the entry is not used: remove it")
		}
	}
	slices.Sort(out)
	if len(list) > mostEntries {
		out = append(out, fmt.Sprintf("%d entries, at most %d may stand there", len(list), mostEntries))
	}
	return out
}

func readEntries(t *testing.T, name string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	out, err := entries(string(text))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return out
}

var goWaits = sync.OnceValues(func() ([]finding, error) {
	all, err := readTree(root)
	if err != nil {
		return nil, err
	}
	return all.waits(), nil
})

// TestArchWaits refuses tests that depend on the clock, in Go and in Python, outside of a short list.
func TestArchWaits(t *testing.T) {
	found, err := goWaits()
	if err != nil {
		t.Fatal(err)
	}
	found = append(found, pythonWaits(t, root, pythonTests(t))...)
	scripts, err := shellWaits(root, ".ci/run", "Makefile")
	if err != nil {
		t.Fatal(err)
	}
	found = append(found, scripts...)
	bad := unlisted(found, readEntries(t, waitsList))
	for _, s := range bad {
		t.Error(s)
	}
	if len(bad) > 0 {
		t.Log(waitsFix)
	}
}

// pythonTests returns the Python files that are tests, or help them.
func pythonTests(t *testing.T) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(filepath.Join(root, "python", "tests"), func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.HasSuffix(name, ".py") {
			out = append(out, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(filepath.Join(root, "bench", "py", "test_*.py"))
	if err != nil {
		t.Fatal(err)
	}
	out = append(out, more...)
	for i := range out {
		if out[i], err = filepath.Rel(root, out[i]); err != nil {
			t.Fatal(err)
		}
	}
	if len(out) < 50 || len(more) == 0 {
		t.Fatalf("%d Python tests, %d of benchmarks: they are elsewhere", len(out), len(more))
	}
	return out
}

// python returns an interpreter, or skips the test where there is none.
func python(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("LARDER_PYTHON"), root + "/.venv/bin/python", "python3"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	const message = "no python3: make setup makes .venv; LARDER_PYTHON names another interpreter"
	if os.Getenv("LARDER_REQUIRE_TORCH") != "" {
		t.Fatal(message)
	}
	t.Skip(message)
	return ""
}

// pythonWaits asks waits.py, which reads Python as Python does.
func pythonWaits(t *testing.T, root string, files []string) []finding {
	t.Helper()
	interpreter, args := python(t), append([]string{"-I", "-S", "waits.py", root}, files...)
	cmd := exec.CommandContext(t.Context(), interpreter, args...) //nolint:gosec // of this repository
	var words strings.Builder
	cmd.Stderr = &words
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("waits.py: %v\n%s", err, &words)
	}
	var found []finding
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 4 {
			t.Fatalf("waits.py printed %q", line)
		}
		n, err := strconv.Atoi(f[1])
		if err != nil {
			t.Fatalf("waits.py printed %q", line)
		}
		found = append(found, finding{f[0] + ":" + f[2], n, f[3]})
	}
	slices.SortFunc(found, func(a, b finding) int { return cmp.Compare(a.String(), b.String()) })
	return found
}
