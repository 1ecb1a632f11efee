// Package htmlreport writes a report as one HTML file that needs no network and opens anywhere: figures as inline SVG,
// tables, facts, texts to copy, and, where the caller wants it, raw data embedded. `larder bench report` and `larder
// demo` use it.
//
// It knows the look of a page and nothing of what is measured; internal/plot draws the figures. All texts become text,
// never markup.
package htmlreport

import (
	"embed"
	"fmt"
	"html"
	"html/template"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"larder/internal/plot"
)

// Page is a whole report. Every part but the title may be empty.
type Page struct {
	Title     string
	Lead      []string // paragraphs
	Cards     []Card
	Facts     map[string]string // of the tool that makes the report
	Short     *Table            // what a reader in a hurry looks at
	Index     bool              // list the sections
	Checklist []Check           // figures that a report of this kind should have
	Sections  []Section
	Data      template.JS // raw data as JSON that cannot end a script, as json.Marshal writes it; offered for saving
	Footer    string
}

// Card is a large figure at the top of a page.
type Card struct {
	Figure, What, Detail string
	Tone                 Tone
}

// Tone says whether a card or a section is good news. The zero value is neither.
type Tone string

// Tones other than neutral.
const (
	Good Tone = "good"
	Bad  Tone = "bad"
)

// Check is a figure that a report should have.
type Check struct {
	Title   string
	Section int    // the index of the section that has it, or -1
	Needs   string // what makes it
}

// Section is a part of a page.
type Section struct {
	Name    string // of the source of its facts
	Title   string
	Tone    Tone
	Text    []string // paragraphs, in which `x` is code
	Figures []Figure
	Tables  []Table
	Code    []Code
	Facts   map[string]string // shown when asked for
}

// Figure is a picture with its title and a note below it.
type Figure struct {
	Title, Note string
	Picture     template.HTML
}

// Code is a text to copy, behind its title where it has one.
type Code struct{ Title, Text string }

// Table is a table of text. One that is long or says Fold is shown when asked for.
type Table struct {
	Title  string     `json:"title,omitempty"`
	Head   []string   `json:"head"`
	Rows   [][]string `json:"rows"`             // the last cell of a row that is shorter than Head takes the rest of it
	Strong [][2]int   `json:"strong,omitempty"` // row and column of what stands out
	Fold   bool       `json:"fold,omitempty"`
}

// longTable is the number of rows above which a table is folded.
const longTable = 40

// Folded reports whether the table is shown only when asked for.
func (t Table) Folded() bool { return t.Fold || len(t.Rows) > longTable }

//go:embed page.html.tmpl style.css save.js
var files embed.FS

var pageTemplate = template.Must(template.New("page.html.tmpl").Funcs(template.FuncMap{
	"cells":  cells,
	"heads":  heads,
	"prose":  prose,
	"sorted": func(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) },
	"style": func() template.CSS {
		return template.CSS(plot.PictureStyle + file("style.css")) //nolint:gosec // files of these packages
	},
	"script": func() template.JS { return template.JS(file("save.js")) }, //nolint:gosec // a file of this package
	"rows":   func(t Table) int { return len(t.Rows) },
}).ParseFS(files, "page.html.tmpl"))

// file is the text of an embedded file.
func file(name string) string {
	b, err := files.ReadFile(name)
	if err != nil {
		panic(err) // it was embedded when this package was built
	}
	return string(b)
}

// Write writes the report.
func Write(w io.Writer, p *Page) error {
	if err := pageTemplate.Execute(w, p); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// cell is one cell of a table on the page.
type cell struct {
	Text   string
	Class  string
	Across int
}

var numeric = regexp.MustCompile(`^[-+]?[0-9][0-9.,]*( ?(%|s|ms|µs|x|B|KiB|MiB|GiB|/s))?$|^-$`)

// cells are the cells of a row: numbers to the right, what stands out strong, a short row's last one to the end.
func cells(t Table, row int) []cell {
	r := t.Rows[row]
	out := make([]cell, 0, len(r))
	for k, text := range r {
		c := cell{Text: text, Across: 1}
		if k > 0 && numeric.MatchString(text) {
			c.Class = "n"
		}
		if slices.Contains(t.Strong, [2]int{row, k}) {
			c.Class += " strong"
		}
		if k == len(r)-1 && len(r) < len(t.Head) {
			c.Across = len(t.Head) - len(r) + 1
		}
		out = append(out, c)
	}
	return out
}

// heads are the head cells, above numbers to the right.
func heads(t Table) []cell {
	out := make([]cell, 0, len(t.Head))
	for k, text := range t.Head {
		c := cell{Text: text, Across: 1}
		for _, r := range t.Rows {
			if k > 0 && k < len(r) && numeric.MatchString(r[k]) {
				c.Class = "n"
				break
			}
		}
		out = append(out, c)
	}
	return out
}

// prose is a paragraph in which `x` is code.
func prose(s string) template.HTML {
	parts := strings.Split(html.EscapeString(s), "`")
	var b strings.Builder
	for i, part := range parts {
		if code := i%2 == 1 && i+1 < len(parts); code {
			part = "<code>" + part + "</code>"
		} else if i%2 == 1 {
			part = "`" + part
		}
		b.WriteString(part)
	}
	return template.HTML(b.String()) //nolint:gosec // it went through html.EscapeString
}
