package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"larder/cachepolicy"
	"larder/internal/config"
	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
	"larder/tiers/tinylfu"
)

func newHTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
}

func walk(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, s := range c.Commands() {
		walk(s, f)
	}
}

// Every command says what it does and shows one line that can be pasted; that line is understood.
func TestEveryCommandHasHelp(t *testing.T) {
	walk(newRoot(), func(c *cobra.Command) {
		if c.Hidden {
			return
		}
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: short help %q", c.CommandPath(), c.Short)
		}
		ex := firstExample(c)
		words := strings.Fields(ex)
		if len(words) == 0 || words[0] != "larder" {
			t.Errorf("%s has no example: %q", c.CommandPath(), ex)
			return
		}
		got, rest, err := newRoot().Find(words[1:])
		if err != nil || !strings.HasPrefix(got.CommandPath(), c.CommandPath()) {
			t.Errorf("%s: its example %q is %v, %v", c.CommandPath(), ex, got.CommandPath(), err)
			return
		}
		for _, w := range rest {
			if w == "--" || w == ">" {
				break
			}
			if name, ok := strings.CutPrefix(w, "--"); ok {
				name, _, _ = strings.Cut(name, "=")
				if got.Flags().Lookup(name) == nil && got.InheritedFlags().Lookup(name) == nil {
					t.Errorf("%s: its example names --%s, which there is not", c.CommandPath(), name)
				}
			}
		}
	})
}

// Each command that prints a list prints it as JSON and YAML too.
func TestListsHaveOutputs(t *testing.T) {
	walk(newRoot(), func(c *cobra.Command) {
		if c.Name() == "ls" || c.Name() == "describe" || c.Name() == "inspect" || c.Name() == "stats" {
			if f := c.Flags().Lookup("output"); f == nil || f.Shorthand != "o" {
				t.Errorf("%s has no -o", c.CommandPath())
			}
		}
	})
}

