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
)

// indexed is what larder dataset index reports.
type indexed struct {
	URI         string   `json:"uri"`
	Samples     int      `json:"samples"`
	Classes     int      `json:"classes"`
	Bytes       int64    `json:"bytes"`
	Fingerprint string   `json:"fingerprint"`
	Found       int      `json:"found"` // samples that were looked at: 0 = the saved index stands
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

func index(ctx context.Context, uri string, force, skipEmpty bool, report func(samples int)) (*indexed, error) {
	begin, found := time.Now(), 0
	var mu sync.Mutex // guards found
	ctx = source.WithProgress(ctx, func(samples int) {
		mu.Lock()
		defer mu.Unlock()
		found += samples
		report(found)
	})
	l, err := openLocal(ctx, uri, skipEmpty)
	if err != nil {
		return nil, err
	}
	defer l.close()
	d := l.data
	if force && found == 0 {
		if d, err = l.cat.Reindex(ctx, uri); err != nil {
			return nil, err
		}
	}
	notes := d.Notes()
	if notes == nil {
		notes = []string{}
	}
	return &indexed{URI: d.URI(), Samples: d.LiveCount(), Classes: len(d.Classes()), Bytes: d.TotalBytes(), Notes: notes,
		Fingerprint: fmt.Sprintf("%016x", d.Fingerprint()), Found: found, Seconds: time.Since(begin).Seconds()}, nil
}

// indexProgress writes how many samples were found, on a line that a terminal writes over.
func indexProgress(w io.Writer, plain bool) func(samples int) {
	terminal := isTerminal(w)
	if !terminal && !plain {
		return func(int) {}
	}
	pause := 5 * time.Second
	if terminal {
		pause = time.Second / 4
	}
	last := time.Now().Add(-pause)
	return func(samples int) {
		now := time.Now()
		if now.Sub(last) < pause {
			return
		}
		last = now
		if terminal {
			fmt.Fprintf(w, "\r\x1b[Kindex: %s samples", count(samples))
		} else {
			fmt.Fprintf(w, "index: %s samples\n", count(samples))
		}
	}
}
