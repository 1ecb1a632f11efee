package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"larder/internal/source"
	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
)

// indexed is what larder dataset index reports.
type indexed struct {
	URI         string   `json:"uri"`
	Samples     int      `json:"samples"`
	Classes     int      `json:"classes"`
	Bytes       int64    `json:"bytes"`
	Fingerprint string   `json:"fingerprint"`
	Found       int      `json:"found"` // samples that were looked at: 0 = the saved index stands
	Kept        int      `json:"kept"`  // files that an earlier try had scanned, which did not come to its end
	Seconds     float64  `json:"seconds"`
	Notes       []string `json:"notes"`
}

func newDatasetIndex(g *globals) *cobra.Command {
	var out outputFlag
	var force, progress, skipEmpty bool
	cmd := &cobra.Command{
		Use:   "index NAME|URI",
		Short: "Build or refresh the saved index of a dataset",
		Long: `Index a dataset, or bring its saved index up to date, with progress; needs no daemon. Nothing is read again
that stands as it was: folders and packed files are known by size and modification time. --force looks at every file.

An index of packed files that fails or is killed goes on where it was: the next try scans only the files that are left.
Damaged files are named together.

The index is saved in the user's cache folder, where the user's daemon finds it: its next job on the dataset begins
without a walk. A daemon that has the dataset already sees changes by larder dataset refresh.`,
		Example: "  larder dataset index imagefolder:/data/train",
		Args:    args("the NAME or URI of a dataset"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			uri, err := datasetURI(cmd.Context(), g, args[0])
			if err != nil {
				return err
			}
			r, err := index(cmd.Context(), uri, force, skipEmpty, indexProgress(cmd.ErrOrStderr(), progress))
			if err != nil {
				return err
			}
			return out.value(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) {
				row(t, fmt.Sprintf("%s: %s of %s, %s, fingerprint %s", clipPath(r.URI, 80), plural(r.Samples, "sample",
					"samples"), plural(r.Classes, "class", "classes"), units.Size(r.Bytes), r.Fingerprint))
				if r.Found == 0 {
					row(t, "the saved index stands")
				} else {
					row(t, fmt.Sprintf("%s looked at in %.1f s", plural(r.Found, "sample", "samples"), r.Seconds))
				}
				if r.Kept > 0 {
					row(t, fmt.Sprintf("%s had been scanned by an earlier try", plural(r.Kept, "file", "files")))
				}
				for _, n := range r.Notes {
					row(t, "note: "+n)
				}
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "look at every file, whatever the folders' times say")
	cmd.Flags().BoolVar(&progress, "progress", false, "report progress on standard error also where that is no terminal")
	cmd.Flags().BoolVar(&skipEmpty, "skip-empty", false, "accept class folders without images, as larder dataset add does")
	out.register(cmd)
	return cmd
}

func index(
	ctx context.Context, uri string, force, skipEmpty bool, report func(now source.Indexed, took time.Duration),
) (*indexed, error) {
	begin := time.Now()
	var p *source.Progress
	p = source.NewProgress(func() { report(p.Now(), time.Since(begin)) })
	ctx = source.WithProgress(ctx, p)
	l, err := openLocal(ctx, uri, skipEmpty)
	if err != nil {
		return nil, err
	}
	defer l.close()
	d := l.data
	if force && p.Now().Samples == 0 {
		if d, err = l.cat.Reindex(ctx, uri); err != nil {
			return nil, err
		}
	}
	notes := d.Notes()
	if notes == nil {
		notes = []string{}
	}
	return &indexed{URI: d.URI(), Samples: d.LiveCount(), Classes: len(d.Classes()), Bytes: d.TotalBytes(), Notes: notes,
		Fingerprint: fmt.Sprintf("%016x", d.Fingerprint()), Found: int(p.Now().Samples), Kept: int(p.Now().KeptFiles),
		Seconds: time.Since(begin).Seconds()}, nil
}

// indexProgress writes how far an index is, on a line that a terminal writes over. What it returns may be called from
// any goroutine.
func indexProgress(w io.Writer, plain bool) func(now source.Indexed, took time.Duration) {
	terminal := isTerminal(w)
	if !terminal && !plain {
		return func(source.Indexed, time.Duration) {}
	}
	pause := 5 * time.Second
	if terminal {
		pause = time.Second / 4
	}
	var mu sync.Mutex
	last := -pause
	return func(now source.Indexed, took time.Duration) {
		if !mu.TryLock() { // another goroutine writes the line
			return
		}
		defer mu.Unlock()
		if took-last < pause {
			return
		}
		last = took
		if terminal {
			fmt.Fprintf(w, "\r\x1b[Kindex: %s", howFar(now, took))
		} else {
			fmt.Fprintf(w, "index: %s\n", howFar(now, took))
		}
	}
}

// howFar says how far an index is, which began a time ago; 0 = its rate is not of interest.
func howFar(now source.Indexed, took time.Duration) string {
	if now.AllFiles == 0 && now.Looked > 0 {
		return "looks for the fields of the samples, " + units.Size(now.Looked) + " read"
	}
	text := count(now.Samples) + " samples"
	if now.AllFiles > 0 {
		text += fmt.Sprintf(", %s of %s, %s of %s (%d %%)", count(now.Files), plural(int(now.AllFiles), "file", "files"),
			units.Size(now.Bytes), units.Size(now.AllBytes), 100*now.Bytes/max(1, now.AllBytes))
	}
	if now.KeptFiles > 0 {
		text += fmt.Sprintf(", %s from an earlier try", plural(int(now.KeptFiles), "file", "files"))
	}
	if s := took.Seconds(); s >= 1 && now.Bytes > now.KeptBytes {
		text += fmt.Sprintf(", %s/s", units.Size(int64(float64(now.Bytes-now.KeptBytes)/s)))
	}
	return text
}

// indexedOf is how far an index of the daemon is.
func indexedOf(x *larderv1.Indexing) source.Indexed {
	return source.Indexed{Samples: int64(x.GetSamples()), Files: int64(x.GetFiles()), AllFiles: int64(x.GetAllFiles()),
		KeptFiles: int64(x.GetKeptFiles()), Bytes: int64(x.GetBytes()), AllBytes: int64(x.GetAllBytes()),
		Looked: int64(x.GetLooked())}
}
