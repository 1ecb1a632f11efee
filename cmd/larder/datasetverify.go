package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
)

// verified is what larder dataset verify found.
type verified struct {
	URI      string      `json:"uri"`
	Samples  int         `json:"samples"` // in the dataset
	Checked  int         `json:"checked"`
	Bad      []badFile   `json:"bad"`       // cannot be read or decoded
	Damaged  []badFile   `json:"damaged"`   // libjpeg warns, and decodes as far as it goes
	Changed  []badPart   `json:"changed"`   // parts of files whose checksums do not fit, of no sample alone
	Notes    []string    `json:"notes"`     // as of larder dataset inspect
	Formats  []formatSum `json:"formats"`   // of what was decoded
	MaxBytes int64       `json:"max_bytes"` // that decoding a sample takes at most
}

type badFile struct {
	ID     uint64 `json:"id"`
	Key    string `json:"key"`
	Path   string `json:"path"`
	Offset int64  `json:"offset"`               // byte of the file at which the sample begins: of packed files
	At     *int64 `json:"damaged_at,omitempty"` // byte of the sample, as far as the decoder knows
	Reason string `json:"reason"`
}

type badPart struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

type formatSum struct {
	Format  string `json:"format"`
	Samples int    `json:"samples"`
}

func newDatasetVerify(g *globals) *cobra.Command {
	var out outputFlag
	var samples, workers int
	var strict, progress, skipEmpty bool
	cmd := &cobra.Command{
		Use:   "verify NAME|URI",
		Short: "Read and decode every sample, and list the bad ones",
		Long: `Read and decode every sample of a dataset, or --samples of them spread over it. The output lists each sample
that cannot be read or decoded with its id, its file, where it begins in a packed file, the reason, and the byte of the
sample at which the decoder met the damage, where it knows.
The exit code is 7 if there is one, else 0. JPEG files that libjpeg warns about but decodes are listed apart; --strict
counts them as bad (prep.on_corrupt). A store that does not answer or a disk that is gone makes no bad samples: the
command ends with the cause.

Of a dataset of records, every record is read, compared with the schema, and the images in its fields are decoded.
Where a file has checksums of more than one sample (the arrays of a .npz that is not compressed), those of the fields
that the dataset reads are compared, too, unless --samples chooses some. What has changed is listed by file, and the
exit code is 7: which samples it is, the checksum cannot say.

The command works in its own process. It asks the daemon only for the URI of a NAME. Limits are those of the default
configuration.`,
		Example: "  larder dataset verify imagefolder:/data/train\n  larder dataset verify train --samples 1000 -o json",
		Args:    args("the NAME or URI of a dataset"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if samples < 0 || workers < 0 {
				return usagef("0 means all samples, and one worker a core", "--samples %d or --workers %d is negative", samples,
					workers)
			}
			uri, err := datasetURI(cmd.Context(), g, args[0])
			if err != nil {
				return err
			}
			v := verifier{samples: samples, workers: workers, strict: strict, skipEmpty: skipEmpty, report: func(int, int) {}}
			if progress {
				v.report = progressTo(cmd.ErrOrStderr(), "verify")
			}
			r, err := v.run(cmd.Context(), uri)
			if err != nil {
				return err
			}
			if err := out.value(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) { verifiedTable(t, r) }); err != nil {
				return err
			}
			return r.failure()
		},
	}
	cmd.Flags().IntVar(&samples, "samples", 0, "samples to check, spread over the dataset; 0 = all")
	cmd.Flags().IntVar(&workers, "workers", 0, "samples to decode at once; 0 = one for each core")
	cmd.Flags().BoolVar(&strict, "strict", false,
		"JPEG files that libjpeg warns about are bad, as with prep.on_corrupt error")
	cmd.Flags().BoolVar(&progress, "progress", false, "report progress on standard error")
	cmd.Flags().BoolVar(&skipEmpty, "skip-empty", false, "accept class folders without images, as larder dataset add does")
	out.register(cmd)
	return cmd
}

// bad reports whether a sample is among the bad ones.
func (r *verified) bad(id uint64) bool {
	return slices.ContainsFunc(r.Bad, func(b badFile) bool { return b.ID == id })
}

