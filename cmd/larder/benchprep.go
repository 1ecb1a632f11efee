package main

import (
	"bufio"
	"context"
	_ "embed" // the DataLoader to compare with
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"larder/internal/config"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/source"
	"larder/internal/xrand"
)

//go:embed benchprep.py
var dataLoader string

// prepBench is what larder bench prep measures: CPU seconds an image, by interleaved passes over the same files.
type prepBench struct {
	Kind    string            `json:"kind"` // prep
	Facts   map[string]string `json:"facts,omitempty"`
	Decoder string            `json:"decoder"`
	Kernels string            `json:"kernels"`
	Images  int               `json:"images"`
	Passes  int               `json:"passes"`
	Rows    []prepRow         `json:"rows"`
}

type prepRow struct {
	What   string     `json:"what"`
	Micros float64    `json:"cpu_us_per_image"` // median of the passes
	Rate   float64    `json:"images_per_cpu_second"`
	Ratio  float64    `json:"larder_to_this"` // rate of "file to sample" over the rate of this one, median of the passes
	Range  [2]float64 `json:"ratio_95"`       // bootstrap

	// Passes are the repeats, for larder bench compare.
	Passes []float64 `json:"cpu_us_per_image_by_pass"`

	seconds []float64
}

func newBenchPrep() *cobra.Command {
	var out outputFlag
	var bare, python string
	var images, passes int
	var progress bool
	cmd := &cobra.Command{
		Use:   "prep DATASET",
		Short: "Measure the CPU time of decoding and augmenting, beside a bare C loop and torch",
		Long: `Measure the CPU time an image takes from its encoded bytes in memory to a normalised float32 sample (RandomResizedCrop 224, flip,
Normalize), on one core, and of its parts. With --bare the same work is done by a C loop over libjpeg-turbo (its source and how to compile
it: internal/prep/testdata/bare/bare.c), with --python by torch's DataLoader without workers, files and crops being the same or drawn alike.
Everything runs in turn in each pass, so ratios hardly depend on what else the machine does; medians, with bootstrap intervals of the ratios.`,
		Example: "  larder bench prep imagefolder:/data/train --bare ./bare --python /usr/bin/python3",
		Args:    args("the URI of a dataset"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if images < 1 || images > 10000 || passes < 1 || passes > 1000 {
				return usagef("leave them out", "--images must be 1 to 10,000 and --passes 1 to 1,000")
			}
			told := func(int, int) {}
			if progress {
				told = progressTo(cmd.ErrOrStderr(), "passes")
			}
			b, err := runBenchPrep(cmd.Context(), absoluteURI(args[0], "."), images, passes, bare, python, told)
			if err != nil {
				return err
			}
			return out.value(cmd.OutOrStdout(), b, func(t *tabwriter.Writer) { prepTable(t, b) })
		},
	}
	cmd.Flags().StringVar(&bare, "bare", "", "program made from internal/prep/testdata/bare/bare.c")
	cmd.Flags().StringVar(&python, "python", "", "Python with torchvision, to compare with its DataLoader")
	cmd.Flags().IntVar(&images, "images", 200, "JPEG images to use, spread over the dataset")
	cmd.Flags().IntVar(&passes, "passes", 15, "passes over them")
	cmd.Flags().BoolVar(&progress, "progress", false, "tell on standard error how far it is")
	out.register(cmd)
	return cmd
}

// peer is another program that does the same work, pass by pass.
type peer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startPeer(ctx context.Context, paths []string, name string, args ...string) (*peer, error) {
	p := &peer{cmd: exec.CommandContext(ctx, name, args...)}
	p.cmd.Stderr = os.Stderr
	p.cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = in, bufio.NewReader(stdout)
	if err := p.cmd.Start(); err != nil {
		return nil, errs.Wrap(err, errs.NotFound, name, "check its path", "start %s", name)
	}
	if _, err := p.ask(fmt.Sprintf("%d\n%s\n", len(paths), strings.Join(paths, "\n"))); err != nil {
		p.stop()
		return nil, errs.Wrap(err, errs.Unsupported, name, "see what it wrote", "compare with %s", name)
	}
	return p, nil
}

func (p *peer) stop() {
	p.in.Close()
	_ = p.cmd.Wait() // what it had to say it has said
}

func (p *peer) ask(q string) (string, error) {
	if _, err := io.WriteString(p.in, q); err != nil {
		return "", err
	}
	line, err := p.out.ReadString('\n')
	return strings.TrimSpace(line), err
}

func (p *peer) pass(q string) (float64, error) {
	line, err := p.ask(q)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(line, 64)
}

// prepFiles reads up to n JPEG images of one scan and three components or one, which is what the C loop knows.
func prepFiles(ctx context.Context, uri string, n int) (paths []string, files [][]byte, err error) {
	cat, err := source.OpenCatalog(source.CatalogConfig{IndexDir: config.DetectMachine().IndexDir})
	if err != nil {
		return nil, nil, err
	}
	defer cat.Close()
	data, err := cat.Open(ctx, uri)
	if err != nil {
		return nil, nil, err
	}
	w := prep.NewWorker(prep.Limits{})
	defer w.Close()
	for i := range data.Len() {
		s := ident.SampleID((i*7919 + 13) % data.Len())
		if len(files) == n || !data.Live(s) {
			continue
		}
		enc, err := cat.Read(ctx, data.Object(s), nil)
		if err != nil {
			return nil, nil, err
		}
		if format, _, _, err := w.Header(enc); err == nil && format == "jpeg" {
			paths, files = append(paths, data.Path(s)), append(files, enc)
		}
	}
	if len(files) == 0 {
		return nil, nil, errs.New(errs.DatasetEmpty, uri, "name a dataset of photographs", "%s holds no JPEG image", uri)
	}
	return paths, files, nil
}

