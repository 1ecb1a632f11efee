package report

import (
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"slices"

	"larder/internal/htmlreport"
)

// Write writes the report. The facts are those of the program that makes it.
func Write(w io.Writer, title string, results []Named, facts map[string]string) error {
	page := htmlreport.Page{Title: title, Facts: facts, Short: inShort(results), Index: true}
	results = append(slices.Clone(results), speedUps(results)...)
	shown := map[int]int{} // the first section with a picture of Wanted
	data := map[string]json.RawMessage{}
	for i := range results {
		page.Sections = append(page.Sections, results[i].section(i, shown))
		if results[i].Raw != nil {
			data[results[i].Name] = json.RawMessage(results[i].Raw)
		}
	}
	for i, p := range Wanted {
		c := htmlreport.Check{Title: fmt.Sprintf("%d. %s", i+1, p.Title), Section: -1, Needs: p.Needs}
		if s, ok := shown[i+1]; ok {
			c.Section = s
		}
		page.Checklist = append(page.Checklist, c)
	}
	raw, err := json.Marshal(data) // escapes <, > and &: it cannot end the script
	if err != nil {
		return fmt.Errorf("embed the raw data: %w", err)
	}
	page.Data = template.JS(raw) //nolint:gosec // JSON of json.Marshal
	return htmlreport.Write(w, &page)
}

// section draws a result as the i-th section of a page, and notes which pictures of Wanted it is the first to show.
func (n *Named) section(i int, shown map[int]int) htmlreport.Section {
	s := htmlreport.Section{Name: n.Name, Title: n.Title, Text: n.Text, Tables: n.Tables, Facts: n.Facts}
	if s.Title == "" {
		s.Title = s.Name
	}
	for k := range n.Plots {
		p := &n.Plots[k]
		f := htmlreport.Figure{Title: p.Title, Note: p.Note, Picture: p.SVG(styles)}
		if p.Number > 0 && p.Number <= len(Wanted) {
			f.Title = fmt.Sprintf("%d. %s", p.Number, p.Title)
			if _, ok := shown[p.Number]; !ok {
				shown[p.Number] = i
			}
		}
		s.Figures = append(s.Figures, f)
	}
	return s
}
