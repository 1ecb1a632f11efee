// Package report writes benchmarks as one HTML file that needs no network: pictures as inline SVG, tables, the facts of machine and seeds, and
// all raw data embedded, so that whoever doubts a picture can draw another. It also compares two results (compare.go).
//
// It measures nothing and knows no daemon; the commands of larder bench write the JSON that it reads.
package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"larder/internal/fault"
)

// Result is what any command of larder bench may write beside its own figures so that a report can show it.
type Result struct {
	Kind   string            `json:"kind"`            // policy, systems, sampler, prep, live, reproduction, compare
	Title  string            `json:"title,omitempty"` // of its part of the report
	Facts  map[string]string `json:"facts,omitempty"` // machine, seeds, versions, hashes of configuration
	Text   []string          `json:"text,omitempty"`  // paragraphs
	Plots  []Plot            `json:"plots,omitempty"`
	Tables []Table           `json:"tables,omitempty"`
}

// Table is a table of text.
type Table struct {
	Title string     `json:"title,omitempty"`
	Head  []string   `json:"head"`
	Rows  [][]string `json:"rows"`
}

// Named is a Result from a file.
type Named struct {
	Name string // of the file
	Raw  []byte // its JSON
	Result
}

// Wanted are the pictures that a benchmark of a cache should show, by number, and what they need.
var Wanted = []struct{ Title, Needs string }{
	{"throughput of each job over time", "larder bench live"},
	{"hit rate by tier", "larder bench live"},
	{"loads against cache size for each policy", "larder bench policy"},
	{"splits of memory: predicted beside measured", "larder bench live with a profile of larder profile"},
	{"speed-up against the number of jobs", "larder bench policy --systems for several numbers of jobs"},
	{"redundancy: reads and decodes per unique sample", "larder bench policy"},
	{"what each job waited for", "larder bench live"},
	{"distribution of the wait for a batch", "larder bench live"},
	{"time to first batch, first epoch", "larder bench live"},
	{"processor time and memory", "larder bench live"},
	{"fairness between jobs of unlike speed", "larder bench policy --systems"},
	{"quality of orders", "larder bench sampler -o json"},
	{"recovery after a kill", "larder bench live"},
	{"accuracy, strict beside opportunistic", "larder bench live --torch"},
}

// Limits of what a report reads.
const (
	maxFile  = 64 << 20
	maxFiles = 1000
)

// ReadDir reads every *.json of a folder that is a result of larder bench, by name; others are named in skipped. An unreadable folder is
// NOT_FOUND, damaged JSON an INVALID_ARGUMENT with the offset.
func ReadDir(dir string) (results []Named, skipped []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fault.Wrap(err, fault.NotFound, dir, "name the folder that holds the JSON of larder bench … -o json", "read the results")
	}
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		if len(results) == maxFiles {
			return nil, nil, fault.New(fault.ResourceExceeded, dir, "make reports of some of them", "more than %d results", maxFiles)
		}
		n, err := ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, nil, err
		}
		if n.Kind == "" {
			skipped = append(skipped, e.Name())
			continue
		}
		results = append(results, *n)
	}
	if len(results) == 0 {
		return nil, skipped, fault.New(fault.NotFound, dir, "e.g. larder bench policy --scenario FILE -o json > "+filepath.Join(dir, "policy.json"), "there are no results of larder bench in the folder")
	}
	return results, skipped, nil
}

// ReadFile reads one result; its Kind is empty when it is JSON of something else.
func ReadFile(path string) (*Named, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.NotFound, path, "check the path", "read the result")
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, path, "check the file and its rights", "read the result")
	}
	if len(raw) > maxFile {
		return nil, fault.New(fault.ResourceExceeded, path, "write fewer runs into a file", "the result has more than %s", fault.Size(int64(maxFile)))
	}
	return Parse(filepath.Base(path), raw)
}

// Parse reads the JSON of a result and makes the pictures that it does not bring.
func Parse(name string, raw []byte) (*Named, error) {
	n := &Named{Name: name, Raw: raw}
	dec := json.NewDecoder(bytes.NewReader(raw))
	var kind struct {
		Kind  string          `json:"kind"`
		Rows  json.RawMessage `json:"rows"`
		Cells json.RawMessage `json:"loads_lower_bound_windows"`
	}
	if err := dec.Decode(&kind); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, name, "name the output of larder bench … -o json", "%s: at byte %d: it is not the JSON of a result", name, dec.InputOffset())
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fault.New(fault.Invalid, name, "keep one result in a file", "%s: at byte %d: something follows the result", name, dec.InputOffset())
	}
	if kind.Kind == "" && kind.Cells != nil {
		kind.Kind = "sampler"
	}
	var err error
	switch kind.Kind {
	case "":
		return n, nil
	case "policy":
		err = n.policy()
	case "sampler":
		err = n.sampler()
	default:
		err = json.Unmarshal(raw, &n.Result)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, name, "write it again with this version of larder", "%s: the result cannot be understood", name)
	}
	n.Kind = kind.Kind
	if n.Facts == nil {
		n.Facts = map[string]string{}
	}
	n.Facts["xxhash64 of the file"] = fmt.Sprintf("%016x", xxhash.Sum64(raw))
	return n, nil
}

