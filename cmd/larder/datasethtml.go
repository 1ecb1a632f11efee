package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"html"
	"html/template"
	"math"
	"os"
	"path/filepath"
	"strings"

	"larder/internal/errs"
	"larder/internal/htmlreport"
	"larder/internal/ident"
	"larder/internal/plot"
	"larder/internal/prep"
	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
)

const (
	thumbnail        = 160 // pixels of the longer side
	thumbnailQuality = 80
	mostThumbnails   = 1000
)

// shownSample is one sample of the page.
type shownSample struct {
	id     ident.SampleID
	jpeg   []byte // nil = it cannot be shown
	format string
	w, h   int
}

// writeHTML writes a page of a dataset: classes, sizes, samples spread over the subset, and bad ones.
func (l *localData) writeHTML(ctx context.Context, path, subset string, samples int, bad []quarantined) error {
	s, err := l.stats(ctx, subset, mostThumbnails)
	if err != nil {
		return err
	}
	ids, err := l.ids(subset)
	if err != nil {
		return err
	}
	ids = spread(ids, min(samples, mostThumbnails))
	samplesOf := l.samplesOf
	if l.data.Schema() != nil {
		samplesOf = l.recordsOf
	}
	section, undecodable, err := samplesOf(ctx, ids, s)
	if err != nil {
		return err
	}
	page := l.page(s, subset)
	page.Sections = append([]htmlreport.Section{section}, append(page.Sections,
		badSection(undecodable, bad, len(ids)))...)
	var b bytes.Buffer
	if err := htmlreport.Write(&b, page); err != nil {
		return err
	}
	tmp := path + ".part"
	err = os.WriteFile(tmp, b.Bytes(), 0o666) //nolint:gosec // a page that the user asked for, by the user's umask
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return errs.New(errs.Invalid, path, "name a file in a folder that you may write to", "write %s", path).Because(err)
	}
	return nil
}

// samplesOf shows images.
func (l *localData) samplesOf(ctx context.Context, ids []ident.SampleID, s *datasetStats) (
	htmlreport.Section, []badFile, error,
) {
	shown, bad, err := l.thumbnails(ctx, ids)
	return l.samplesSection(shown, s.Samples), bad, err
}

// thumbnails decodes samples and makes small JPEG files of them.
func (l *localData) thumbnails(ctx context.Context, ids []ident.SampleID) ([]shownSample, []badFile, error) {
	shown := make([]shownSample, len(ids))
	var bad badList
	err := each(ctx, len(ids), 0, func(ctx context.Context) (func(int) error, func()) {
		v := verifying{verifier: &verifier{}, cat: l.cat, w: prep.NewWorker(prep.Limits{})}
		return func(i int) error {
			x := shownSample{id: ids[i]}
			err := v.thumbnail(ctx, l.data.Object(ids[i]), &x)
			if err != nil {
				x.jpeg, err = nil, l.found(ctx, ids[i], err, &bad)
			}
			shown[i] = x
			return err
		}, v.w.Close
	})
	return shown, bad.sorted(), err
}

func (v *verifying) thumbnail(ctx context.Context, o ident.ObjectID, x *shownSample) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errs.New(errs.SampleBad, "", "please report this", "larder panicked while preparing it: %v", p)
		}
	}()
	if v.enc, err = v.cat.Read(ctx, o, v.enc[:0]); err != nil {
		return err
	}
	return v.small(v.enc, x)
}

// small makes the thumbnail of an image file.
func (v *verifying) small(file []byte, x *shownSample) (err error) {
	if x.format, x.w, x.h, err = v.w.Header(file); err != nil {
		return err
	}
	w, h, long := x.w, x.h, max(x.w, x.h)
	if long > thumbnail {
		w, h = max(1, w*thumbnail/long), max(1, h*thumbnail/long)
	}
	recipe, err := prep.ParseRecipe([]prep.OpSpec{{Name: "Resize", Args: map[string]any{"size": []int{h, w}}}})
	if err != nil {
		return err
	}
	img, err := v.w.Decode(recipe, file, v.room)
	if err != nil {
		return err
	}
	x.jpeg, err = prep.EncodeJPEG(img, thumbnailQuality)
	return err
}

