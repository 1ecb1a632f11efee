package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"larder/internal/config"
	"larder/internal/daemon"
	"larder/internal/pack"
	"larder/internal/store"
	"larder/internal/units"
)

func init() { socketCommands = append(socketCommands, newPack) }

// packFlags are the flags of larder pack.
type packFlags struct {
	cfg      pack.Config
	to       string
	size     string
	onError  string
	progress bool
	json     bool
	out      outputFlag
}

func newPack(g *globals) *cobra.Command {
	f := packFlags{}
	cmd := &cobra.Command{
		Use:   "pack NAME|URI --to wds:DIR|mds:DIR|wds:s3://BUCKET/PREFIX|…",
		Short: "Write a dataset as WebDataset tars or MDS shards",
		Long: `Write a dataset of images and labels, in any form that larder reads, as WebDataset tars or as MosaicML's MDS
shards. JPEG and PNG files are copied byte by byte; images in other formats become PNG files with the pixels that larder
delivers. --max-size and --quality encode images again. Records become members KEY.FIELD.npy, .txt, .jpg and so on, or
columns of MDS; --max-size and --quality encode their image files alike, and leave other fields as they are. A field
that has no form there is refused before anything is written.

The command can be killed at any moment. The same command then goes on after the last finished shard, and the result has
the bytes that an uninterrupted run gives. Shards appear in DIR when all are finished, with ` + pack.ManifestName + `,
which lists every shard with its SHA-256, and the samples that were left out. A folder that holds anything else is
refused. In a store (s3://, gs://, az://), shards appear one by one, each whole, and the manifest last; shards are made
in the folder for temporary files (TMPDIR), which holds up to three at once, of MDS the room of four. The exit code
is 7 when samples were left out, or when --verify finds damage.

The command works in its own process. It asks the daemon only for the URI of a NAME.`,
		Example: "  larder pack imagefolder:/data/train --to wds:/data/packed --verify\n" +
			"  larder pack imagefolder:/data/train --to wds:s3://datasets/train\n" +
			"  larder pack 'parquet:/data/rows?fields=image,caption' --to mds:/data/rows-packed --verify\n" +
			"  larder pack idx:/data/FashionMNIST --to mds:/data/packed --max-size 500 --quality 90",
		Args: args("the NAME or URI of a dataset"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, g, args[0]) },
	}
	f.register(cmd)
	return cmd
}

func (f *packFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringVar(&f.to, "to", "",
		"format and place of the pack: wds: or mds: and a folder, or s3://, gs:// or az:// with a prefix")
	s.StringVar(&f.cfg.Subset, "subset", "", "subset expression (default: every sample)")
	s.Uint64Var(&f.cfg.Shuffle, "shuffle", 0, "seed of a random order of the samples; 0 = the order of the dataset")
	s.StringVar(&f.size, "shard-size", "256MiB", "size of a shard at most, unless one sample is larger")
	s.IntVar(&f.cfg.MaxSize, "max-size", 0,
		"resize images whose longer side has more pixels, so that it has as many; 0 = none")
	s.IntVar(&f.cfg.Quality, "quality", 0, "encode images as JPEG of this quality, 1 to 100; with --max-size, JPEG files "+
		"that are small enough stay as they are (default: 90 for resized JPEG files, and no other is encoded)")
	s.BoolVar(&f.cfg.Properties, "properties", false,
		"also store key, class and size of each sample: a .json member, or columns")
	s.StringVar(&f.onError, "on-error", "fail", "what a sample does that cannot be packed: fail, or skip and be listed")
	s.BoolVar(&f.cfg.Verify, "verify", false,
		"read the pack back and compare its checksums, and labels and images or fields")
	s.IntVar(&f.cfg.Workers, "workers", 0, "samples to read and encode at once; 0 = one for each core")
	s.BoolVar(&f.cfg.SkipEmpty, "skip-empty", false, "accept class folders without images, as larder dataset add does")
	s.BoolVar(&f.progress, "progress", false, "report progress on standard error also where that is no terminal")
	s.BoolVar(&f.json, "json", false,
		"report progress on standard error as JSON, one object a line, and the result as -o json does")
	f.out.register(cmd)
}

