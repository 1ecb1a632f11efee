package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"larder/internal/errs"
	"larder/internal/htmlreport"
	"larder/internal/units"
)

// pair is one row of the summary table.
type pair struct{ name, unshared, shared, verdict string }

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
			_ = os.Remove(f.Name()) // the first error is the one to report
		}
	}
	if err != nil {
		return errs.New(errs.ResourceExceeded, path, "name another place with --report PATH",
			"the report could not be written").Because(err)
	}
	return nil
}

// renderReport makes the page: one file, its style and its pictures in it; it asks nothing of a network and runs no
// script.
func renderReport(r *Result) ([]byte, error) {
	measured, err := howMeasured(r)
	if err != nil {
		return nil, err
	}
	p := htmlreport.Page{
		Title: fmt.Sprintf("%d jobs, one dataset: unshared and shared", len(r.Shared.Jobs)),
		Lead: []string{fmt.Sprintf("Every job trained %d epoch%s on its own part of %s drawn photographs, first with a "+
			"loader of its "+
			"own, then with one larder daemon for all. The memory for caches was the same both times: %s in all.",
			r.Epochs, plural(r.Epochs), count(r.Dataset.Samples), units.Size(r.MemoryBytes))},
		Cards: cards(r),
		Sections: []htmlreport.Section{
			verdict(r),
			{Title: "Summary", Tables: []htmlreport.Table{summary(r)}},
			{Title: "Work per sample", Figures: figure(workPlot(r)), Text: []string{fmt.Sprintf(
				"How often a sample was read, decoded and augmented, divided by the %s samples that at least one job wanted. The "+
					"jobs asked for %.1f deliveries of each. The lower bound is the least that any loader needs. %s",
				count(r.Unique), ratio(float64(r.Deliveries), float64(r.Unique)), boundNote(r))}},
			{Title: "Decodes over time", Figures: figure(decodePlot(r)),
				Text: []string{"The dashed line is every wanted sample decoded once."}},
			{Title: "Throughput of each job", Figures: figure(ratePlot(r)),
				Text: []string{"Samples a second, as the clients received them; the same scales on both sides. A line ends when " +
					"its job is done."}},
			{Title: "Waiting", Figures: figure(waitPlot(r)),
				Text: []string{"How long each job's next batch was not there yet when it asked for it."}},
			{Title: "Epochs", Figures: figure(epochPlot(r)), Text: []string{"When each epoch of each job ran."}},
			{Title: "The jobs", Tables: []htmlreport.Table{jobTable(r)}},
			measured,
			{Title: "In your script", Code: []htmlreport.Code{{Text: Snippet}}},
		},
		Footer: "larder " + r.Version,
	}
	var b bytes.Buffer
	if err := htmlreport.Write(&b, &p); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// cards are the large figures at the top.
func cards(r *Result) []htmlreport.Card {
	u, s := &r.Unshared, &r.Shared
	exact := htmlreport.Good
	if !r.Audit.OK() {
		exact = htmlreport.Bad
	}
	decodes := factor{float64(u.Decodes), float64(s.Decodes), 0}
	reads := factor{float64(u.SourceReads), float64(s.SourceReads), 0}
	seconds := factor{u.Seconds, s.Seconds, sameTime}
	return []htmlreport.Card{
		decodes.card([3]string{"fewer decodes", "more decodes", "decodes"}, count(u.Decodes)+" → "+count(s.Decodes)),
		reads.card([3]string{"fewer source reads", "more source reads", "source reads"},
			count(u.SourceReads)+" → "+count(s.SourceReads)),
		seconds.card([3]string{"faster", "slower", "no difference in time"}, fmt.Sprintf("%.1f s → %.1f s", u.Seconds,
			s.Seconds)),
		{Figure: fmt.Sprintf("%d of %d", r.Audit.Good, r.Audit.JobEpochs), What: "job-epochs exactly once",
			Detail: "by the clients' own record", Tone: exact},
	}
}

// verdict says whether every sample came exactly once, and what sharing saved.
func verdict(r *Result) htmlreport.Section {
	s := htmlreport.Section{Tone: htmlreport.Good}
	if !r.OK {
		s.Tone = htmlreport.Bad
	}
	answer := "NO"
	if r.Audit.OK() {
		answer = "yes"
	}
	s.Text = append(s.Text, fmt.Sprintf("Each job saw every sample exactly once per epoch: %s, %d of %d job-epochs, "+
		"checked from what "+
		"the clients received.", answer, r.Audit.Good, r.Audit.JobEpochs))
	s.Text = append(append(s.Text, r.Verdict...), r.Audit.Problems...)
	return s
}

// summary is the table of both runs.
func summary(r *Result) htmlreport.Table {
	u, s := &r.Unshared, &r.Shared
	num := func(name string, a, b uint64) pair {
		return pair{name, count(a), count(b), compareWords(float64(a), float64(b), 0)}
	}
	sec := func(name string, a, b float64) pair {
		return pair{name, fmt.Sprintf("%.1f s", a), fmt.Sprintf("%.1f s", b), compareWords(a, b, sameTime)}
	}
	t := htmlreport.Table{Head: []string{"", "unshared", "shared", "with sharing"}}
	for _, p := range []pair{
		num("Source reads", u.SourceReads, s.SourceReads),
		{"Bytes read", units.Size(u.SourceBytes), units.Size(s.SourceBytes),
			compareWords(float64(u.SourceBytes), float64(s.SourceBytes), 0)},
		num("Images decoded", u.Decodes, s.Decodes),
		num("Augments", u.Augments, s.Augments),
		num("Samples delivered", u.Delivered, s.Delivered),
		sec("Processor time of the daemons", u.CPUSeconds, s.CPUSeconds),
		sec("Jobs waiting for data, together", u.Wait(), s.Wait()),
		sec("All jobs done after", u.Seconds, s.Seconds),
		{"Samples per second, all jobs", count(int(u.Rate())), count(int(s.Rate())),
			compareWords(s.Rate(), u.Rate(), sameTime, "more")},
		{"Resident memory of the daemons, peak", units.Size(u.PeakRSS), units.Size(s.PeakRSS), ""},
	} {
		t.Rows = append(t.Rows, []string{p.name, p.unshared, p.shared, p.verdict})
	}
	return t
}

// boundNote says what the lower bound of augments is.
func boundNote(r *Result) string {
	if r.Share == "augmented" {
		return "Jobs that share augmented samples need at least one crop per sample and epoch."
	}
	return "Augments cannot be fewer than deliveries: every job gets random crops of its own."
}

// jobTable lists the jobs.
func jobTable(r *Result) htmlreport.Table {
	t := htmlreport.Table{Head: []string{"job", "subset", "samples", "batch", "step", "done after, unshared", "shared"}}
	for i := range r.Shared.Jobs {
		a, b := &r.Unshared.Jobs[i], &r.Shared.Jobs[i]
		t.Rows = append(t.Rows, []string{b.Name, b.Subset, count(b.Samples), fmt.Sprint(b.Batch),
			fmt.Sprintf("%.1f ms", b.StepMillis),
			fmt.Sprintf("%.1f s", a.Seconds), fmt.Sprintf("%.1f s", b.Seconds)})
	}
	return t
}

// howMeasured says how the figures came about, and has them as JSON.
func howMeasured(r *Result) (htmlreport.Section, error) {
	raw := *r // the figures without the plots' points, for people who want to copy them
	raw.Unshared.Counters, raw.Shared.Counters = nil, nil
	raw.Unshared.Jobs, raw.Shared.Jobs = nil, nil
	text, err := json.MarshalIndent(raw, "", "  ")
	if err != nil {
		return htmlreport.Section{}, fmt.Errorf("render the report: %w", err)
	}
	d, m := &r.Dataset, &r.Machine
	return htmlreport.Section{
		Title: "How it was measured",
		Text: []string{
			fmt.Sprintf("%s JPEG files of %.0f–%.0f kB in %d classes (%s, %s decoded) were drawn from seed %d. Each job is a "+
				"process of "+
				"its own; it takes batches in shared memory through the local session, reads every byte, and sleeps for its "+
				"step time "+
				"as if an accelerator worked. The recipe is RandomResizedCrop(224) and RandomHorizontalFlip; shared "+
				"augmentation: %s. "+
				"Unshared means %d daemons with %d equal parts of the memory, shared means one daemon with all of it; the daemons "+
				"differ in nothing else, and all jobs of a run start together. The files were in the operating system's page "+
				"cache both times, so reads are counted here, and their price is not: with real storage it is higher.",
				count(d.Samples), float64(d.MinBytes)/1e3, float64(d.MaxBytes)/1e3, d.Classes, units.Size(d.Bytes),
				units.Size(d.Decoded), r.Seed, r.Share, r.Unshared.Daemons, r.Unshared.Daemons),
			fmt.Sprintf("Exactly once was checked by comparing the ids and labels that each client received with the subset "+
				"computed "+
				"from the drawn files, in both runs. %s pictures were compared by their pixels; %s of them had been seen by their "+
				"job before.", count(r.Audit.Pictures), count(r.Audit.Repeats)),
			fmt.Sprintf("%s, %d cores, %s, decoder %s; one run, %s, %.1f s in all. Repeat it with:",
				m.CPU, m.Cores, m.OS, m.Decoder, r.Started.UTC().Format("2006-01-02 15:04 UTC"), r.Seconds),
		},
		Code: []htmlreport.Code{{Text: r.Command}, {Title: "The figures as JSON", Text: string(text)}},
	}, nil
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// factor compares two amounts of which the smaller is the better; they are equal within a part of the first.
type factor struct{ unshared, shared, same float64 }

// card says how many times better or worse sharing is; the words are for better, worse and equal.
func (f factor) card(words [3]string, detail string) htmlreport.Card {
	switch {
	case f.shared < f.unshared*(1-f.same):
		return htmlreport.Card{Figure: times(f.unshared, f.shared), What: words[0], Detail: detail, Tone: htmlreport.Good}
	case f.shared > f.unshared*(1+f.same):
		return htmlreport.Card{Figure: times(f.shared, f.unshared), What: words[1], Detail: detail, Tone: htmlreport.Bad}
	default:
		return htmlreport.Card{Figure: "1x", What: words[2], Detail: detail, Tone: htmlreport.Bad}
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
