package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Waits that are words: settings and flags of larder that say how long, in a configuration, an environment or a
// command; and commands of a shell. waits.py has the same for Python. A setting counts where a daemon waits by the real
// clock: not in a call that tells the daemon --clock, and not in a package that reads words and starts no daemon.
const (
	settingNames = `(?i:lease|timeout|retry_for|idle[-_]exit|--for|--interval)`
	goLength     = `((?:[0-9.]+(?:h|ms|m|us|µs|ns|s))+)(?:[^\w.]|$)`
	clockFlag    = "--clock"
)

var (
	settingText = regexp.MustCompile(settingNames + `["']?(?:\s*[:=]\s*|\s+)["']?` + goLength)
	settingName = regexp.MustCompile(settingNames + `$`)
	shellSleep  = regexp.MustCompile(`(?:^|[^\w.'/-])sleep\s+(?:([0-9.]+)([smhd]?)(?:[^\w.]|$)|["']?\$)`)
)

// readsWords are packages that read settings, or these waits, and start nothing.
var readsWords = []string{"/internal/config/", "/internal/archtest/"}

// rawWaits are functions that wait, whatever they are given.
var rawWaits = map[string][]string{
	"syscall":               {"Nanosleep", "Select", "Setitimer"},
	"golang.org/x/sys/unix": {"ClockNanosleep", "Nanosleep", "Pselect", "Select", "Setitimer"},
}

// textWaits returns the waits that a text has, but for settings where a clock is stepped.
func textWaits(text string, stepped bool) []string {
	var out []string
	for _, m := range settingText.FindAllStringSubmatch(text, -1) {
		if d, err := time.ParseDuration(m[1]); err == nil && d > 0 && d < leastBound && !stepped {
			out = append(out, m[0]+", a setting by the real clock")
		}
	}
	for _, m := range shellSleep.FindAllStringSubmatch(text, -1) {
		unit := map[string]time.Duration{"m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[m[2]]
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil || n*float64(max(unit, time.Second)) < float64(leastHang) {
			out = append(out, strings.TrimSpace(m[0])+", in a script")
		}
	}
	return out
}

// text judges a string, which has the words of a setting, a script or both.
func (j *judge) text(at token.Pos, words string) {
	file := j.fset.Position(at).Filename
	if slices.ContainsFunc(readsWords, func(p string) bool { return strings.Contains(file, p) }) {
		return
	}
	stepped := slices.ContainsFunc(j.stepped, func(s span) bool { return s.holds(at) })
	for _, w := range textWaits(words, stepped) {
		j.report(at, w)
	}
}

// words judges the words of a command: a flag with what follows it, and sleep.
func (j *judge) words(elements []ast.Expr) {
	for i, e := range elements {
		name, ok := plainText(e)
		switch kv, pair := e.(*ast.KeyValueExpr); {
		case pair:
			if name, ok = plainText(kv.Key); ok {
				j.setting(name, kv.Value)
			} else if field, named := kv.Key.(*ast.Ident); named {
				j.setting(field.Name, kv.Value)
			}
		case ok && i+1 < len(elements):
			j.setting(name, elements[i+1])
		}
	}
}

func (j *judge) setting(name string, value ast.Expr) {
	if text, ok := plainText(value); ok && (settingName.MatchString(name) || name == "sleep") {
		j.text(value.Pos(), name+" "+text)
	}
}

// plainText returns the text of a literal.
func plainText(e ast.Expr) (string, bool) {
	l, ok := ast.Unparen(e).(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}

// findStepped finds the calls that have a daemon follow the clock of the test.
func (j *judge) findStepped() {
	for _, f := range j.pkg {
		ast.Inspect(f, func(n ast.Node) bool {
			if c, ok := n.(*ast.CallExpr); ok {
				for _, a := range c.Args {
					if text, ok := plainText(a); ok && text == clockFlag {
						j.stepped = append(j.stepped, span{c.Pos(), c.End()})
					}
				}
			}
			return true
		})
	}
}

// renamed reports a function that sleeps where it is not called, and one that waits for what cannot be judged.
func (j *judge) renamed(s *ast.SelectorExpr) {
	pkg := j.imported(s.X)
	switch {
	case pkg == "time" && s.Sel.Name == "Sleep" && !j.callees[s]:
		j.report(s.Pos(), "time.Sleep under another name")
	case slices.Contains(rawWaits[pkg], s.Sel.Name):
		j.report(s.Pos(), pkg+"."+s.Sel.Name)
	}
}

// shellWaits returns the sleeps of the scripts of a tree, whose names end in .sh; and of others.
func shellWaits(root string, others ...string) ([]finding, error) {
	var out []finding
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() && name != root && (base[0] == '.' && base != ".ci" || base == "bin" || base == "out") {
			return filepath.SkipDir
		}
		file, err := filepath.Rel(root, name)
		if err != nil || !d.Type().IsRegular() || !strings.HasSuffix(name, ".sh") && !slices.Contains(others, file) {
			return err
		}
		text, err := os.ReadFile(name)
		line := 0
		for s := range strings.Lines(string(text)) {
			line++
			if s, _, _ = strings.Cut(s, "# "); len(textWaits(s, true)) > 0 {
				out = append(out, finding{fmt.Sprintf("%s:<script>", filepath.ToSlash(file)), line, strings.TrimSpace(s)})
			}
		}
		return err
	})
	return out, err
}