func (f *packFlags) run(cmd *cobra.Command, g *globals, name string) (err error) {
	if f.json {
		f.out.form = "json"
	}
	if err := f.out.check(); err != nil {
		return err
	}
	if f.to == "" {
		return usagef("e.g. --to wds:/data/packed", "%s needs --to", cmd.CommandPath())
	}
	if f.cfg.To, err = pack.ParseTarget(f.to); err != nil {
		return err
	}
	size, err := config.ParseSize(f.size)
	if err != nil || size.IsAuto() || size.IsPercent() {
		return usagef("e.g. --shard-size 256MiB", "--shard-size %s is no size", f.size)
	}
	f.cfg.ShardSize = max(size.Of(0), 1)
	switch f.onError {
	case "fail", "skip":
		f.cfg.SkipBad = f.onError == "skip"
	default:
		return usagef("write --on-error fail or --on-error skip", "--on-error %s is unknown", f.onError)
	}
	if cmd.Flags().Changed("quality") && f.cfg.Quality == 0 {
		return usagef("e.g. --quality 90", "--quality is 1 to 100")
	}
	if f.cfg.URI, err = datasetURI(cmd.Context(), g, name); err != nil {
		return err
	}
	f.cfg.Report = packProgress(cmd.ErrOrStderr(), f.json, f.progress)
	r, err := f.pack(cmd.Context())
	if err != nil {
		return err
	}
	if err := f.out.value(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) { packTable(t, r) }); err != nil {
		return err
	}
	switch {
	case len(r.Bad) > 0:
		return &exitError{code: exitData, err: fmt.Errorf("%s of %s is damaged", plural(len(r.Bad), "shard", "shards"),
			r.URI)}
	case len(r.Skipped) > 0:
		return &exitError{code: exitData, err: fmt.Errorf("%s left out", plural(len(r.Skipped), "sample was",
			"samples were"))}
	}
	return nil
}

// pack reaches stores as a daemon would that LARDER_CONFIG and the environment configure.
func (f *packFlags) pack(ctx context.Context) (*pack.Result, error) {
	cfg, err := config.Load(os.Getenv("LARDER_CONFIG"), os.Environ(), nil)
	if err != nil {
		return nil, err
	}
	f.cfg.Stores = store.New(store.Config{Settings: daemon.StoreSettings(cfg), Log: slog.New(slog.DiscardHandler)})
	defer f.cfg.Stores.Close()
	return pack.Run(ctx, f.cfg)
}

// packProgress writes how far a run is: a line that is written over on a terminal, else a line now and then.
func packProgress(w io.Writer, asJSON, plain bool) func(pack.Progress) {
	terminal := isTerminal(w)
	if !asJSON && !plain && !terminal {
		return func(pack.Progress) {}
	}
	pause := 5 * time.Second
	if terminal || asJSON {
		pause = time.Second / 4
	}
	var mu sync.Mutex // verify reports from several goroutines
	var last time.Time
	return func(p pack.Progress) {
		mu.Lock()
		defer mu.Unlock()
		end := p.Samples == p.All
		if now := time.Now(); !end && now.Sub(last) < pause {
			return
		} else {
			last = now
		}
		text := fmt.Sprintf("%s: %s of %s samples, %s finished (%s)", p.Phase, count(p.Samples), count(p.All),
			plural(p.Shards, "shard", "shards"), units.Size(p.Bytes))
		switch {
		case asJSON:
			_ = encodeJSON(w, p) // as everywhere: who does not read progress does not get it
		case !terminal:
			fmt.Fprintln(w, text)
		case end:
			fmt.Fprintf(w, "\r\x1b[K%s\n", text)
		default:
			fmt.Fprintf(w, "\r\x1b[K%s", text)
		}
	}
}

func packTable(t *tabwriter.Writer, r *pack.Result) {
	row(t, fmt.Sprintf("%s: %s in %s, %s", clipPath(r.URI, 80), plural(r.Samples, "sample", "samples"),
		plural(r.Shards, "shard", "shards"), units.Size(r.Bytes)))
	if r.Earlier > 0 {
		row(t, plural(r.Earlier, "sample was", "samples were")+" packed by an earlier run")
	}
	if r.Encoded > 0 {
		row(t, fmt.Sprintf("%s encoded again (JPEG by %s)", plural(r.Encoded, "image", "images"), r.Encoder))
	}
	if r.Verified > 0 {
		row(t, fmt.Sprintf("%s read back; %s damaged", plural(r.Verified, "sample", "samples"),
			plural(len(r.Bad), "shard", "shards")))
	}
	for i := range r.Stores {
		c := &r.Stores[i]
		text := fmt.Sprintf("%s: %s, %s, %s and %s; %s sent, %s received", c.Name, plural(c.Writes, "write", "writes"),
			plural(c.Reads, "read", "reads"), plural(c.Lists, "list", "lists"), plural(c.Deletes, "delete", "deletes"),
			units.Size(int64(c.Sent)), units.Size(int64(c.Received)))
		if c.Money > 0 {
			text += fmt.Sprintf("; %.4g of money", c.Money)
		}
		row(t, text)
	}
	if len(r.Skipped) > 0 {
		row(t)
		row(t, "LEFT OUT", "REASON")
		for _, s := range r.Skipped {
			row(t, clipPath(s.Key, 60), clip(s.Reason, 200))
		}
	}
	if len(r.Bad) > 0 {
		row(t)
		row(t, "DAMAGED", "REASON")
		for _, b := range r.Bad {
			row(t, b.Shard, clip(b.Reason, 200))
		}
	}
}
