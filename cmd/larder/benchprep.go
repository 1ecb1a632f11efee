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

// prepOptions are those of larder bench prep.
type prepOptions struct {
	images, passes int
	bare, python   string // programs to compare with; "" = none
	report         func(done, all int)
}

func newBenchPrep() *cobra.Command {
	var out outputFlag
	var progress bool
	o := prepOptions{report: func(int, int) {}}
	cmd := &cobra.Command{
		Use:   "prep DATASET",
		Short: "Measure the CPU time of decoding and augmenting, beside a bare C loop and torch",
		Long: `Measure the CPU time of an image on one core, from its encoded bytes in memory to a normalised float32 sample
(RandomResizedCrop 224, flip, Normalize), and the time of each part. --bare compares with a C loop over libjpeg-turbo
(source and compilation: internal/prep/testdata/bare/bare.c), --python with torch's DataLoader without workers, on the
same files with the same or equally distributed crops. All rows take turns in each pass, so that the ratios hardly
depend on other load. Results are medians; ratios have bootstrap intervals.`,
		Example: "  larder bench prep imagefolder:/data/train --bare ./bare --python /usr/bin/python3",
		Args:    args("the URI of a dataset"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if o.images < 1 || o.images > 10000 || o.passes < 1 || o.passes > 1000 {
				return usagef("leave them out", "--images must be 1 to 10,000 and --passes 1 to 1,000")
			}
			if progress {
				o.report = progressTo(cmd.ErrOrStderr(), "passes")
			}
			b, err := runBenchPrep(cmd.Context(), absoluteURI(args[0], "."), o)
			if err != nil {
				return err
			}
			return out.value(cmd.OutOrStdout(), b, func(t *tabwriter.Writer) { prepTable(t, b) })
		},
	}
	cmd.Flags().StringVar(&o.bare, "bare", "", "program made from internal/prep/testdata/bare/bare.c")
	cmd.Flags().StringVar(&o.python, "python", "", "Python with torchvision, to compare with its DataLoader")
	cmd.Flags().IntVar(&o.images, "images", 200, "JPEG images to use, spread over the dataset")
	cmd.Flags().IntVar(&o.passes, "passes", 15, "passes over them")
	cmd.Flags().BoolVar(&progress, "progress", false, "report progress on standard error")
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
		return nil, errs.New(errs.NotFound, name, "check its path", "start %s", name).Because(err)
	}
	if _, err := p.ask(fmt.Sprintf("%d\n%s\n", len(paths), strings.Join(paths, "\n"))); err != nil {
		p.stop()
		return nil, errs.New(errs.Unsupported, name, "see what it wrote", "compare with %s", name).Because(err)
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

// prepRun is a measurement of larder bench prep while it is made.
type prepRun struct {
	*prepBench
	paths        []string
	files        [][]byte     // encoded
	decoded      []prep.Image // of files
	recipe       *prep.Recipe
	worker       *prep.Worker
	row          []byte // where samples are written
	room         []byte // where images are decoded
	runs         []func(pass int) (float64, error)
	bare, python string // programs to compare with; "" = none
	peers        []*peer
}

func runBenchPrep(ctx context.Context, uri string, o prepOptions) (*prepBench, error) {
	p := &prepRun{bare: o.bare, python: o.python}
	var err error
	if p.paths, p.files, err = prepFiles(ctx, uri, o.images); err != nil {
		return nil, err
	}
	p.worker = prep.NewWorker(prep.Limits{})
	defer p.worker.Close()
	p.prepBench = &prepBench{Kind: "prep", Facts: machineFacts(), Decoder: prep.DecoderName(), Kernels: prep.KernelName(),
		Images: len(p.files), Passes: o.passes}
	defer p.stopPeers()
	for _, add := range []func(context.Context) error{p.addLarder, p.addBare, p.addTorch} {
		if err := add(ctx); err != nil {
			return nil, err
		}
	}
	for pass := -1; pass < o.passes; pass++ { // one to warm up
		o.report(pass+1, o.passes+1)
		for k := range p.runs {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			s, err := p.runs[k](pass + 1)
			if err != nil {
				return nil, err
			}
			if pass >= 0 {
				p.Rows[k].seconds = append(p.Rows[k].seconds, s)
			}
		}
	}
	p.summarise()
	return p.prepBench, nil
}

func (p *prepRun) add(what string, run func(pass int) (float64, error)) {
	p.Rows, p.runs = append(p.Rows, prepRow{What: what}), append(p.runs, run)
}

// key fixes the random parameters of an image in a pass.
func (p *prepRun) key(pass, i int) prep.RandKey {
	return prep.RandKey{Seed: 9, Instance: uint32(pass), Sample: uint64(i)}
}

// each measures the CPU time of one call for every image.
func (p *prepRun) each(one func(pass, i int) error) func(int) (float64, error) {
	return func(pass int) (float64, error) {
		begin := cpuSeconds()
		for i := range p.files {
			if err := one(pass, i); err != nil {
				return 0, fmt.Errorf("%s: %w", p.paths[i], err)
			}
		}
		return cpuSeconds() - begin, nil
	}
}

func (p *prepRun) alloc(n int) ([]byte, error) {
	if cap(p.room) < n {
		p.room = make([]byte, n)
	}
	return p.room[:n], nil
}

// addLarder adds larder's own ways from file to sample.
func (p *prepRun) addLarder(context.Context) (err error) {
	if p.recipe, err = prep.ParseRecipe(usualRecipe); err != nil {
		return err
	}
	whole, err := prep.ParseRecipe(nil)
	if err != nil {
		return err
	}
	w, r := p.worker, p.recipe
	p.row = make([]byte, r.Output().SampleBytes)
	p.decoded = make([]prep.Image, len(p.files))
	for i, enc := range p.files {
		room := func(n int) ([]byte, error) { return make([]byte, n), nil }
		if p.decoded[i], err = w.DecodeCompact(whole, enc, room); err != nil {
			return err
		}
	}
	p.add("file to sample", p.each(func(pass, i int) error {
		return w.DecodeInto(r, p.files[i], p.key(pass, i), p.row)
	}))
	p.add("decode, then augment", p.each(func(pass, i int) error {
		img, err := w.DecodeCompact(r, p.files[i], p.alloc)
		if err != nil {
			return err
		}
		return w.AugmentInto(r, img, p.key(pass, i), p.row)
	}))
	p.add("decode", p.each(func(_, i int) error { _, err := w.DecodeCompact(r, p.files[i], p.alloc); return err }))
	p.add("augment a decoded image", p.each(func(pass, i int) error {
		return w.AugmentInto(r, p.decoded[i], p.key(pass, i), p.row)
	}))
	return nil
}

// addBare adds the C loop, with larder's random parameters.
func (p *prepRun) addBare(ctx context.Context) error {
	if p.bare == "" {
		return nil
	}
	c, err := p.startPeer(ctx, p.bare)
	if err != nil {
		return err
	}
	for _, m := range [][2]string{
		{"part", "decoding the crop"}, {"whole", "decoding the whole image"}, {"batch", "from file to batch"},
	} {
		mode := m[0]
		p.add("bare C loop, "+m[1], func(pass int) (float64, error) {
			var q strings.Builder
			q.WriteString(mode + "\n")
			for i := range p.files {
				box := p.recipe.Params(0, p.key(pass, i), p.decoded[i].W, p.decoded[i].H)
				flip := 0
				if p.recipe.Params(1, p.key(pass, i), 224, 224)["flip"] == true {
					flip = 1
				}
				fmt.Fprintln(&q, box["left"], box["top"], box["width"], box["height"], flip)
			}
			return c.pass(q.String())
		})
	}
	return nil
}

// addTorch adds torch's DataLoader.
func (p *prepRun) addTorch(ctx context.Context) error {
	if p.python == "" {
		return nil
	}
	c, err := p.startPeer(ctx, p.python, "-c", dataLoader)
	if err != nil {
		return err
	}
	p.add("torch DataLoader, 0 workers", func(int) (float64, error) { return c.pass("run\n") })
	return nil
}

func (p *prepRun) startPeer(ctx context.Context, name string, args ...string) (*peer, error) {
	c, err := startPeer(ctx, p.paths, name, args...)
	if err == nil {
		p.peers = append(p.peers, c)
	}
	return c, err
}

func (p *prepRun) stopPeers() {
	for _, c := range slices.Backward(p.peers) {
		c.stop()
	}
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
