package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"html"
	"html/template"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"larder/internal/htmlreport"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/units"
)

// fieldSum collects the values of one field.
type fieldSum struct {
	stored  []int64
	dims    [][]int64 // by dimension, then sample
	values  record.Range
	formats map[string]int
}

func (f *fieldSum) add(x *record.Value, s *shownField) {
	f.stored = append(f.stored, s.Bytes)
	for i, n := range s.Shape {
		if i == len(f.dims) {
			f.dims = append(f.dims, nil)
		}
		f.dims[i] = append(f.dims[i], n)
	}
	switch {
	case s.Format != "":
		if f.formats == nil {
			f.formats = map[string]int{}
		}
		f.formats[s.Format]++
	case x.Kind == record.Scalar || x.Kind == record.Array:
		f.values.Join(x.Range())
	}
}

// stat is what was collected of a field.
func (f *fieldSum) stat(of *record.Field) fieldStat {
	s := fieldStat{values: f.values, Name: of.Name, Kind: of.Kind.String(), DType: of.DType.String(), Shape: of.Shape,
		Stored: quantilesOf(f.stored), NaN: f.values.NaN, Min: number(f.values.Min, f.values),
		Max: number(f.values.Max, f.values), Mean: number(f.values.Mean(), f.values)}
	if s.Shape == nil {
		s.Shape = []int64{}
	}
	for i, d := range of.Shape {
		if d == record.Ragged && i < len(f.dims) {
			s.Dims = append(s.Dims, quantilesOf(f.dims[i]))
		}
	}
	for name, n := range f.formats { // order-free: sorted below
		s.Formats = append(s.Formats, formatSum{name, n})
	}
	slices.SortFunc(s.Formats, func(a, b formatSum) int { return strings.Compare(a.Format, b.Format) })
	return s
}

// recordStats reads records, and says what their fields hold.
func (l *localData) recordStats(
	ctx context.Context, schema *record.Schema, ids []ident.SampleID, s *datasetStats,
) error {
	sums := make([]fieldSum, len(schema.Fields))
	var mu sync.Mutex // guards sums
	var bad badList
	err := each(ctx, len(ids), 0, func(ctx context.Context) (func(int) error, func()) {
		v := verifying{verifier: &verifier{}, cat: l.cat, w: prep.NewWorker(prep.Limits{})}
		return func(i int) error {
			var met []fieldSum
			err := v.record(ctx, l.data.Object(ids[i]), schema, func(x *record.Value, f shownField) {
				one := fieldSum{}
				one.add(x, &f)
				met = append(met, one)
			})
			if err != nil {
				return l.found(ctx, ids[i], err, &bad)
			}
			mu.Lock()
			defer mu.Unlock()
			for k := range met {
				sums[k].join(&met[k])
			}
			return nil
		}, v.w.Close
	})
	if err != nil {
		return err
	}
	for i := range sums {
		s.Fields = append(s.Fields, sums[i].stat(&schema.Fields[i]))
	}
	s.Looked, s.Bad = len(ids), bad.sorted()
	return nil
}

func (f *fieldSum) join(o *fieldSum) {
	f.stored = append(f.stored, o.stored...)
	for i := range o.dims {
		if i == len(f.dims) {
			f.dims = append(f.dims, nil)
		}
		f.dims[i] = append(f.dims[i], o.dims[i]...)
	}
	f.values.Join(o.values)
	for name, n := range o.formats { // order-free: sums
		if f.formats == nil {
			f.formats = map[string]int{}
		}
		f.formats[name] += n
	}
}

// holds says in a few words what the values of a field are.
func (f *fieldStat) holds() string {
	var parts []string
	for _, x := range f.Formats {
		parts = append(parts, count(x.Samples)+" "+x.Format)
	}
	if f.values.Numbers+f.values.NaN > 0 {
		parts = append(parts, rangeText(f.values))
	}
	return strings.Join(parts, ", ")
}

// lengths says how long the dimensions are that differ.
func (f *fieldStat) lengths() string {
	parts := make([]string, len(f.Dims))
	for i, q := range f.Dims {
		if parts[i] = fmt.Sprintf("%s to %s (median %s)", count(q.Min), count(q.Max), count(q.Median)); q.Min == q.Max {
			parts[i] = count(q.Min)
		}
	}
	return strings.Join(parts, " x ")
}

var fieldHead = []string{"FIELD", "KIND", "DTYPE", "SHAPE", "STORED", "LENGTHS", "VALUES"}

func (f *fieldStat) cells() []string {
	return []string{clip(printable(f.Name), 40), f.Kind, f.DType, shapeText(f.Shape), units.Size(f.Stored.Median),
		f.lengths(), f.holds()}
}

func fieldsTable(t *tabwriter.Writer, s *datasetStats) {
	row(t)
	row(t, fmt.Sprintf("fields of %s of %s records; STORED is the median", count(s.Looked-len(s.Bad)), count(s.Samples)))
	line := func(cells []string) {
		out := make([]any, len(cells))
		for i, c := range cells {
			out[i] = c
		}
		row(t, out...)
	}
	line(fieldHead)
	for i := range s.Fields {
		line(s.Fields[i].cells())
	}
	badTable(t, fmt.Sprintf("UNREADABLE: %s of %s records", count(len(s.Bad)), count(s.Looked)), s.Bad)
}

// fieldsSection is the same for a page.
func fieldsSection(s *datasetStats) htmlreport.Section {
	t := htmlreport.Table{}
	for _, h := range fieldHead {
		t.Head = append(t.Head, strings.ToLower(h))
	}
	for i := range s.Fields {
		t.Rows = append(t.Rows, s.Fields[i].cells())
	}
	return htmlreport.Section{Title: "Fields", Text: []string{fmt.Sprintf("Of %s of %s records, spread over them. Stored "+
		"is the median of a sample.", count(s.Looked-len(s.Bad)), count(s.Samples))}, Tables: []htmlreport.Table{t}}
}

