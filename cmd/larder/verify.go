package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"larder/internal/config"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/prep/parity"
	"larder/internal/source"
)

func init() { extraCommands = append(extraCommands, newVerify) }

func newVerify() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "verify",
		Short:   "Check what larder promises on your own data; needs no daemon",
		Example: "  larder verify parity imagefolder:/data/train",
		Args:    noArgs,
		RunE:    needSubcommand,
	}
	cmd.AddCommand(newVerifyParity())
	return cmd
}

func newVerifyParity() *cobra.Command {
	var out outputFlag
	var v verification
	var recipe string
	cmd := &cobra.Command{
		Use:   "parity DATASET",
		Short: "Compare a recipe's output with that of the installed torchvision",
		Long: `Run a recipe on samples of a dataset by larder and by the installed Pillow and torchvision, with the same
random parameters. For each op the output has how many values differ, and by how much at most and on average. Each op
gets the input that larder computed before it; "whole recipe" starts from the file. Below, the distributions of the
random parameters are compared (Kolmogorov-Smirnov).

The exit code is 0 if no byte differs, both accept the same files and all distributions match, else 7. The portable
build decodes JPEG by itself and differs there. docs/parity.md explains the table.

A recipe file is the file of a job or only the list of its transform (see larder profile). Without one, the usual
ImageNet training recipe is compared.`,
		Example: "  larder verify parity imagefolder:/data/train\n  larder verify parity imagefolder:/data/val --recipe " +
			"eval.yaml --samples 0 -o json",
		Args: args("the URI of a dataset"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if !strings.Contains(args[0], ":") && !strings.Contains(args[0], "/") {
				return usagef("e.g. "+firstExample(cmd),
					"verify reads storage itself and does not know the daemon's names: write the URI of %q", args[0])
			}
			if v.samples < 0 {
				return usagef("0 means all", "--samples %d is negative", v.samples)
			}
			var err error
			if v.recipe, err = readRecipe(recipe, cmd.InOrStdin()); err != nil {
				return err
			}
			rep, err := v.run(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := out.value(cmd.OutOrStdout(), rep, func(t *tabwriter.Writer) { parityTable(t, rep) }); err != nil {
				return err
			}
			if !rep.Equal() {
				return &exitError{code: exitData, err: errors.New("larder and torchvision differ")}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&recipe, "recipe", "",
		"YAML of a job or of its transform; - is standard input (default: the usual ImageNet training recipe)")
	cmd.Flags().StringVar(&v.python, "python", "python3", "Python that can import torchvision")
	cmd.Flags().IntVar(&v.samples, "samples", 100, "samples to compare, spread over the dataset; 0 = all")
	cmd.Flags().Uint64Var(&v.seed, "seed", 1, "seed of the random parameters")
	out.register(cmd)
	return cmd
}

// verification compares a recipe's output with torchvision's.
type verification struct {
	recipe  *prep.Recipe
	python  string
	samples int // spread over the dataset; 0 = all
	seed    uint64
}

func (v *verification) run(ctx context.Context, uri string) (*parity.Report, error) {
	python, r := v.python, v.recipe
	cat, err := source.OpenCatalog(source.CatalogConfig{IndexDir: config.DetectMachine().IndexDir})
	if err != nil {
		return nil, err
	}
	defer cat.Close()
	data, err := cat.Open(ctx, absoluteURI(uri, "."))
	if err != nil {
		return nil, err
	}
	if strings.Contains(python, string(filepath.Separator)) {
		if python, err = filepath.Abs(python); err != nil {
			return nil, err
		}
	}
	torch, err := parity.Start(ctx, python)
	if err != nil {
		return nil, err
	}
	defer torch.Close()
	rep := torch.Report(r)
	var live []ident.SampleID
	for s := range data.Len() {
		if id := ident.SampleID(s); data.Live(id) {
			live = append(live, id)
		}
	}
	n := len(live)
	if v.samples > 0 {
		n = min(n, v.samples)
	}
	var buf []byte
	for i := range n {
		s := live[i*len(live)/n]
		if buf, err = cat.Read(ctx, data.Object(s), buf[:0]); err != nil {
			if errors.Is(err, os.ErrNotExist) { // it went since the dataset was indexed
				continue
			}
			return nil, err
		}
		if err := torch.Compare(rep, r, data.Key(s), buf, prep.RandKey{Seed: v.seed, Sample: uint64(s)}); err != nil {
			return nil, err
		}
	}
	return rep, torch.CompareDraws(rep, r, parity.DrawCount)
}

func parityTable(t *tabwriter.Writer, rep *parity.Report) {
	row(t, fmt.Sprintf("decoder %s, kernels %s; torchvision %s, Pillow %s", rep.Decoder, rep.Kernels, rep.Torchvision,
		rep.Pillow))
	row(t)
	row(t, "OP", "IMAGES", "VALUES", "DIFFERING", "MAX", "MEAN")
	for _, o := range rep.Rows {
		row(t, o.Op, o.Images, count(o.Values), count(o.Differ), short(o.Max), short(o.Mean))
	}
	if rep.Refused > 0 {
		row(t)
		row(t, fmt.Sprintf("%d files are refused by both", rep.Refused))
	}
	for _, d := range rep.Disagree {
		row(t, d)
	}
	if len(rep.Draws) > 0 {
		row(t)
		row(t, "OP", "PARAMETER", "DRAWS", "DISTANCE", "LIMIT", "")
		for _, d := range rep.Draws {
			verdict := "same"
			if d.Distance > d.Limit {
				verdict = "DIFFERENT"
			}
			row(t, d.Op, d.Parameter, d.Draws, fmt.Sprintf("%.4f", d.Distance), fmt.Sprintf("%.4f", d.Limit), verdict)
		}
	}
}

func short(f float64) string { return strconv.FormatFloat(f, 'g', 3, 64) }
