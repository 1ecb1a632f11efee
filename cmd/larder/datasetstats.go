package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"larder/internal/ident"
	"larder/internal/record"
	"larder/internal/units"
)

// datasetStats is what larder dataset stats reports.
type datasetStats struct {
	URI       string      `json:"uri"`
	Samples   int         `json:"samples"` // of the subset
	Bytes     int64       `json:"bytes"`   // stored
	Classes   []classStat `json:"classes"` // those with samples, in label order
	Unlabeled int         `json:"unlabelled"`
	Stored    quantiles   `json:"stored_bytes"` // of a sample, of all samples
	Looked    int         `json:"looked"`       // samples whose header was read
	Formats   []formatSum `json:"formats"`      // of those, as all that follows
	Widths    quantiles   `json:"widths"`
	Heights   quantiles   `json:"heights"`
	Decoded   quantiles   `json:"decoded_bytes"`    // as RGB
	Bad       []badFile   `json:"bad"`              // whose header is no image's
	Fields    []fieldStat `json:"fields,omitempty"` // of a dataset of records, whose headers are not read
	Notes     []string    `json:"notes"`
}

// fieldStat is a field of records, and of those that were read what its values are.
type fieldStat struct {
	Name    string      `json:"name"`
	Kind    string      `json:"kind"`
	DType   string      `json:"dtype,omitempty"`
	Shape   []int64     `json:"shape"`             // -1 = differs between samples
	Stored  quantiles   `json:"stored_bytes"`      // of a sample
	Dims    []quantiles `json:"dims,omitempty"`    // of the dimensions that differ, in order; of text its bytes
	Min     *float64    `json:"min,omitempty"`     // of scalars and arrays
	Max     *float64    `json:"max,omitempty"`     //
	Mean    *float64    `json:"mean,omitempty"`    //
	NaN     int64       `json:"nan,omitempty"`     // values that are no number
	Formats []formatSum `json:"formats,omitempty"` // of image files

	values record.Range // of them all; JSON has no infinite numbers
}

type classStat struct {
	Label   int64  `json:"label"`
	Class   string `json:"class"`
	Samples int    `json:"samples"`
	Bytes   int64  `json:"bytes"`
}

// quantiles of a list of numbers; all are 0 for an empty one.
type quantiles struct {
	Min    int64   `json:"min"`
	P5     int64   `json:"p5"`
	Median int64   `json:"median"`
	P95    int64   `json:"p95"`
	Max    int64   `json:"max"`
	Mean   float64 `json:"mean"`
}

func quantilesOf(v []int64) quantiles {
	if len(v) == 0 {
		return quantiles{}
	}
	v = slices.Sorted(slices.Values(v))
	sum := 0.0
	for _, x := range v {
		sum += float64(x)
	}
	at := func(part float64) int64 { return v[int(part*float64(len(v)-1)+0.5)] }
	return quantiles{v[0], at(.05), at(.5), at(.95), v[len(v)-1], sum / float64(len(v))}
}

func newDatasetStats(g *globals) *cobra.Command {
	var out outputFlag
	var subset string
	var samples int
	var skipEmpty bool
	cmd := &cobra.Command{
		Use:   "stats NAME|URI",
		Short: "Count classes, sizes and formats of a dataset",
		Long: `Count the samples of each class, and how large stored samples are. Of --samples samples, spread over the
dataset, the headers are read too: formats, widths, heights, and what decoding takes. Samples whose header is no image's
are listed. Of a dataset of records, --samples records are read: sizes, ranges and lengths of each field.

The command works in its own process, and saves the index where the user's daemon finds it. It asks the daemon only for
the URI of a NAME.`,
		Example: "  larder dataset stats imagefolder:/data/train\n  larder dataset stats train --subset 'label < 10' -o json",
		Args:    args("the NAME or URI of a dataset"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if samples < 0 {
				return usagef("0 means all samples", "--samples %d is negative", samples)
			}
			uri, err := datasetURI(cmd.Context(), g, args[0])
			if err != nil {
				return err
			}
			l, err := openLocal(cmd.Context(), uri, skipEmpty)
			if err != nil {
				return err
			}
			defer l.close()
			s, err := l.stats(cmd.Context(), subset, samples)
			if err != nil {
				return err
			}
			return out.value(cmd.OutOrStdout(), s, func(t *tabwriter.Writer) { dataStatsTable(t, s) })
		},
	}
	cmd.Flags().StringVar(&subset, "subset", "", "subset expression (default: every sample)")
	cmd.Flags().IntVar(&samples, "samples", 1000, "samples whose headers are read, spread over the dataset; 0 = all")
	cmd.Flags().BoolVar(&skipEmpty, "skip-empty", false, "accept class folders without images, as larder dataset add does")
	out.register(cmd)
	return cmd
}