// page has everything but samples.
func (l *localData) page(s *datasetStats, subset string) *htmlreport.Page {
	p := &htmlreport.Page{Title: "Dataset " + clipPath(s.URI, 80), Footer: "larder dataset inspect --html, " + version}
	if subset != "" {
		p.Lead = append(p.Lead, "Of the subset `"+subset+"`.")
	}
	p.Lead = append(p.Lead, s.Notes...)
	p.Cards = []htmlreport.Card{
		{Figure: count(s.Samples), What: "samples", Detail: units.Size(s.Bytes) + " stored"},
		{Figure: count(len(s.Classes)), What: "classes", Detail: balance(s)},
		{Figure: units.Size(s.Stored.Median), What: "a sample, stored", Detail: fmt.Sprintf("median; %s to %s",
			units.Size(s.Stored.Min), units.Size(s.Stored.Max))},
		{Figure: fmt.Sprintf("%d x %d", s.Widths.Median, s.Heights.Median), What: "pixels",
			Detail: "medians of " + plural(s.Looked-len(s.Bad), "header", "headers")},
	}
	if len(s.Fields) > 0 {
		p.Cards[3] = htmlreport.Card{Figure: count(len(s.Fields)), What: "fields",
			Detail: "values of " + plural(s.Looked-len(s.Bad), "record", "records")}
	}
	classes := plot.Plot{Title: "Samples of each class", Y: "samples", Series: []plot.Series{{Name: "samples"}}}
	for _, c := range someClasses(s.Classes) {
		if c == nil {
			classes.Note = fmt.Sprintf("The first and the last %d of %s classes.", mostClasses/2, count(len(s.Classes)))
			continue
		}
		name := c.Class
		if name == "" {
			name = fmt.Sprint(c.Label)
		}
		classes.Bars = append(classes.Bars, printable(name))
		classes.Series[0].Points = append(classes.Series[0].Points, [2]float64{0, float64(c.Samples)})
	}
	section := htmlreport.Section{Title: "Classes and sizes"}
	if len(classes.Bars) > 0 {
		section.Figures = append(section.Figures, figure(&classes))
	}
	sizes := l.sizes(subset)
	section.Figures = append(section.Figures, figure(&sizes))
	p.Sections = []htmlreport.Section{section}
	if len(s.Fields) > 0 {
		p.Sections = append(p.Sections, fieldsSection(s))
	}
	return p
}

func balance(s *datasetStats) string {
	if len(s.Classes) == 0 {
		return "no sample has a label"
	}
	low, high := math.MaxInt, 0
	for _, c := range s.Classes {
		low, high = min(low, c.Samples), max(high, c.Samples)
	}
	if low == high {
		return plural(low, "sample", "samples") + " each"
	}
	return fmt.Sprintf("%s to %s samples each", count(low), count(high))
}

// sizes is the histogram of stored sizes, by powers of two.
func (l *localData) sizes(subset string) plot.Plot {
	p := plot.Plot{Title: "Stored sizes", Y: "samples", Series: []plot.Series{{Name: "samples"}}}
	ids, err := l.ids(subset)
	if err != nil {
		return p // it was evaluated before
	}
	var bins [64]int
	first, last := len(bins), 0
	for _, id := range ids {
		k := int(math.Log2(float64(max(1, l.data.Bytes(id)))))
		bins[k]++
		first, last = min(first, k), max(last, k)
	}
	for k := first; k <= last; k++ {
		p.Bars = append(p.Bars, units.Size(int64(1)<<k)+" to "+units.Size(int64(2)<<k))
		p.Series[0].Points = append(p.Series[0].Points, [2]float64{0, float64(bins[k])})
	}
	return p
}

func figure(p *plot.Plot) htmlreport.Figure {
	none := func(string) (plot.Style, bool) { return plot.Style{}, false }
	return htmlreport.Figure{Title: p.Title, Note: p.Note, Picture: p.SVG(none)}
}

