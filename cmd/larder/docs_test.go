package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"larder/internal/config"
)

// pages are README.md and everything below docs, by name.
func pages(t *testing.T) map[string]string {
	t.Helper()
	const root = "../.."
	out := map[string]string{}
	files := []string{filepath.Join(root, "README.md"), filepath.Join(root, "python", "README.md")}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimPrefix(f, root+"/")] = string(b)
	}
	if len(out) < 20 {
		t.Fatalf("only %d pages were found", len(out))
	}
	return out
}

// complain reports each pair of page and word once, with its line.
func complain(t *testing.T, page, text string, at int, what string) {
	t.Helper()
	t.Errorf("%s:%d: %s", page, 1+strings.Count(text[:at], "\n"), what)
}

// TestDocsNameTests: every test, fuzz target and benchmark that a page names exists; NAME… stands for all that begin
// so.
func TestDocsNameTests(t *testing.T) {
	have := map[string]bool{}
	goTest := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z]\w*)\(`)
	pyTest := regexp.MustCompile(`(?m)^\s*(?:async )?def (test_\w+)\(`)
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := e.Name(); e.IsDir() && path != "../.." &&
			(strings.HasPrefix(name, ".") || name == "out" || name == "bin" || name == "shared") {
			return fs.SkipDir
		}
		base, re := filepath.Base(path), goTest
		switch {
		case strings.HasSuffix(base, "_test.go"):
		case strings.HasPrefix(base, "test_") && strings.HasSuffix(base, ".py"):
			have[strings.TrimSuffix(base, ".py")], re = true, pyTest
		default:
			return nil
		}
		b, err := os.ReadFile(path)
		for _, m := range re.FindAllSubmatch(b, -1) {
			have[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\b(?:(?:Test|Fuzz|Benchmark)[A-Z]\w*|test_[a-z]\w*)…?`)
	checked := 0
	for page, text := range pages(t) {
		for _, m := range named.FindAllStringIndex(text, -1) {
			name, all := strings.CutSuffix(text[m[0]:m[1]], "…")
			found := have[name]
			for h := range have {
				found = found || all && strings.HasPrefix(h, name)
			}
			if !found {
				complain(t, page, text, m[0], "there is no test "+name)
			}
			checked++
		}
	}
	if checked < 50 {
		t.Errorf("only %d names of tests were found", checked)
	}
}

// TestDocsNameKeys: every key of the configuration and every variable of the environment that a page names exists.
func TestDocsNameKeys(t *testing.T) {
	keys, sections := map[string]bool{}, map[string]bool{}
	for _, k := range append(config.Keys(), config.Key{Name: "datasets.NAME.floor"}, config.Key{Name: "datasets.NAME.cap"},
		config.Key{Name: "datasets.NAME.strata"}) {
		keys[k.Name] = true
		for i, c := range k.Name {
			if c == '.' {
				sections[k.Name[:i]] = true
			}
		}
	}
	key := regexp.MustCompile("`([a-z_]+(?:\\.(?:[a-z_]+|NAME|FORM))+)(?:: [^`]*|=[^`]*)?`")
	variable := regexp.MustCompile(`\bLARDER_[A-Z0-9_]*[A-Z0-9]\b`)
	// What whatif changes, beside keys; a method of Python; and a wrong name that a page shows as such.
	other := map[string]bool{"tiers.policy.FORM": true, "jobs.NAME": true, "sampler.set_epoch": true,
		"LARDER_TIERS_TOTAL": true}
	checked := 0
	for page, text := range pages(t) {
		for _, m := range key.FindAllStringSubmatchIndex(text, -1) {
			name := text[m[2]:m[3]]
			first, _, _ := strings.Cut(name, ".")
			if !sections[first] || strings.HasPrefix(name, "jobs.NAME.") {
				continue
			}
			if !keys[name] && !sections[name] && !other[name] {
				complain(t, page, text, m[0], "there is no key "+name)
			}
			checked++
		}
		for _, m := range variable.FindAllStringIndex(text, -1) {
			if name := text[m[0]:m[1]]; !other[name] && len(config.UnknownEnv([]string{name + "="})) > 0 {
				complain(t, page, text, m[0], "there is no variable "+name)
			}
			checked++
		}
	}
	if checked < 50 {
		t.Errorf("only %d names of keys and variables were found", checked)
	}
}

// TestDocsNameCommands: every command and flag that a page names exists, flags of a line that names a command among
// those of that command.
func TestDocsNameCommands(t *testing.T) {
	root := newRoot()
	root.InitDefaultVersionFlag()
	all := map[string]bool{"help": true}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) { all[f.Name] = true })
		c.PersistentFlags().VisitAll(func(f *pflag.Flag) { all[f.Name] = true })
		for _, s := range c.Commands() {
			walk(s)
		}
	}
	walk(root)
	// Pages on what was measured have flags of other programs: those of Python, pytest, torchrun and of the scripts of
	// bench and examples.
	others := []string{"nproc_per_node", "rdzv_id", "kill", "data", "torch", "parity", "minutes", "write", "base", "only",
		"quick", "bandwidth", "refill", "seeds", "paced", "nightly"}
	code := regexp.MustCompile("(?s)```.*?\n```|`[^`\n]+`")
	flag := regexp.MustCompile(`(?:^|[ \x60\[(])--([a-z][a-z_-]*[a-z])`)
	command := regexp.MustCompile(`(?:^|[\x60 /(])larder ((?:[a-z]+)(?: [a-z]+)?)`)
	checked := 0
	for page, text := range pages(t) {
		var lines [][2]int // of code, by their places in the page
		for _, m := range code.FindAllStringIndex(text, -1) {
			for at, end := m[0], m[1]; at < end; {
				next := at + 1 + strings.IndexByte(text[at:end]+"\n", '\n')
				lines, at = append(lines, [2]int{at, min(next, end)}), next
			}
		}
		for _, m := range lines {
			line, _, _ := strings.Cut(text[m[0]:m[1]], " #")
			at := root
			if c := command.FindStringSubmatch(line); c != nil && !strings.HasPrefix(line, "from ") &&
				!strings.Contains(line, "larder: ") {
				words := strings.Fields(c[1])
				found, _, err := root.Find(words[:1])
				if err != nil || found == root {
					complain(t, page, text, m[0], "there is no command larder "+words[0])
					continue
				}
				if at = found; len(words) > 1 && found.HasSubCommands() {
					if at, _, err = found.Find(words[1:]); err != nil || at == found {
						complain(t, page, text, m[0], "there is no command larder "+c[1])
						continue
					}
				}
				checked++
			}
			own, _, _ := strings.Cut(line, " -- ") // what follows belongs to the command that is run
			for _, f := range flag.FindAllStringSubmatch(own, -1) {
				known := all[f[1]] || slices.Contains(others, f[1])
				if at != root && !at.HasSubCommands() {
					known = f[1] == "help" || at.Flags().Lookup(f[1]) != nil || at.InheritedFlags().Lookup(f[1]) != nil
				}
				if !known {
					complain(t, page, text, m[0], at.CommandPath()+" has no flag --"+f[1])
				}
				checked++
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d commands and flags were found", checked)
	}
}