// failure is the error of a dataset with bad samples, or with parts that have changed.
func (r *verified) failure() error {
	switch {
	case len(r.Bad) > 0:
		return &exitError{code: exitData, err: fmt.Errorf("%s of %s samples cannot be prepared", count(len(r.Bad)),
			count(r.Checked))}
	case len(r.Changed) > 0:
		return &exitError{code: exitData, err: fmt.Errorf("%s of the files of %s do not have their checksums: write them "+
			"again, or copy them from where they are whole", plural(len(r.Changed), "part", "parts"), clipPath(r.URI, 80))}
	}
	return nil
}

// datasetURI is the uri of what a daemon calls so; a uri is taken as it is, without a daemon.
func datasetURI(ctx context.Context, g *globals, name string) (uri string, err error) {
	if strings.ContainsAny(name, ":/") {
		return absoluteURI(name, "."), nil
	}
	err = g.call(ctx, shortCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
		r, err := c.ListDatasets(ctx, &larderv1.ListDatasetsRequest{})
		if err != nil {
			return err
		}
		for _, d := range r.GetDatasets() {
			if d.GetName() == name {
				uri = d.GetUri()
				return nil
			}
		}
		return errs.New(errs.NotFound, name, "larder dataset ls shows what there is; or write its URI",
			"no dataset is named %q", name)
	})
	return uri, err
}

// verifier decodes samples.
type verifier struct {
	samples, workers int
	strict           bool
	skipEmpty        bool
	report           func(done, all int)
	before           func(enc []byte) // for tests, which have no image that panics
}

func (v *verifier) run(ctx context.Context, uri string) (*verified, error) {
	l, err := openLocal(ctx, uri, v.skipEmpty)
	if err != nil {
		return nil, err
	}
	defer l.close()
	ids, err := l.ids("")
	if err != nil {
		return nil, err
	}
	r := &verified{URI: l.data.URI(), Samples: len(ids), Notes: l.data.Notes(), Formats: []formatSum{},
		Changed: []badPart{}}
	if r.Notes == nil {
		r.Notes = []string{}
	}
	ids = spread(ids, v.samples)
	r.Checked = len(ids)
	if err := v.all(ctx, l, ids, r); err != nil || v.samples > 0 {
		return r, err
	}
	return r, v.sums(ctx, l, r)
}

// sums compares the checksums that reads of samples do not compare.
func (v *verifier) sums(ctx context.Context, l *localData, r *verified) error {
	files := l.cat.SummedFiles(l.data)
	var mu sync.Mutex // guards r
	err := each(ctx, len(files), v.workers, func(ctx context.Context) (func(int) error, func()) {
		return func(i int) error {
			bad, err := l.cat.CheckSums(ctx, l.data, files[i])
			if ctx.Err() != nil {
				return ctx.Err()
			}
			path := strings.ToValidUTF8(l.data.Path(files[i]), "\uFFFD")
			if err != nil {
				if err := l.lost(ctx, files[i], err); err != nil {
					return err
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil && !r.bad(uint64(files[i])) {
				r.Bad = append(r.Bad, l.badOf(files[i], err))
			}
			for _, reason := range bad {
				r.Changed = append(r.Changed, badPart{path, reason})
			}
			return nil
		}, func() {}
	})
	slices.SortFunc(r.Bad, func(a, b badFile) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(r.Changed, func(a, b badPart) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Reason, b.Reason))
	})
	return err
}

func (v *verifier) all(ctx context.Context, l *localData, ids []ident.SampleID, r *verified) error {
	recipe, err := prep.ParseRecipe(nil)
	if err != nil {
		return err
	}
	var done atomic.Int64
	var bad, damaged badList
	var mu sync.Mutex // guards formats and r
	formats := map[string]int{}
	err = each(ctx, len(ids), v.workers, func(ctx context.Context) (func(int) error, func()) {
		one := verifying{verifier: v, cat: l.cat, schema: l.data.Schema(), recipe: recipe,
			w: prep.NewWorker(prep.Limits{RefuseCorrupt: true})}
		return func(i int) error {
			s := ids[i]
			format, memory, err := one.sample(ctx, l.data.Object(s))
			if ctx.Err() != nil {
				return ctx.Err()
			}
			isCorrupt := prep.IsCorrupt(err) && !v.strict
			switch {
			case isCorrupt:
				damaged.add(l.badOf(s, err))
			case err != nil:
				if err := l.found(ctx, s, err, &bad); err != nil {
					return err
				}
			}
			mu.Lock()
			r.MaxBytes = max(r.MaxBytes, memory)
			if err == nil || isCorrupt {
				formats[format]++
			}
			mu.Unlock()
			v.report(int(done.Add(1)), len(ids))
			return nil
		}, one.w.Close
	})
	if err != nil {
		return err
	}
	r.Bad, r.Damaged = bad.sorted(), damaged.sorted()
	for f, n := range formats {
		r.Formats = append(r.Formats, formatSum{f, n})
	}
	slices.SortFunc(r.Formats, func(a, b formatSum) int { return strings.Compare(a.Format, b.Format) })
	return nil
}