// Write writes the report. Facts are those of whoever makes it.
func Write(w io.Writer, title string, results []Named, facts map[string]string) error {
	type section struct {
		Named
		Drawn  []template.HTML
		Titles []string
		Keys   []string
	}
	page := struct {
		Title    string
		Facts    map[string]string
		FactKeys []string
		Wanted   [][3]string
		Sections []section
		Data     template.JS
	}{Title: title, Facts: facts}
	for k := range facts { // order-free: sorted below
		page.FactKeys = append(page.FactKeys, k)
	}
	slices.Sort(page.FactKeys)
	results = append(slices.Clone(results), speedUps(results)...)
	have := map[int]string{}
	data := map[string]json.RawMessage{}
	for i := range results {
		s := section{Named: results[i]}
		for k := range s.Plots {
			p := &s.Plots[k]
			s.Drawn = append(s.Drawn, p.draw())
			s.Titles = append(s.Titles, p.Title)
			if p.Number > 0 {
				have[p.Number] = fmt.Sprintf("s%d", i)
			}
		}
		for k := range s.Facts { // order-free: sorted below
			s.Keys = append(s.Keys, k)
		}
		slices.Sort(s.Keys)
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

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"at": func(l []string, i int) string { return l[i] }, "colours": func() []template.CSS { return colours }}).Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,"><title>{{.Title}}</title><style>
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#1a1a1a;background:#fff}
h1{font-size:1.6em}h2{font-size:1.25em;margin-top:2.2em;border-bottom:1px solid #ccc}h3{font-size:1em;margin:1.4em 0 .2em}
table{border-collapse:collapse;font-size:13px;margin:.6em 0;display:block;overflow-x:auto}th,td{padding:.15em .7em;text-align:right;border-bottom:1px solid #e4e4e4;white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{background:#f5f5f5}svg{width:100%;height:auto;max-width:860px}
.facts td{text-align:left;white-space:normal}.missing{color:#777}
.grid{stroke:#e2e2e2}.base{stroke:#555}text{font:12px system-ui,sans-serif;fill:#333}.num,.unit{fill:#666;font-size:11px}
polyline{fill:none;stroke-width:1.8}.dash{stroke-dasharray:6 4}.dot{stroke-dasharray:2 2}rect.dash{opacity:.55}
{{range $i, $c := colours}}.l{{$i}}{stroke:{{$c}}}.f{{$i}}{fill:{{$c}}}{{end}}
@media (prefers-color-scheme:dark){body{background:#16181c;color:#ddd}text{fill:#ccc}.num,.unit{fill:#999}.grid{stroke:#333}.base{stroke:#999}th{background:#22252b}th,td{border-color:#333}}
</style></head><body><h1>{{.Title}}</h1>
<table class="facts">{{range .FactKeys}}<tr><td>{{.}}</td><td>{{index $.Facts .}}</td></tr>{{end}}</table>
<h2>What is here</h2><table class="facts"><tr><th>picture</th><th></th></tr>{{range .Wanted}}<tr{{if not (index . 1)}} class="missing"{{end}}><td>{{index . 0}}</td><td>{{if index . 1}}<a href="#{{index . 1}}">below</a>{{else}}not in these results; {{index . 2}} makes it{{end}}</td></tr>{{end}}</table>
{{range $i, $s := .Sections}}<section id="s{{$i}}"><h2>{{if $s.Title}}{{$s.Title}}{{else}}{{$s.Name}}{{end}}</h2>
{{range $s.Text}}<p>{{.}}</p>{{end}}
{{range $k, $p := $s.Drawn}}<figure><h3>{{at $s.Titles $k}}</h3>{{$p}}</figure>{{end}}
{{range $s.Tables}}{{if .Title}}<h3>{{.Title}}</h3>{{end}}<table><thead><tr>{{range .Head}}<th>{{.}}</th>{{end}}</tr></thead><tbody>{{range .Rows}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>{{end}}</tbody></table>{{end}}
<details><summary>{{$s.Name}}</summary><table class="facts">{{range $s.Keys}}<tr><td>{{.}}</td><td>{{index $s.Facts .}}</td></tr>{{end}}</table></details></section>
{{end}}<h2>Raw data</h2><p>All results are in this file: <code>JSON.parse(document.getElementById("data").textContent)</code>, or <a id="save" download="results.json" href="#">save them</a>.</p>
<script type="application/json" id="data">{{.Data}}</script>
<script>document.getElementById("save").href="data:application/json,"+encodeURIComponent(document.getElementById("data").textContent);</script>
</body></html>
`))