// shownFields is one record of the page.
type shownFields struct {
	fields []shownField
	images []shownSample // by field; jpeg nil = it is no image
}

const (
	// leastSide of an array that is shown as an image of grey values: smaller ones are rather vectors and matrices.
	leastSide = 8
	// mostPixels of one that is shown: larger ones are rather matrices, and a thumbnail is not worth their memory.
	mostPixels = 1 << 24
)

// imageOf is an array of uint8 that can be shown as an image: [H, W, 3], or grey values of [H, W, 1] or [H, W].
func imageOf(x *record.Value) (img prep.Image, ok bool) {
	n := x.NDim()
	if x.Kind != record.Array || x.DType != record.Uint8 || n < 2 || n > 3 || x.Len() == 0 {
		return img, false
	}
	img = prep.Image{Pix: x.Data, H: int(x.Dim(0)), W: int(x.Dim(1)), C: 3}
	if min(img.H, img.W) < leastSide || img.H > mostPixels/img.W {
		return img, false
	}
	switch {
	case n == 3 && x.Dim(2) == 3:
		return img, true
	case n == 3 && x.Dim(2) != 1:
		return img, false
	}
	img.Pix = make([]byte, 0, 3*len(x.Data))
	for _, v := range x.Data {
		img.Pix = append(img.Pix, v, v, v)
	}
	return img, true
}

// recordsOf shows records: their images as thumbnails, and all fields.
func (l *localData) recordsOf(ctx context.Context, ids []ident.SampleID, s *datasetStats) (
	htmlreport.Section, []badFile, error,
) {
	schema := l.data.Schema()
	shown := make([]shownFields, len(ids))
	var bad badList
	err := each(ctx, len(ids), 0, func(ctx context.Context) (func(int) error, func()) {
		v := verifying{verifier: &verifier{}, cat: l.cat, w: prep.NewWorker(prep.Limits{})}
		return func(i int) error {
			var failed error
			err := v.record(ctx, l.data.Object(ids[i]), schema, func(x *record.Value, f shownField) {
				image := shownSample{id: ids[i]}
				if err := v.fieldImage(x, &f, &image); err != nil && failed == nil {
					failed = fmt.Errorf("field %s: %w", f.Name, err)
				}
				shown[i].fields, shown[i].images = append(shown[i].fields, f), append(shown[i].images, image)
			})
			if err == nil {
				err = failed
			}
			if err != nil {
				shown[i] = shownFields{}
				err = l.found(ctx, ids[i], err, &bad)
			}
			return err
		}, v.w.Close
	})
	return l.recordsSection(ids, shown, s.Samples), bad.sorted(), err
}

// fieldImage makes a thumbnail of a field that is an image.
func (v *verifying) fieldImage(x *record.Value, f *shownField, to *shownSample) error {
	if f.Format != "" {
		return v.small(x.Data, to)
	}
	img, ok := imageOf(x)
	if !ok {
		return nil
	}
	file, err := prep.EncodePNG(img)
	if err != nil {
		return err
	}
	return v.small(file, to)
}

// recordsSection shows the records. Its markup is made here, of escaped texts and base64 alone.
func (l *localData) recordsSection(ids []ident.SampleID, shown []shownFields, all int) htmlreport.Section {
	var b strings.Builder
	text := func(s string) string { return html.EscapeString(printable(s)) }
	b.WriteString(`<div style="display:flex;flex-wrap:wrap;gap:16px;align-items:flex-start">`)
	n := 0
	for i := range shown {
		x := &shown[i]
		if x.fields == nil {
			continue
		}
		n++
		fmt.Fprintf(&b, `<div style="width:340px;font-size:12px;overflow-wrap:anywhere"><b>%s</b><br>id %d, %s`,
			text(clipPath(l.data.Key(ids[i]), 60)), ids[i], units.Size(l.data.Bytes(ids[i])))
		if v := l.data.Label(ids[i]); v >= 0 {
			fmt.Fprintf(&b, ", label %s", text(labelText(v, clip(l.data.Class(ids[i]), 24))))
		}
		b.WriteString(`<div style="display:flex;flex-wrap:wrap;gap:8px;margin:4px 0">`)
		for j := range x.images {
			if x.images[j].jpeg == nil {
				continue
			}
			fmt.Fprintf(&b, `<div><img alt="%s of sample %d" loading="lazy" style="max-width:100%%;display:block" `+
				`src="data:image/jpeg;base64,%s">%s</div>`, text(x.fields[j].Name), ids[i],
				base64.StdEncoding.EncodeToString(x.images[j].jpeg), text(clip(x.fields[j].Name, 24)))
		}
		b.WriteString(`</div><table style="font-size:12px">`)
		for j := range x.fields {
			f := &x.fields[j]
			fmt.Fprintf(&b, `<tr><td>%s</td><td>%s %s</td><td>%s</td></tr>`, text(clip(f.Name, 40)), text(f.DType),
				shapeText(f.Shape), text(f.Value))
		}
		b.WriteString(`</table></div>`)
	}
	b.WriteString("</div>")
	return htmlreport.Section{Title: "Samples", Text: []string{fmt.Sprintf("%s of %s records, spread over them. Images "+
		"are as larder decodes them; arrays of uint8 that have their shape are shown, too.", count(n), count(all))},
		Figures: []htmlreport.Figure{{Picture: template.HTML(b.String())}}} //nolint:gosec // escaped above
}