// verifying is one goroutine of a verifier, and its memory.
type verifying struct {
	*verifier
	cat      *source.Catalog
	schema   *record.Schema // of a dataset of records; nil = its samples are images
	recipe   *prep.Recipe
	w        *prep.Worker
	enc, pix []byte
}

// sample reads and decodes one object. A panic is a bug, but of one sample, as in the daemon.
func (v *verifying) sample(ctx context.Context, o ident.ObjectID) (format string, memory int64, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errs.New(errs.SampleBad, "", "please report this", "larder panicked while preparing it: %v", p)
		}
	}()
	if v.enc, err = v.cat.Read(ctx, o, v.enc[:0]); err != nil {
		return "", 0, err
	}
	if v.schema != nil {
		_, err = v.w.Record(v.schema, v.enc, v.room)
		return "record", v.w.RecordMemory(v.schema, v.enc), err
	}
	if v.before != nil {
		v.before(v.enc)
	}
	memory = v.w.Memory(v.enc)
	if format, _, _, err = v.w.Header(v.enc); err == nil {
		_, err = v.w.Decode(v.recipe, v.enc, v.room)
	}
	return format, memory, err
}

// room is memory for what is decoded, until the next sample.
func (v *verifying) room(n int) ([]byte, error) {
	if cap(v.pix) < n {
		v.pix = make([]byte, n)
	}
	return v.pix[:n], nil
}

func (l *localData) badOf(s ident.SampleID, err error) badFile {
	b := badFile{ID: uint64(s), Key: l.data.Key(s), Path: strings.ToValidUTF8(l.data.Path(s), "\uFFFD"),
		Reason: err.Error()}
	_, b.Offset = l.cat.ObjectPath(l.data.Object(s))
	if f := (*errs.Error)(nil); errors.As(err, &f) {
		b.Reason = f.Message
		if f.Err != nil {
			b.Reason += ": " + f.Err.Error()
		}
	}
	if at, ok := prep.DamagedAt(err); ok {
		b.At = &at
	}
	return b
}

// badTable lists bad samples, with the place of each in its packed file.
func badTable(t *tabwriter.Writer, title string, files []badFile) {
	if len(files) == 0 {
		return
	}
	row(t)
	row(t, title)
	row(t, "ID", "OFFSET", "BYTE", "FILE", "REASON")
	for _, b := range files {
		at := "-"
		if b.At != nil {
			at = count(*b.At)
		}
		row(t, b.ID, count(b.Offset), at, clipPath(b.Key, 60), clip(b.Reason, 200))
	}
}

func verifiedTable(t *tabwriter.Writer, r *verified) {
	var formats []string
	for _, f := range r.Formats {
		formats = append(formats, fmt.Sprintf("%s %s", count(f.Samples), f.Format))
	}
	row(t, fmt.Sprintf("%s: %s of %s samples read and decoded (%s)", clipPath(r.URI, 80), count(r.Checked-len(r.Bad)),
		count(r.Samples), strings.Join(formats, ", ")))
	row(t, fmt.Sprintf("%s bad, %s damaged and decoded as far as they go", count(len(r.Bad)), count(len(r.Damaged))))
	for _, n := range r.Notes {
		row(t, "note: "+n)
	}
	badTable(t, "BAD", r.Bad)
	badTable(t, "DAMAGED", r.Damaged)
	if len(r.Changed) > 0 {
		row(t)
		row(t, "CHANGED")
		row(t, "FILE", "REASON")
		for _, b := range r.Changed {
			row(t, clipPath(b.Path, 60), clip(b.Reason, 200))
		}
	}
}