// samplesSection shows the samples. Its markup is made here, of escaped texts and base64 alone.
func (l *localData) samplesSection(shown []shownSample, all int) htmlreport.Section {
	var b strings.Builder
	b.WriteString(`<div style="display:flex;flex-wrap:wrap;gap:12px">`)
	n := 0
	for i := range shown {
		x := &shown[i]
		if x.jpeg == nil {
			continue
		}
		n++
		label := "no label"
		if v := l.data.Label(x.id); v >= 0 {
			label = fmt.Sprintf("%d %s", v, clip(l.data.Class(x.id), 24))
		}
		key := printable(l.data.Key(x.id))
		fmt.Fprintf(&b, `<div style="width:%dpx;font-size:12px;overflow-wrap:anywhere"><img alt="sample %d" loading="lazy" `+
			`style="max-width:100%%;display:block" src="data:image/jpeg;base64,%s"><b>%s</b><br>%s<br>id %d, %d x %d, %s, %s`+
			`</div>`, thumbnail, x.id, base64.StdEncoding.EncodeToString(x.jpeg), html.EscapeString(printable(label)),
			html.EscapeString(clipPath(key, 60)), x.id, x.w, x.h, x.format, units.Size(l.data.Bytes(x.id)))
	}
	b.WriteString("</div>")
	return htmlreport.Section{Title: "Samples", Text: []string{fmt.Sprintf("%s of %s samples, spread over them, as "+
		"larder decodes them: EXIF orientation is ignored.", count(n), count(all))},
		Figures: []htmlreport.Figure{{Picture: template.HTML(b.String())}}} //nolint:gosec // escaped above
}

// quarantined is a sample that a job could not use.
type quarantined struct {
	job    string
	sample *larderv1.QuarantinedSample
}

// badSection lists what cannot be decoded, and what jobs have met.
func badSection(bad []badFile, met []quarantined, looked int) htmlreport.Section {
	s := htmlreport.Section{Title: "Bad samples", Tone: htmlreport.Good, Text: []string{fmt.Sprintf("%s of the %s that "+
		"were looked at cannot be decoded. `larder dataset verify` looks at every sample.", count(len(bad)), count(looked))}}
	if len(bad) > 0 {
		t := htmlreport.Table{Title: "Cannot be decoded", Head: []string{"id", "key", "offset", "reason"}}
		for _, b := range bad {
			t.Rows = append(t.Rows, []string{fmt.Sprint(b.ID), printable(b.Key), count(b.Offset), printable(b.Reason)})
		}
		s.Tables, s.Tone = append(s.Tables, t), htmlreport.Bad
	}
	if len(met) > 0 {
		t := htmlreport.Table{Title: "Quarantined by running jobs", Head: []string{"job", "id", "key", "reason"}}
		for _, q := range met {
			t.Rows = append(t.Rows, []string{printable(q.job), fmt.Sprint(q.sample.GetId()), printable(q.sample.GetKey()),
				printable(q.sample.GetReason())})
		}
		s.Tables, s.Tone = append(s.Tables, t), htmlreport.Bad
	}
	return s
}

// quarantined asks the daemon, if one runs, what its jobs on a dataset could not use.
func (g *globals) quarantined(ctx context.Context, uri string) (out []quarantined) {
	_ = g.call(ctx, shortCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
		all, err := c.ListDatasets(ctx, &larderv1.ListDatasetsRequest{})
		if err != nil {
			return err
		}
		names := map[string]bool{uri: true}
		for _, d := range all.GetDatasets() {
			names[d.GetName()] = names[d.GetName()] || d.GetUri() == uri
		}
		jobs, err := c.ListJobs(ctx, &larderv1.ListJobsRequest{})
		if err != nil {
			return err
		}
		for _, j := range jobs.GetJobs() {
			if !names[j.GetSpec().GetDataset()] || j.GetCounters().GetQuarantined() == 0 {
				continue
			}
			d, err := c.DescribeJob(ctx, &larderv1.DescribeJobRequest{Name: j.GetSpec().GetName()})
			if err != nil {
				continue // it has ended meanwhile
			}
			for _, q := range d.GetJob().GetQuarantined() {
				out = append(out, quarantined{j.GetSpec().GetName(), q})
			}
		}
		return nil
	}) // without a daemon there is nothing to say
	return out
}

// inspectHTML writes the page of larder dataset inspect --html.
func (g *globals) inspectHTML(ctx context.Context, name, path, subset string, samples int) (string, error) {
	uri, err := datasetURI(ctx, g, name)
	if err != nil {
		return "", err
	}
	l, err := openLocal(ctx, uri, true)
	if err != nil {
		return "", err
	}
	defer l.close()
	if samples == 0 {
		samples = 100
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	return path, l.writeHTML(ctx, path, subset, samples, g.quarantined(ctx, l.data.URI()))
}
