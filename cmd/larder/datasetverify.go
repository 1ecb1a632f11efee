package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"larder/internal/config"
	"larder/internal/daemon"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/source"
	"larder/internal/store"
	larderv1 "larder/proto/larder/v1"
)

// verified is what larder dataset verify found.
type verified struct {
	URI      string      `json:"uri"`
	Samples  int         `json:"samples"` // in the dataset
	Checked  int         `json:"checked"`
	Bad      []badFile   `json:"bad"`       // cannot be read or decoded
	Damaged  []badFile   `json:"damaged"`   // libjpeg warns, and decodes as far as it goes
	Notes    []string    `json:"notes"`     // as of larder dataset inspect
	Formats  []formatSum `json:"formats"`   // of what was decoded
	MaxBytes int64       `json:"max_bytes"` // that decoding a sample takes at most
}

type badFile struct {
	ID     uint64 `json:"id"`
	Key    string `json:"key"`
	Path   string `json:"path"`
	At     *int64 `json:"damaged_at,omitempty"` // byte of the file, as far as the decoder knows
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
that cannot be read or decoded with its id, its file, the reason, and the byte of the damage where the decoder knows it.
The exit code is 7 if there is one, else 0. JPEG files that libjpeg warns about but decodes are listed apart; --strict
counts them as bad (prep.on_corrupt).

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
			if len(r.Bad) > 0 {
				return &exitError{code: exitData, err: fmt.Errorf("%s of %s samples cannot be prepared", count(len(r.Bad)),
					count(r.Checked))}
			}
			return nil
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

// ownStores are for commands that read without a daemon: stores are reached as one would be that LARDER_CONFIG and the
// environment configure. Close them.
func ownStores() (*store.Stores, error) {
	cfg, err := config.Load(os.Getenv("LARDER_CONFIG"), os.Environ(), nil)
	if err != nil {
		return nil, err
	}
	return store.New(store.Config{Settings: daemon.StoreSettings(cfg), Log: slog.New(slog.DiscardHandler)}), nil
}

func (v *verifier) run(ctx context.Context, uri string) (*verified, error) {
	stores, err := ownStores()
	if err != nil {
		return nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	defer stores.Close()
	cat, err := source.OpenCatalog(source.CatalogConfig{IndexDir: config.DetectMachine().IndexDir, Stores: stores,
		Logger: quiet})
	if err != nil {
		return nil, err
	}
	defer cat.Close()
	open := cat.Open
	if v.skipEmpty {
		open = cat.OpenSkipEmpty
	}
	data, err := open(ctx, uri)
	if err != nil {
		return nil, err
	}
	var ids []ident.SampleID
	for s := range data.Len() {
		if id := ident.SampleID(s); data.Live(id) {
			ids = append(ids, id)
		}
	}
	r := &verified{URI: data.URI(), Samples: len(ids), Notes: data.Notes(), Bad: []badFile{}, Damaged: []badFile{},
		Formats: []formatSum{}}
	if r.Notes == nil {
		r.Notes = []string{}
	}
	if n := v.samples; n > 0 && n < len(ids) {
		some := make([]ident.SampleID, n)
		for i := range some {
			some[i] = ids[i*len(ids)/n]
		}
		ids = some
	}
	r.Checked = len(ids)
	return r, v.all(ctx, cat, data, ids, r)
}

func (v *verifier) all(ctx context.Context, cat *source.Catalog, data *source.Dataset, ids []ident.SampleID,
	r *verified) error {
	recipe, err := prep.ParseRecipe(nil)
	if err != nil {
		return err
	}
	workers := v.workers
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var next, done atomic.Int64
	var mu sync.Mutex // guards r and formats
	formats := map[string]int{}
	g, ctx := errgroup.WithContext(ctx)
	for range min(workers, max(1, len(ids))) {
		g.Go(func() error {
			one := verifying{verifier: v, cat: cat, recipe: recipe, w: prep.NewWorker(prep.Limits{RefuseCorrupt: true})}
			defer one.w.Close()
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(ids) {
					return nil
				}
				s := ids[i]
				format, memory, err := one.sample(ctx, data.Object(s))
				if ctx.Err() != nil {
					return ctx.Err()
				}
				mu.Lock()
				r.MaxBytes = max(r.MaxBytes, memory)
				switch {
				case err == nil:
					formats[format]++
				case prep.IsCorrupt(err) && !v.strict:
					formats[format]++
					r.Damaged = append(r.Damaged, badOf(data, s, err))
				default:
					r.Bad = append(r.Bad, badOf(data, s, err))
				}
				mu.Unlock()
				v.report(int(done.Add(1)), len(ids))
			}
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, list := range [][]badFile{r.Bad, r.Damaged} {
		slices.SortFunc(list, func(a, b badFile) int { return int(int64(a.ID) - int64(b.ID)) })
	}
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
	if v.before != nil {
		v.before(v.enc)
	}
	memory = v.w.Memory(v.enc)
	if format, _, _, err = v.w.Header(v.enc); err == nil {
		_, err = v.w.Decode(v.recipe, v.enc, func(n int) ([]byte, error) {
			if cap(v.pix) < n {
				v.pix = make([]byte, n)
			}
			return v.pix[:n], nil
		})
	}
	return format, memory, err
}

func badOf(data *source.Dataset, s ident.SampleID, err error) badFile {
	b := badFile{ID: uint64(s), Key: data.Key(s), Path: strings.ToValidUTF8(data.Path(s), "\uFFFD"), Reason: err.Error()}
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

func verifiedTable(t *tabwriter.Writer, r *verified) {
	list := func(title string, files []badFile) {
		if len(files) == 0 {
			return
		}
		row(t)
		row(t, title)
		row(t, "ID", "BYTE", "FILE", "REASON")
		for _, b := range files {
			at := "-"
			if b.At != nil {
				at = count(*b.At)
			}
			row(t, b.ID, at, clipPath(b.Key, 60), clip(b.Reason, 200))
		}
	}
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
	list("BAD", r.Bad)
	list("DAMAGED", r.Damaged)
}
