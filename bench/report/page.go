package report

import (
	"encoding/json"
	"fmt"
	"html"
	"html/template"
	"io"
	"regexp"
	"slices"
	"strings"
)

// section is one result on the page.
type section struct {
	Named
	Drawn []drawn
	Open  []Table // shown at once
	Long  []Table // shown when asked for
	Keys  []string
}

type drawn struct {
	Title, Note string
	Picture     template.HTML
}

// Write writes the report. Facts are those of whoever makes it.
func Write(w io.Writer, title string, results []Named, facts map[string]string) error {
	page := struct {
		Title    string
		Facts    map[string]string
		FactKeys []string
		Wanted   [][3]string
		Short    *Table
		Sections []section
		Data     template.JS
	}{Title: title, Facts: facts, FactKeys: sortedKeys(facts), Short: inShort(results)}
	results = append(slices.Clone(results), speedUps(results)...)
	have := map[int]string{}
	data := map[string]json.RawMessage{}
	for i := range results {
		s := section{Named: results[i], Keys: sortedKeys(results[i].Facts)}
		if s.Title == "" {
			s.Title = s.Name
		}
		for k := range s.Plots {
			p := &s.Plots[k]
			d := drawn{Title: p.Title, Note: p.Note, Picture: p.draw()}
			if p.Number > 0 && p.Number <= len(Wanted) {
				d.Title = fmt.Sprintf("%d. %s", p.Number, p.Title)
				if have[p.Number] == "" {
					have[p.Number] = fmt.Sprintf("s%d", i)
				}
			}
			s.Drawn = append(s.Drawn, d)
		}
		for _, t := range s.Tables {
			if t.Fold || len(t.Rows) > 40 {
				s.Long = append(s.Long, t)
			} else {
				s.Open = append(s.Open, t)
			}
		}
		page.Sections = append(page.Sections, s)
		if s.Raw != nil {
			data[s.Name] = json.RawMessage(s.Raw)
		}
	}
	for i, p := range Wanted {
		page.Wanted = append(page.Wanted, [3]string{fmt.Sprintf("%d. %s", i+1, p.Title), have[i+1], p.Needs})
	}
	raw, err := json.Marshal(data) // escapes <, > and &: it cannot end the script
	if err != nil {
		return fmt.Errorf("embed the raw data: %w", err)
	}
	page.Data = template.JS(raw) //nolint:gosec // JSON of json.Marshal
	if err := pageTemplate.Execute(w, page); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m { // order-free: sorted below
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// shown is one cell of a table on the page.
type shown struct {
	Text   string
	Class  string
	Across int
}

var numeric = regexp.MustCompile(`^[-+]?[0-9][0-9.,]*( ?(%|s|ms|µs|x|B|KiB|MiB|GiB|/s))?$|^-$`)

// cells are the cells of a row: numbers to the right, what stands out strong, a short row's last one to the end.
func cells(t Table, row int) []shown {
	r := t.Rows[row]
	out := make([]shown, 0, len(r))
	for k, text := range r {
		c := shown{Text: text, Across: 1}
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
func heads(t Table) []shown {
	out := make([]shown, 0, len(t.Head))
	for k, text := range t.Head {
		c := shown{Text: text, Across: 1}
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

// palette is the styles of one list of colours.
func palette(list []template.CSS) template.CSS {
	var css strings.Builder
	for i, c := range list {
		fmt.Fprintf(&css, ".c%d{--c:%s}", i, c)
	}
	return template.CSS(css.String()) //nolint:gosec // made of constants
}

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"cells": cells, "heads": heads, "prose": prose, "light": func() template.CSS { return palette(colours) }, "dark": func() template.CSS { return palette(coloursDark) }}).Parse(`{{define "table"}}{{$t := .}}<div class="scroll"><table><thead><tr>{{range heads .}}<th class="{{.Class}}">{{.Text}}</th>{{end}}</tr></thead><tbody>{{range $i, $r := .Rows}}<tr>{{range cells $t $i}}<td class="{{.Class}}"{{if gt .Across 1}} colspan="{{.Across}}"{{end}}>{{.Text}}</td>{{end}}</tr>
{{end}}</tbody></table></div>{{end}}<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,"><title>{{.Title}}</title><style>
:root{--ink:#1a1a1a;--soft:#5c5c5c;--rule:#dcdcdc;--grid:#e8e8e8;--paper:#fff;--raised:#f6f6f4;--link:#0059a8}{{light}}.ink{--c:var(--ink)}
@media (prefers-color-scheme:dark){:root{--ink:#e2e2e2;--soft:#a3a3a3;--rule:#3a3d44;--grid:#2b2e34;--paper:#15171b;--raised:#1f2227;--link:#7ab8f5}{{dark}}}
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1.2em;color:var(--ink);background:var(--paper)}a{color:var(--link)}
h1{font-size:1.7em;margin:.2em 0 .4em}h2{font-size:1.25em;margin:2.4em 0 .5em;padding-bottom:.2em;border-bottom:1px solid var(--rule)}h3{font-size:1em;margin:1.2em 0 .3em}p{max-width:60em}
.scroll{overflow-x:auto;margin:.5em 0}table{border-collapse:collapse;font-size:13px}th,td{padding:.22em .8em;text-align:left;border-bottom:1px solid var(--rule);vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.n{white-space:nowrap}td:first-child{min-width:8em}
th{background:var(--raised);font-weight:600}.strong{font-weight:700}.missing td{color:var(--soft)}.facts td:first-child{color:var(--soft);white-space:nowrap}.facts td{border:0;padding:.05em .8em .05em 0}
figure{margin:1.2em 0 1.6em;max-width:880px}figcaption{color:var(--soft);font-size:13px}svg{width:100%;height:auto;display:block}details{margin:.6em 0}summary{cursor:pointer;color:var(--link);font-size:14px}nav ul{columns:2;padding-left:1.2em;font-size:14px}
.grid{stroke:var(--grid)}.base{stroke:var(--soft)}.mark{stroke:var(--soft);stroke-dasharray:2 3}.lead{stroke:var(--soft);stroke-width:.6}.tri{fill:none;stroke:var(--rule)}.under{fill:var(--paper)}
text{font:12px system-ui,sans-serif;fill:var(--ink)}text.num,text.unit{fill:var(--soft);font-size:11.5px}text.mid{font-size:10px}text.light{fill:var(--paper)}
.l{fill:none;stroke:var(--c);stroke-width:1.8}.bold{stroke-width:3.2}.dot{stroke-dasharray:2 3}.mix{stroke-dasharray:8 3 2 3}.dash{stroke-dasharray:7 4}.whisker{stroke-width:1.2}.f{fill:var(--c)}.faint{opacity:.45}.chosen{stroke:var(--ink);stroke-width:2.5}
svg:hover .s{opacity:.25}svg .s:hover{opacity:1}
</style></head><body><h1>{{.Title}}</h1>
<table class="facts">{{range .FactKeys}}<tr><td>{{.}}</td><td>{{index $.Facts .}}</td></tr>
{{end}}</table>
{{with .Short}}<h2>In short</h2><p>{{.Title}}</p>{{template "table" .}}{{end}}
<h2>What is here</h2><nav><ul>{{range $i, $s := .Sections}}<li><a href="#s{{$i}}">{{$s.Title}}</a></li>{{end}}</ul></nav>
<details open><summary>The fourteen pictures of a cache benchmark</summary><div class="scroll"><table>{{range .Wanted}}<tr{{if not (index . 1)}} class="missing"{{end}}><td>{{index . 0}}</td><td>{{if index . 1}}<a href="#{{index . 1}}">below</a>{{else}}not in these results: {{index . 2}} makes it{{end}}</td></tr>
{{end}}</table></div></details>
{{range $i, $s := .Sections}}<section id="s{{$i}}"><h2>{{$s.Title}}</h2>
{{range $s.Text}}<p>{{prose .}}</p>{{end}}
{{range $s.Drawn}}<figure><h3>{{.Title}}</h3>{{.Picture}}{{if .Note}}<figcaption>{{.Note}}</figcaption>{{end}}</figure>{{end}}
{{range $s.Open}}{{if .Title}}<h3>{{.Title}}</h3>{{end}}{{template "table" .}}{{end}}
{{range $s.Long}}<details><summary>{{if .Title}}{{.Title}}{{else}}Table{{end}} ({{len .Rows}} rows)</summary>{{template "table" .}}</details>{{end}}
<details><summary>Facts of {{$s.Name}}</summary><table class="facts">{{range $s.Keys}}<tr><td>{{.}}</td><td>{{index $s.Facts .}}</td></tr>
{{end}}</table></details></section>
{{end}}<h2>Raw data</h2><p>All results are in this file: <code>JSON.parse(document.getElementById("data").textContent)</code>, or <a id="save" download="results.json" href="#">save them</a>.</p>
<script type="application/json" id="data">{{.Data}}</script>
<script>document.getElementById("save").href="data:application/json,"+encodeURIComponent(document.getElementById("data").textContent);</script>
</body></html>
`))
