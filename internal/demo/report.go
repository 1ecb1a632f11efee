package demo

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"os"
	"path/filepath"

	"larder/internal/errs"
	"larder/internal/units"
)

//go:embed report.html.tmpl
var reportText string

// The page is one file: its style and its pictures are in it, it asks nothing of a network, and it runs no script.
var reportPage = template.Must(template.New("report").Funcs(template.FuncMap{
	"count": func(v any) string {
		switch n := v.(type) {
		case int:
			return count(n)
		case int64:
			return count(n)
		case uint64:
			return count(n)
		}
		return fmt.Sprint(v)
	},
	"size": func(v any) string {
		switch n := v.(type) {
		case int64:
			return units.Size(n)
		case uint64:
			return units.Size(n)
		}
		return fmt.Sprint(v)
	},
	"f1":      func(v float64) string { return fmt.Sprintf("%.1f", v) },
	"kb":      func(v int64) string { return fmt.Sprintf("%.0f", float64(v)/1e3) },
	"jobLine": jobClass,
}).Parse(reportText))

// card is one of the large figures at the top.
type card struct{ Figure, What, Detail, Class string }

// pair is one row of the summary table.
type pair struct{ Name, Unshared, Shared, Verdict string }

// page is what the template sees.
type page struct {
	*Result
	Title     string
	Cards     []card
	Rows      []pair
	Work      template.HTML
	Decodes   template.HTML
	Rates     template.HTML
	Waits     template.HTML
	Epoch     template.HTML
	Jobs      []jobRow
	Snippet   string
	UniqueX   string
	BoundNote string
	JSON      string
}

type jobRow struct {
	A, B  JobRun // unshared, shared
	Index int
}

// writeReport renders the report beside its place and moves it there, so that a report is always whole.
func writeReport(path string, r *Result) (err error) {
	b, err := renderReport(r)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".larder-demo-*")
	if err == nil {
		_, err = f.Write(b)
		if e := f.Chmod(0o644); err == nil {
			err = e
		}
		if e := f.Close(); err == nil {
			err = e
		}
		if err == nil {
			err = os.Rename(f.Name(), path)
		}
		if err != nil {
			_ = os.Remove(f.Name()) // the first error is the one to tell
		}
	}
	if err != nil {
		return errs.Wrap(err, errs.ResourceExceeded, path, "name another place with --report PATH", "the report could not be written")
	}
	return nil
}

func renderReport(r *Result) ([]byte, error) {
	u, s := &r.Unshared, &r.Shared
	p := page{Result: r, Snippet: Snippet, Title: "larder demo: the same jobs, unshared and shared"}
	class := func(good bool) string {
		if good {
			return "good"
		}
		return "bad"
	}
	p.Cards = []card{
		factorCard(float64(u.Decodes), float64(s.Decodes), 0, "fewer decodes", "more decodes", "decodes", count(u.Decodes)+" → "+count(s.Decodes)),
		factorCard(float64(u.SourceReads), float64(s.SourceReads), 0, "fewer source reads", "more source reads", "source reads", count(u.SourceReads)+" → "+count(s.SourceReads)),
		factorCard(u.Seconds, s.Seconds, sameTime, "faster", "slower", "no difference in time", fmt.Sprintf("%.1f s → %.1f s", u.Seconds, s.Seconds)),
		{fmt.Sprintf("%d of %d", r.Audit.Good, r.Audit.JobEpochs), "job-epochs exactly once", "by the clients' own record", class(r.Audit.OK())},
	}
	num := func(name string, a, b uint64) pair {
		return pair{name, count(a), count(b), compareWords(float64(a), float64(b), 0)}
	}
	sec := func(name, unit string, a, b float64) pair {
		return pair{name, fmt.Sprintf("%.1f %s", a, unit), fmt.Sprintf("%.1f %s", b, unit), compareWords(a, b, sameTime)}
	}
	p.Rows = []pair{
		num("Source reads", u.SourceReads, s.SourceReads),
		{"Bytes read", units.Size(u.SourceBytes), units.Size(s.SourceBytes), compareWords(float64(u.SourceBytes), float64(s.SourceBytes), 0)},
		num("Images decoded", u.Decodes, s.Decodes),
		num("Augments", u.Augments, s.Augments),
		num("Samples delivered", u.Delivered, s.Delivered),
		sec("Processor time of the daemons", "s", u.CPUSeconds, s.CPUSeconds),
		sec("Jobs waiting for data, together", "s", u.Wait(), s.Wait()),
		sec("All jobs done after", "s", u.Seconds, s.Seconds),
		{"Samples per second, all jobs", count(int(u.Rate())), count(int(s.Rate())), compareWords(s.Rate(), u.Rate(), sameTime, "more")},
		{"Resident memory of the daemons, peak", units.Size(u.PeakRSS), units.Size(s.PeakRSS), ""},
	}
	p.Work, p.Decodes, p.Rates = workPlot(r), decodePlot(r), ratePlot(r)
	p.Waits, p.Epoch = waitPlot(r), epochPlot(r)
	p.UniqueX = fmt.Sprintf("%.1f", ratio(float64(r.Deliveries), float64(r.Unique)))
	p.BoundNote = "Augments cannot be fewer than deliveries: every job gets random crops of its own."
	if r.Share == "augmented" {
		p.BoundNote = "Jobs that share augmented samples need at least one crop per sample and epoch."
	}
	for i := range s.Jobs {
		p.Jobs = append(p.Jobs, jobRow{A: u.Jobs[i], B: s.Jobs[i], Index: i})
	}
	raw := *r // the figures without the plots' points, for people who want to copy them
	raw.Unshared.Counters, raw.Shared.Counters = nil, nil
	raw.Unshared.Jobs, raw.Shared.Jobs = nil, nil
	text, err := json.MarshalIndent(raw, "", "  ")
	if err != nil {
		return nil, err
	}
	p.JSON = string(text)
	var b bytes.Buffer
	if err := reportPage.Execute(&b, p); err != nil {
		return nil, fmt.Errorf("render the report: %w", err)
	}
	return b.Bytes(), nil
}

// factorCard is a card that says how often b, the smaller the better, goes into a; or a into b when that is the truth.
func factorCard(a, b, same float64, better, worse, equal, detail string) card {
	switch {
	case b < a*(1-same):
		return card{times(a, b), better, detail, "good"}
	case b > a*(1+same):
		return card{times(b, a), worse, detail, "bad"}
	default:
		return card{"1x", equal, detail, "bad"}
	}
}

// compareWords says how b relates to a, when smaller is better.
func compareWords(a, b, same float64, word ...string) string {
	less, more := "less", "more"
	if len(word) > 0 {
		less, more = word[0], "less"
	}
	switch {
	case b < a*(1-same) && b > 0:
		return times(a, b) + " " + less
	case b > a*(1+same) && a > 0:
		return times(b, a) + " " + more
	case b == a || same > 0:
		return "the same"
	default:
		return ""
	}
}
