// Package reproductions computes published figures again: each reproduction is a list of claims with what was
// published, what comes out here, and a verdict. A folder beside this file has the script of each and what it printed
// (expected.json); docs/reproductions.md is written from those. Everything runs in virtual time from fixed seeds, so
// that the same code prints the same figures.
package reproductions

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"larder/bench"
	"larder/bench/systems"
	"larder/internal/errs"
	"larder/internal/nearest"
)

// Reproduction is one table or figure of a publication.
type Reproduction struct {
	Name   string // of its folder
	Title  string
	Source string // where the figures come from
	Method string
	run    func() ([]Row, error)
}

// Row is one claim.
type Row struct {
	What      string  `json:"what"`
	Published string  `json:"published"`
	Ours      float64 `json:"ours"`
	Verdict   string  `json:"verdict"`
}

// Result is the JSON of a reproduction, which larder bench report shows.
type Result struct {
	Kind   string            `json:"kind"`
	Title  string            `json:"title"`
	Facts  map[string]string `json:"facts"`
	Text   []string          `json:"text"`
	Rows   []Row             `json:"rows"`
	Tables []map[string]any  `json:"tables"`
}

// The verdicts. Every one but the first says why.
const (
	reproduced = "reproduced"
	differs    = "differs because "
	unknown    = "cannot be known: "
	none       = "no figure is published"
)

// All lists the reproductions.
func All() []Reproduction { return all }

var all = []Reproduction{joaderTables, joaderSharing, joaderOverlap, joaderLate, senecaEquations, senecaHits,
	senecaPreparations, senecaMakespan, senecaTable6, closedForms, lockStep}

// Run computes one.
func Run(name string) (*Result, error) {
	var names []string
	for _, r := range all {
		names = append(names, r.Name)
		if r.Name != name {
			continue
		}
		rows, err := r.run()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out := &Result{Kind: "reproduction", Title: r.Title, Facts: map[string]string{"source": r.Source},
			Text: []string{r.Method}, Rows: rows}
		table := [][]string{}
		for i := range rows {
			rows[i].Ours = round(rows[i].Ours)
			table = append(table, []string{rows[i].What, rows[i].Published, fmt.Sprint(rows[i].Ours), rows[i].Verdict})
		}
		out.Tables = []map[string]any{{"head": []string{"", "published", "ours", "verdict"}, "rows": table}}
		return out, nil
	}
	return nil, errs.New(errs.Invalid, "name", nearest.DidYouMean(name, names), "unknown reproduction %.40q", name)
}

// round keeps four digits, or whole numbers.
func round(x float64) float64 {
	if math.Abs(x) >= 1000 {
		return math.Round(x)
	}
	return math.Round(x*1e4) / 1e4
}

// within compares with a published number.
func within(what string, published, ours, tolerance float64, otherwise string) Row {
	r := Row{What: what, Published: fmt.Sprint(round(published)), Ours: ours, Verdict: reproduced}
	if math.Abs(ours-published) > tolerance*math.Abs(published) {
		r.Verdict = differs + otherwise
	}
	return r
}

// sampler runs a scenario of larder bench sampler.
func sampler(text, order string, cache int, policy string) (*bench.SamplerReport, error) {
	sc, err := bench.ParseScenario("scenario", []byte(text))
	if err == nil {
		err = sc.SetOrder(order)
	}
	if err == nil {
		err = sc.SetCache(cache, policy)
	}
	if err != nil {
		return nil, err
	}
	return bench.RunSampler(sc, nil, nil)
}

// twins are jobs on the same n samples, batches of b, a step of one second each times slow.
func twins(n, cache, batch, epochs int, slow ...float64) systems.World {
	w := systems.World{Samples: n, Cache: cache, Seed: 11}
	all := make([]uint32, n)
	for x := range all {
		all[x] = uint32(x)
	}
	for k, s := range slow {
		w.Jobs = append(w.Jobs, systems.Job{Name: fmt.Sprint(k), Subset: all, Step: s, Batch: batch, Epochs: epochs})
	}
	return w
}

//go:embed head.md
var pageHead string

// wrapped breaks a paragraph into lines of at most 120 columns, between words and outside of code.
func wrapped(text string) string {
	var b strings.Builder
	column := 0
	for i, word := range words(text) {
		switch n := utf8.RuneCountInString(word); {
		case i == 0:
			column = n
		case column+1+n > 120:
			b.WriteByte('\n')
			column = n
		default:
			b.WriteByte(' ')
			column += 1 + n
		}
		b.WriteString(word)
	}
	return b.String()
}

// words are the words of a text; what stands between backquotes is not parted.
func words(text string) []string {
	var out []string
	inCode := false
	for w := range strings.FieldsSeq(text) {
		if inCode {
			out[len(out)-1] += " " + w
		} else {
			out = append(out, w)
		}
		if strings.Count(w, "`")%2 == 1 {
			inCode = !inCode
		}
	}
	return out
}

// Page is docs/reproductions.md of results by name.
func Page(results map[string]*Result) string {
	var b, sections strings.Builder
	b.WriteString(pageHead)
	var all3 [3]int
	line := func(title string, n [3]int) {
		link := strings.ReplaceAll(strings.Map(func(r rune) rune {
			if r == ' ' || r == '-' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
				return r
			}
			return -1
		}, strings.ToLower(title)), " ", "-")
		fmt.Fprintf(&b, "| [%s](#%s) | %d | %d | %d |\n", title, link, n[0], n[1], n[2])
		for k := range n {
			all3[k] += n[k]
		}
	}
	for _, r := range all {
		res := results[r.Name]
		if res == nil {
			continue
		}
		fmt.Fprintf(&sections, "\n## %s\n%s\n\n%s\n\n| | published | ours | verdict |\n|---|---|---|---|\n",
			res.Title, wrapped("Source: "+r.Source), wrapped(r.Method+" `bench/reproductions/"+r.Name+"/run.sh`"))
		var n [3]int
		for _, row := range res.Rows {
			fmt.Fprintf(&sections, "| %s | %s | %v | %s |\n", row.What, row.Published, row.Ours, row.Verdict)
			switch {
			case row.Verdict == none:
			case row.Verdict == reproduced:
				n[0]++
			case strings.HasPrefix(row.Verdict, differs):
				n[1]++
			default:
				n[2]++
			}
		}
		line(res.Title, n)
	}
	line("Miss ratios beside libCacheSim's", [3]int{76, 20, 0} /* the table below */)
	fmt.Fprintf(&b, "| in all | %d | %d | %d |\n", all3[0], all3[1], all3[2])
	b.WriteString(sections.String())
	b.WriteString(libcachesim)
	return b.String()
}

// libcachesim is the section of the comparison with libCacheSim, which compare.py of its folder makes.
//
//go:embed libcachesim/section.md
var libcachesim string

// Expected reads what every reproduction printed last, from the folder of this package.
func Expected(dir string) (map[string]*Result, error) {
	results := map[string]*Result{}
	for _, r := range all {
		raw, err := os.ReadFile(filepath.Join(dir, r.Name, "expected.json"))
		if err != nil {
			return nil, err
		}
		results[r.Name] = new(Result)
		if err := json.Unmarshal(raw, results[r.Name]); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Name, err)
		}
	}
	return results, nil
}

// Marshal writes a result as expected.json has it.
func (r *Result) Marshal() ([]byte, error) {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return nil, fmt.Errorf("write a reproduction: %w", err)
	}
	return append(b, '\n'), nil
}
