package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"larder/internal/config"
	"larder/internal/errs"
	"larder/internal/rpc"
	"larder/internal/telemetry"
)

// The references of docs: pages are written by hand but for blocks between two comments, which follow from the code.
//
//	<!-- generated: keys (make generate) -->
//	…
//	<!-- end: keys -->

// page returns a generator that replaces the named blocks of a page.
func page(blocks map[string]func() string) func(*testing.T, string) string {
	return func(t *testing.T, text string) string {
		t.Helper()
		for name, block := range blocks {
			begin, end := "<!-- generated: "+name+" (make generate) -->\n", "<!-- end: "+name+" -->"
			i, j := strings.Index(text, begin), strings.Index(text, end)
			if i < 0 || j < i || strings.Count(text, begin) != 1 {
				t.Fatalf("the page has no block %s", name)
			}
			text = text[:i+len(begin)] + "\n" + strings.Trim(block(), "\n") + "\n\n" + text[j:]
		}
		return text
	}
}

// table is a Markdown table.
type table struct{ strings.Builder }

func newTable(columns ...string) *table {
	t := new(table)
	t.row(columns...)
	t.WriteString("|" + strings.Repeat("---|", len(columns)) + "\n")
	return t
}

func (t *table) row(cells ...string) {
	for _, c := range cells {
		t.WriteString("| " + strings.ReplaceAll(c, "|", "\\|") + " ")
	}
	t.WriteString("|\n")
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// keyTable lists every key of the configuration.
func keyTable() string {
	t := newTable("key", "value", "default", "environment", "meaning", "a change takes effect")
	when := map[config.Apply]string{config.Live: "at once", config.NewJobs: "new jobs", config.Restart: "restart"}
	def := config.Default()
	for _, k := range slices.Concat(config.Keys(), config.KeysOf("NAME"), config.KeysOfStore("NAME")) {
		value, _ := def.Get(k.Name)
		if value == "" {
			value = "empty"
		} else {
			value = code(value)
		}
		meaning := k.Doc
		if k.See != "" {
			meaning += fmt.Sprintf(" ([%s](%s))", k.See, k.See)
		}
		t.row(code(k.Name), k.Kind, value, code(k.Env()), meaning, when[k.Apply])
	}
	return t.String()
}

// variableList lists the variables that are no keys.
func variableList() string {
	var b strings.Builder
	for _, v := range config.Variables() {
		fmt.Fprintf(&b, "- `%s`: %s.\n", v.Name, v.Doc)
	}
	return b.String()
}

// metricTable lists the metrics of the daemon, or those of each job.
func metricTable(perJob bool) string {
	t := newTable("metric", "type", "meaning")
	for _, m := range telemetry.Metrics() {
		if m.PerJob() != perJob {
			continue
		}
		name, kind := m.Name, "gauge"
		if len(m.Labels) > 0 {
			name += "{" + strings.Join(m.Labels, ", ") + "}"
		}
		if m.Counter {
			kind = "counter"
		}
		t.row(code(name), kind, strings.TrimSuffix(m.Help, "."))
	}
	return t.String()
}

// reasonTable explains every reason of an error.
func reasonTable() string {
	t := newTable("reason", "gRPC code", "exit code", "what happened", "what helps")
	for _, e := range errs.Catalogue() {
		t.row(code(string(e.Reason)), upperSnake(rpc.Code(e.Reason).String()), fmt.Sprint(exitOf[e.Reason]), e.Happened,
			e.Helps)
	}
	return t.String()
}

// upperSnake writes a gRPC code as its specification does: NOT_FOUND for NotFound.
func upperSnake(camel string) string {
	var b strings.Builder
	for i, r := range camel {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String()
}

// exitTable lists the exit codes with the reasons that lead to them.
func exitTable() string {
	t := newTable("code", "when")
	for code, c := range exitCodes {
		var reasons []string
		for _, r := range errs.Reasons {
			if exitOf[r] == code {
				reasons = append(reasons, string(r))
			}
		}
		parts := []string{c.when}
		if len(reasons) > 0 {
			parts[0] += ": " + strings.Join(reasons, ", ")
		}
		if c.also != "" {
			parts = append(parts, c.also)
		}
		t.row(fmt.Sprint(code), strings.Join(parts, "; "))
	}
	return t.String()
}

// commands are those that a user may run, without groups of others.
func commands() (list []*cobra.Command) {
	walk(newRoot(), func(c *cobra.Command) {
		if c.Hidden || c.HasAvailableSubCommands() || !c.Runnable() {
			return
		}
		list = append(list, c)
	})
	slices.SortFunc(list, func(a, b *cobra.Command) int { return strings.Compare(a.CommandPath(), b.CommandPath()) })
	return list
}

func commandTable() string {
	t := newTable("command", "what it does")
	for _, c := range commands() {
		t.row(fmt.Sprintf("[%s](#%s)", code(c.CommandPath()), strings.ReplaceAll(c.CommandPath(), " ", "-")), c.Short)
	}
	return t.String()
}

// commandReference has a section for each command: what its help says, and its flags.
func commandReference() string {
	var b strings.Builder
	for _, c := range commands() {
		fmt.Fprintf(&b, "\n### %s\n%s.\n", c.CommandPath(), c.Short)
		if c.Long != "" {
			fmt.Fprintf(&b, "\n%s\n", markdown(c.Long))
		}
		fmt.Fprintf(&b, "\n```sh\n%s\n```\n", unindented(c.Example))
		if c.HasAvailableLocalFlags() {
			b.WriteString("\n" + flagTable(c.LocalNonPersistentFlags()))
		}
	}
	return b.String()
}

func unindented(example string) string {
	var lines []string
	for line := range strings.Lines(strings.Trim(example, "\n")) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.Join(lines, "\n")
}

// markdown turns a help text into Markdown: what is indented is code.
func markdown(help string) string {
	var b strings.Builder
	inCode := false
	for line := range strings.Lines(strings.TrimSpace(help)) {
		line = strings.TrimSuffix(line, "\n")
		isCode := strings.HasPrefix(line, "  ")
		if isCode != inCode {
			b.WriteByte('\n')
		}
		if inCode = isCode; isCode {
			line = "    " + line
		} else {
			line = strings.NewReplacer("*", "\\*", "_", "\\_", "<", "&lt;").Replace(line)
		}
		b.WriteString(line + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}

func flagTable(set *pflag.FlagSet) string {
	t := newTable("flag", "value", "default", "meaning")
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := code("--" + f.Name)
		if f.Shorthand != "" {
			name = code("-"+f.Shorthand) + ", " + name
		}
		value, usage := pflag.UnquoteUsage(f)
		def := f.DefValue
		if slices.Contains([]string{"0", "0s", "false", "[]"}, def) {
			def = ""
		}
		if strings.Contains(def, " ") {
			def = strconv.Quote(def)
		}
		t.row(name, value, code(def), usage)
	})
	return t.String()
}

func globalFlags() string { return flagTable(newRoot().PersistentFlags()) }