// docs/cli.md names every command, every flag and every exit code.
func TestCLIDocs(t *testing.T) {
	raw, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(raw)
	own := map[string]bool{}
	walk(newRoot(), func(c *cobra.Command) {
		if c.Hidden || c.HasAvailableSubCommands() || !c.Runnable() || c.Name() == "demo" {
			return
		}
		if !strings.Contains(doc, "`"+c.CommandPath()) {
			t.Errorf("docs/cli.md does not name %s", c.CommandPath())
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { own[f.Name] = true })
	})
	for name := range own {
		if name != "help" && !strings.Contains(doc, "--"+name) {
			t.Errorf("docs/cli.md does not name --%s", name)
		}
	}
	for reason, code := range exitOf {
		if !regexp.MustCompile(fmt.Sprintf(`(?m)^\| %d \|.*%s`, code, regexp.QuoteMeta(string(reason)))).MatchString(doc) {
			t.Errorf("docs/cli.md does not give %s the exit code %d", reason, code)
		}
	}
	fields := (&larderv1.JobSpec{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if !strings.Contains(doc, "`"+string(fields.Get(i).Name())+"`") {
			t.Errorf("docs/cli.md does not name the key %s of a job", fields.Get(i).Name())
		}
	}
}

// Every command that a page, a hint or an error of any client advises exists.
func TestCommandsThatAreNamedExist(t *testing.T) {
	named := regexp.MustCompile("`larder ([a-z]+)(?: ([a-z]+))?[^`\\n]*`")
	found := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "../.." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin"):
			return filepath.SkipDir
		case d.IsDir() || strings.HasSuffix(path, "_test.go") ||
			!slices.Contains([]string{".md", ".go", ".py", ".yaml", ".proto"}, filepath.Ext(path)):
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range named.FindAllStringSubmatch(string(raw), -1) {
			found++
			c, rest, err := newRoot().Find(slices.DeleteFunc([]string{m[1], m[2]}, func(w string) bool { return w == "" }))
			if err != nil || c == c.Root() || c.HasSubCommands() && len(rest) > 0 {
				t.Errorf("%s names %s, which there is not", path, m[0])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 30 {
		t.Errorf("only %d commands were found", found)
	}
}

// docs/errors.md has a row for every reason, and none for what is no reason.
func TestErrorDocs(t *testing.T) {
	raw, err := os.ReadFile("../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	row := regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| ([A-Z_]+) \\| ([0-9]+) \\|")
	for _, m := range row.FindAllStringSubmatch(string(raw), -1) {
		rows[m[1]] = true
		r := errs.Reason(m[1])
		if !slices.Contains(errs.Reasons, r) {
			t.Errorf("docs/errors.md has a row for %s, which is no reason", m[1])
		}
		if code := fmt.Sprint(exitOf[r]); code != m[3] {
			t.Errorf("docs/errors.md gives %s the exit code %s, it is %s", r, m[3], code)
		}
	}
	for _, r := range errs.Reasons {
		if !rows[string(r)] {
			t.Errorf("docs/errors.md has no row for %s", r)
		}
	}
}

func TestEveryReasonHasAnExitCode(t *testing.T) {
	for _, r := range errs.Reasons {
		code, ok := exitOf[r]
		if !ok || code < exitFailure || code > exitDenied {
			t.Errorf("%s has exit code %d", r, code)
		}
		if got := exitCode(fmt.Errorf("x: %w", errs.New(r, "", "", "x"))); got != code {
			t.Errorf("an error of %s exits with %d", r, got)
		}
	}
	for want, err := range map[int]error{0: nil, 1: errors.New("x"), 2: usagef("h", "m"),
		77: errors.Join(&exitError{code: 77}, errors.New("y"))} {
		if got := exitCode(err); got != want {
			t.Errorf("%v exits with %d, want %d", err, got, want)
		}
	}
}

func TestPrintError(t *testing.T) {
	var b bytes.Buffer
	printError(&b, errors.Join(
		errs.New(errs.DatasetUnread, "d", "mount it", "read d").Because(errors.New("EIO")),
		fmt.Errorf("outer: %w", errs.New(errs.Invalid, "", "do that", "bad")),
		&exitError{code: 9}, usagef("", "plain")))
	want := "larder: read d: EIO\n  fix: mount it\nlarder: outer: bad\n  fix: do that\nlarder: plain\n"
	if b.String() != want {
		t.Errorf("printed\n%swant\n%s", b.String(), want)
	}
}

// The configuration knows exactly the eviction policies there are.
func TestPoliciesAgree(t *testing.T) {
	a, b := slices.Clone(config.Policies), append(cachepolicy.Unforeseeing(), tinylfu.Name)
	slices.Sort(a)
	slices.Sort(b)
	if !slices.Equal(a, b) {
		t.Errorf("config knows %v, cachepolicy %v", a, b)
	}
}

func TestHostileNamesAreMadeVisible(t *testing.T) {
	var b bytes.Buffer
	err := tableTo(&b, func(w *tabwriter.Writer) {
		jobTable(w, []*larderv1.Job{nil, {Spec: &larderv1.JobSpec{Name: "a\x1b[2J\tb\nc\u009b",
			Dataset: strings.Repeat("é", 100)}}})
	})
	if s := b.String(); err != nil || strings.ContainsAny(s, "\x1b\t\u009b") || strings.Count(s, "\n") != 3 ||
		!strings.Contains(s, "…é") {
		t.Errorf("printed %q, %v", s, err)
	}
}

// TestFiguresReadWell: no exponent where people read, no "1 batches", no list of 60 names.
func TestFiguresReadWell(t *testing.T) {
	for x, want := range map[float64]string{131841.2: "131,841", 1000: "1,000", 999.94: "999.9", 0.12345: "0.1235",
		4.439e4: "44,390", 0: "0"} {
		if got := perSecond(x); got != want {
			t.Errorf("%v a second is written %q, want %q", x, got, want)
		}
	}
	if got := plural(1, "batch", "batches") + ", " + plural(1200, "batch", "batches"); got != "1 batch, 1,200 batches" {
		t.Error(got)
	}
	names := strings.Fields(strings.Repeat("j ", 60))
	if got := someOf(names); got != strings.Repeat("j, ", 7)+"j and 52 more jobs" {
		t.Error(got)
	}
	if got := someOf(names[:9]); strings.Contains(got, "more") {
		t.Error(got)
	}
	if got := ratioText(math.MaxFloat64) + ratioText(-math.MaxFloat64) + ratioText(1.28249); got != "--1.2825" {
		t.Error(got)
	}
	var b strings.Builder
	if err := tableTo(&b, func(t *tabwriter.Writer) { row(t, "A", "B"); row(t, "wide", ""); row(t) }); err != nil ||
		b.String() != "A     B\nwide\n\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1281167: "1,281,167", -1234: "-1,234"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %s", n, got)
		}
	}
}

func TestClip(t *testing.T) {
	for _, tc := range [][2]string{
		{clip("abcdef", 6), "abcdef"}, {clip("abcdefg", 6), "abcde…"}, {clipPath("imagefolder:/a/b", 40), "imagefolder:/a/b"},
		{clipPath("imagefolder:/very/long/path/to/data/train", 30), "imagefolder:…ath/to/data/train"},
		{clipPath("/very/long/path", 8), "…ng/path"}, {clipPath("averyveryverylongscheme:x/y/z", 8), "…e:x/y/z"},
	} {
		if tc[0] != tc[1] {
			t.Errorf("clipped to %q, want %q", tc[0], tc[1])
		}
	}
}

// YAML output is read back as the same data as JSON output, also for strings that look like something else.
func TestYAMLOutput(t *testing.T) {
	j := &larderv1.Job{Id: 3, Spec: &larderv1.JobSpec{Name: "yes", Dataset: "imagefolder:/d: #x", Subset: "1e3",
		Seed: 18446744073709551615}, Promise: "a\nb"}
	var y bytes.Buffer
	if err := (&outputFlag{"yaml"}).message(&y, j, nil); err != nil {
		t.Fatal(err)
	}
	if s := y.String(); strings.Contains(s, "{\"") || !strings.Contains(s, `name: "yes"`) ||
		!strings.HasPrefix(s, "id: 3\n") {
		t.Errorf("yaml:\n%s", s)
	}
	spec, err := parseJob("back", []byte("name: \"yes\"\nsubset: \"1e3\"\nseed: \"18446744073709551615\"\n"))
	if err != nil || spec.GetSubset() != "1e3" || spec.GetSeed() != 18446744073709551615 {
		t.Errorf("%v, %v", spec, err)
	}
}