func (l *localData) stats(ctx context.Context, subset string, samples int) (*datasetStats, error) {
	ids, err := l.ids(subset)
	if err != nil {
		return nil, err
	}
	s := &datasetStats{URI: l.data.URI(), Samples: len(ids), Notes: l.data.Notes(), Formats: []formatSum{}}
	if s.Notes == nil {
		s.Notes = []string{}
	}
	sizes := make([]int64, len(ids))
	byLabel := map[int64]*classStat{}
	for i, id := range ids {
		sizes[i] = l.data.Bytes(id)
		s.Bytes += sizes[i]
		label := l.data.Label(id)
		if label < 0 {
			s.Unlabeled++
			continue
		}
		c := byLabel[label]
		if c == nil {
			c = &classStat{Label: label, Class: l.data.Class(id)}
			byLabel[label] = c
		}
		c.Samples++
		c.Bytes += sizes[i]
	}
	s.Classes = make([]classStat, 0, len(byLabel))
	for _, c := range byLabel {
		s.Classes = append(s.Classes, *c)
	}
	slices.SortFunc(s.Classes, func(a, b classStat) int { return cmp.Compare(a.Label, b.Label) })
	s.Stored = quantilesOf(sizes)
	if schema := l.data.Schema(); schema != nil {
		return s, l.recordStats(ctx, schema, spread(ids, samples), s)
	}
	return s, l.headers(ctx, spread(ids, samples), s)
}

// headers reads those of some samples.
func (l *localData) headers(ctx context.Context, ids []ident.SampleID, s *datasetStats) error {
	type size struct {
		format string
		w, h   int64
	}
	seen := make([]size, len(ids))
	var bad badList
	err := each(ctx, len(ids), 0, func(ctx context.Context) (func(int) error, func()) {
		return func(i int) error {
			p, err := l.cat.Probe(ctx, l.data.Object(ids[i]))
			if err != nil {
				return l.found(ctx, ids[i], err, &bad)
			}
			seen[i] = size{p.Format, int64(p.Width), int64(p.Height)}
			return nil
		}, func() {}
	})
	if err != nil {
		return err
	}
	var widths, heights, decoded []int64
	formats := map[string]int{}
	for _, x := range seen {
		if x.format != "" {
			formats[x.format]++
			widths, heights, decoded = append(widths, x.w), append(heights, x.h), append(decoded, 3*x.w*x.h)
		}
	}
	for f, n := range formats {
		s.Formats = append(s.Formats, formatSum{f, n})
	}
	sort.Slice(s.Formats, func(i, j int) bool { return s.Formats[i].Format < s.Formats[j].Format })
	s.Looked, s.Bad = len(ids), bad.sorted()
	s.Widths, s.Heights, s.Decoded = quantilesOf(widths), quantilesOf(heights), quantilesOf(decoded)
	return nil
}

func dataStatsTable(t *tabwriter.Writer, s *datasetStats) {
	row(t, fmt.Sprintf("%s: %s of %s, %s", clipPath(s.URI, 80), plural(s.Samples, "sample", "samples"),
		plural(len(s.Classes), "class", "classes"), units.Size(s.Bytes)))
	if s.Unlabeled > 0 {
		row(t, plural(s.Unlabeled, "sample has", "samples have")+" no label")
	}
	for _, n := range s.Notes {
		row(t, "note: "+n)
	}
	row(t)
	row(t, "", "MIN", "5 %", "MEDIAN", "95 %", "MAX", "MEAN")
	size := units.Size[int64]
	for _, x := range []struct {
		name string
		q    quantiles
		text func(int64) string
	}{{"stored", s.Stored, size}, {"decoded", s.Decoded, size}, {"width", s.Widths, count[int64]},
		{"height", s.Heights, count[int64]}} {
		if len(s.Fields) > 0 && x.name != "stored" { // of records, fields have widths and heights
			break
		}
		row(t, x.name, x.text(x.q.Min), x.text(x.q.P5), x.text(x.q.Median), x.text(x.q.P95), x.text(x.q.Max),
			x.text(int64(x.q.Mean)))
	}
	if len(s.Fields) > 0 {
		fieldsTable(t, s)
	} else {
		row(t)
		for _, f := range s.Formats {
			row(t, fmt.Sprintf("%s of %s headers: %s", count(f.Samples), count(s.Looked), f.Format))
		}
		badTable(t, fmt.Sprintf("NO IMAGE: %s of %s headers", count(len(s.Bad)), count(s.Looked)), s.Bad)
	}
	if len(s.Classes) == 0 {
		return
	}
	row(t)
	row(t, "LABEL", "CLASS", "SAMPLES", "BYTES")
	for _, c := range someClasses(s.Classes) {
		if c == nil {
			row(t, "…")
			continue
		}
		row(t, c.Label, clip(c.Class, 40), count(c.Samples), units.Size(c.Bytes))
	}
}

// mostClasses that a table or picture has.
const mostClasses = 40

// someClasses are the classes of a table; nil stands for those between the first and the last ones.
func someClasses(list []classStat) (out []*classStat) {
	for i := range list {
		switch {
		case len(list) <= mostClasses || i < mostClasses/2 || i >= len(list)-mostClasses/2:
			out = append(out, &list[i])
		case i == mostClasses/2:
			out = append(out, nil)
		}
	}
	return out
}