func runBenchPrep(ctx context.Context, uri string, images, passes int, bare, python string,
	told func(done, all int)) (*prepBench, error) {
	paths, files, err := prepFiles(ctx, uri, images)
	if err != nil {
		return nil, err
	}
	r, err := prep.ParseRecipe(usualRecipe)
	if err != nil {
		return nil, err
	}
	whole, err := prep.ParseRecipe(nil)
	if err != nil {
		return nil, err
	}
	w := prep.NewWorker(prep.Limits{})
	defer w.Close()
	dst := make([]byte, r.Output().SampleBytes)
	decoded := make([]prep.Image, len(files))
	for i, enc := range files {
		if decoded[i], err = w.Decode(whole, enc, func(n int) ([]byte, error) { return make([]byte, n), nil }); err != nil {
			return nil, err
		}
	}
	key := func(pass, i int) prep.RandKey {
		return prep.RandKey{Seed: 9, Instance: uint32(pass), Sample: uint64(i)}
	}
	work := func(one func(pass, i int) error) func(int) (float64, error) {
		return func(pass int) (float64, error) {
			begin := cpuSeconds()
			for i := range files {
				if err := one(pass, i); err != nil {
					return 0, fmt.Errorf("%s: %w", paths[i], err)
				}
			}
			return cpuSeconds() - begin, nil
		}
	}
	room := make([]byte, 0)
	alloc := func(n int) ([]byte, error) {
		if cap(room) < n {
			room = make([]byte, n)
		}
		return room[:n], nil
	}
	b := &prepBench{Kind: "prep", Facts: machineFacts(), Decoder: prep.DecoderName(), Kernels: prep.KernelName(),
		Images: len(files), Passes: passes}
	var runs []func(int) (float64, error)
	add := func(what string, run func(int) (float64, error)) {
		b.Rows, runs = append(b.Rows, prepRow{What: what}), append(runs, run)
	}
	add("file to sample", work(func(pass, i int) error { return w.DecodeInto(r, files[i], key(pass, i), dst) }))
	add("decode, then augment", work(func(pass, i int) error {
		img, err := w.Decode(r, files[i], alloc)
		if err != nil {
			return err
		}
		return w.AugmentInto(r, img, key(pass, i), dst)
	}))
	add("decode", work(func(_, i int) error { _, err := w.Decode(r, files[i], alloc); return err }))
	add("augment a decoded image", work(func(pass, i int) error {
		return w.AugmentInto(r, decoded[i], key(pass, i),
			dst)
	}))
	if bare != "" {
		p, err := startPeer(ctx, paths, bare)
		if err != nil {
			return nil, err
		}
		defer p.stop()
		for _, m := range [][2]string{{"part", "decoding the crop"}, {"whole", "decoding the whole image"},
			{"batch", "from file to batch"}} {
			mode := m[0]
			add("bare C loop, "+m[1], func(pass int) (float64, error) {
				var q strings.Builder
				q.WriteString(mode + "\n")
				for i := range files {
					box := r.Params(0, key(pass, i), decoded[i].W, decoded[i].H)
					flip := 0
					if r.Params(1, key(pass, i), 224, 224)["flip"] == true {
						flip = 1
					}
					fmt.Fprintln(&q, box["left"], box["top"], box["width"], box["height"], flip)
				}
				return p.pass(q.String())
			})
		}
	}
	if python != "" {
		p, err := startPeer(ctx, paths, python, "-c", dataLoader)
		if err != nil {
			return nil, err
		}
		defer p.stop()
		add("torch DataLoader, 0 workers", func(int) (float64, error) { return p.pass("run\n") })
	}
	for pass := -1; pass < passes; pass++ { // one to warm up
		told(pass+1, passes+1)
		for k := range runs {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			s, err := runs[k](pass + 1)
			if err != nil {
				return nil, err
			}
			if pass >= 0 {
				b.Rows[k].seconds = append(b.Rows[k].seconds, s)
			}
		}
	}
	b.summarise()
	return b, nil
}

func (b *prepBench) summarise() {
	rnd := xrand.New(1, 0xb007)
	for k := range b.Rows {
		row := &b.Rows[k]
		for _, x := range row.seconds {
			row.Passes = append(row.Passes, 1e6*x/float64(b.Images))
		}
		row.Micros = 1e6 * median(row.seconds) / float64(b.Images)
		row.Rate = 1e6 / row.Micros
		ratios := make([]float64, len(row.seconds))
		for i, s := range row.seconds {
			ratios[i] = s / b.Rows[0].seconds[i]
		}
		row.Ratio = median(ratios)
		again, draw := make([]float64, 1000), make([]float64, len(ratios))
		for n := range again {
			for i := range draw {
				draw[i] = ratios[rnd.IntN(len(ratios))]
			}
			again[n] = median(draw)
		}
		slices.Sort(again)
		row.Range = [2]float64{again[25], again[974]}
	}
}

func median(x []float64) float64 {
	s := slices.Sorted(slices.Values(x))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// cpuSeconds is what this process has used, the garbage collector's part included.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func prepTable(t *tabwriter.Writer, b *prepBench) {
	row(t, fmt.Sprintf("%d images, %d passes; decoder %s, kernels %s", b.Images, b.Passes, b.Decoder, b.Kernels))
	row(t, "WHAT", "CPU us/image", "IMAGES/CPU-S", "LARDER IS", "95 %")
	for _, r := range b.Rows {
		row(t, r.What, fmt.Sprintf("%.0f", r.Micros), fmt.Sprintf("%.0f", r.Rate), fmt.Sprintf("%.2fx", r.Ratio),
			fmt.Sprintf("%.2f-%.2f", r.Range[0], r.Range[1]))
	}
}
