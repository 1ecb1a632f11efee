package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"larder/internal/config"
	"larder/internal/errs"
	"larder/internal/prep"
	"larder/internal/profile"
	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
)

func init() { extraCommands = append(extraCommands, newProfile) }

// graceOfProfile is what a profile may take beyond --seconds: the index, and the last samples of each phase.
const graceOfProfile = 9 * time.Second

func newProfile() *cobra.Command {
	var out outputFlag
	var recipe, save, limit, diskDir string
	var seconds float64
	var workers int
	cmd := &cobra.Command{
		Use:   "profile DATASET",
		Short: "Measure storage, decoding and memory of this machine for a dataset; needs no daemon",
		Long: `Measure what larder tune needs: how many samples per second this machine reads, decodes and augments, how
large they are in each form, and how fast its memory is. Files are dropped from the page cache before they are read
(posix_fadvise); the output says whether that worked. Cores are used as the daemon uses them, so stop other work first.

The result is also saved, by default as profile.json in the user's cache folder, where larder tune finds it.

A recipe file is the file of a job (larder jobs register), or only the list of its transform:
  - RandomResizedCrop: {size: 224}
  - RandomHorizontalFlip
  - Normalize: {mean: imagenet}
Without a recipe file, these three are measured.`,
		Example: "  larder profile imagefolder:/data/train\n  larder profile imagefolder:/data/train --recipe job.yaml " +
			"--seconds 10 -o json",
		Args: args("the URI of a dataset"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			cfg := profile.Config{URI: absoluteURI(args[0], "."), Seconds: seconds, Workers: workers,
				IndexDir: config.DetectMachine().IndexDir}
			if !strings.Contains(args[0], ":") && !strings.Contains(args[0], "/") {
				return usagef("e.g. "+firstExample(cmd),
					"profile reads storage itself and does not know the daemon's names: write the URI of %q", args[0])
			}
			if workers < 0 || workers > 4096 {
				return usagef("leave it out for one per core", "--workers %d is not between 0 and 4096", workers)
			}
			var err error
			if cfg.StorageLimit, err = storageLimit(limit); err != nil {
				return err
			}
			if cfg.Recipe, err = readRecipe(recipe, cmd.InOrStdin()); err != nil {
				return err
			}
			if diskDir != "" {
				if cfg.Disk, err = filepath.Abs(diskDir); err != nil {
					return err
				}
			}
			p, err := measureStored(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if save != "" {
				if err := p.Save(save); err != nil {
					return err
				}
			}
			for _, w := range p.Warnings() {
				fmt.Fprintln(cmd.ErrOrStderr(), "larder: warning: "+printable(w))
			}
			return out.value(cmd.OutOrStdout(), p, func(t *tabwriter.Writer) { profileTable(t, p, save) })
		},
	}
	cmd.Flags().StringVar(&recipe, "recipe", "",
		"YAML of a job or of its transform; - is standard input (default: the usual ImageNet training recipe)")
	cmd.Flags().Float64Var(&seconds, "seconds", 20, "time to measure, 1 to 3600")
	cmd.Flags().IntVar(&workers, "workers", 0, "workers, as prep.workers of the daemon; 0 = one per core")
	cmd.Flags().StringVar(&limit, "storage-limit", "",
		"bytes a second that reading is held to, as source.storage_limit of the daemon")
	cmd.Flags().StringVar(&diskDir, "disk", "",
		"also measure a disk tier in this directory, as tiers.disk.dir of the daemon")
	cmd.Flags().StringVar(&save, "save", profile.DefaultFile(), "file to save the profile in; empty = none")
	cmd.Flags().Lookup("save").DefValue = "profile.json in the user's cache folder"
	out.register(cmd)
	return cmd
}

// storageLimit reads --storage-limit, in bytes a second; "" is 0, no limit.
func storageLimit(limit string) (int64, error) {
	if limit == "" {
		return 0, nil
	}
	n, err := config.ParseSize(strings.TrimSuffix(limit, "/s"))
	if err != nil {
		return 0, err
	}
	if n.IsAuto() || n.IsPercent() || n.Of(0) <= 0 {
		return 0, usagef("e.g. --storage-limit 20MB/s", "--storage-limit %s is no number of bytes a second", limit)
	}
	return n.Of(0), nil
}

// measureStored is measure of a dataset that may lie in a store.
func measureStored(ctx context.Context, cfg profile.Config) (_ *profile.Profile, err error) {
	if cfg.Stores, err = ownStores(); err != nil {
		return nil, err
	}
	defer cfg.Stores.Close()
	return measure(ctx, cfg)
}

// measure runs the profile under a limit that also holds when storage hangs in the kernel; then its goroutines are
// left behind, and end with the process.
func measure(ctx context.Context, cfg profile.Config) (*profile.Profile, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	limit := time.Duration(cfg.Seconds*float64(time.Second)) + graceOfProfile
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type result struct {
		p   *profile.Profile
		err error
	}
	done := make(chan result, 1) // it is never waited for when it comes too late
	go func() {
		p, err := profile.Run(ctx, cfg)
		done <- result{p, err}
	}()
	late := func() error {
		return errs.New(errs.Unavailable, cfg.URI,
			"index a large dataset once with larder dataset add, and look at the storage",
			"measuring %s did not end within %v", cfg.URI, limit)
	}
	select {
	case r := <-done:
		if errors.Is(r.err, context.DeadlineExceeded) {
			return nil, late()
		}
		return r.p, r.err
	case <-time.After(limit + time.Second):
		return nil, late()
	}
}

// usualRecipe is measured when no recipe is named.
var usualRecipe = []prep.OpSpec{
	{Name: "RandomResizedCrop", Args: map[string]any{"size": 224}}, {Name: "RandomHorizontalFlip"},
	{Name: "Normalize", Args: map[string]any{"mean": "imagenet"}},
}

// readRecipe reads the transform of a job's file, or a list that is nothing but a transform.
func readRecipe(path string, stdin io.Reader) (*prep.Recipe, error) {
	if path == "" {
		return prep.ParseRecipe(usualRecipe)
	}
	name, r := path, stdin
	if path == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errs.New(errs.NotFound, path, "check the path", "read the recipe").Because(err)
		}
		if err != nil {
			return nil, errs.New(errs.Invalid, path, "check the path and its rights", "read the recipe").Because(err)
		}
		defer f.Close()
		r = f
	}
	data, err := io.ReadAll(io.LimitReader(r, maxJobFile+1))
	if err != nil {
		return nil, errs.New(errs.Invalid, path, "check the path and its rights", "read the recipe").Because(err)
	}
	if len(data) > maxJobFile {
		return nil, errs.New(errs.Invalid, path, "name the YAML of a job", "%s: a recipe is smaller than %s", name,
			config.FormatBytes(maxJobFile))
	}
	return parseRecipeFile(name, data)
}

func parseRecipeFile(name string, data []byte) (*prep.Recipe, error) {
	spec, err := parseTransform(name, data)
	if err != nil {
		return nil, err
	}
	ops := make([]prep.OpSpec, 0, len(spec.GetTransform()))
	for _, o := range spec.GetTransform() {
		ops = append(ops, prep.OpSpec{Kind: o.GetKind(), Name: o.GetName(), Args: o.GetArgs().AsMap()})
	}
	return prep.ParseRecipe(ops)
}

func parseTransform(name string, data []byte) (spec *larderv1.JobSpec, err error) {
	defer func() {
		if r := recover(); r != nil { // the YAML library has panicked on hostile input before
			spec, err = nil, errs.New(errs.Invalid, name, "check its YAML", "%s: it cannot be read as YAML: %v", name, r)
		}
	}()
	var doc yaml.Node
	if yaml.NewDecoder(bytes.NewReader(data)).Decode(&doc) != nil || len(doc.Content) != 1 ||
		doc.Content[0].Kind != yaml.SequenceNode {
		return parseJob(name, data) // which says what is wrong with it
	}
	p := jobParser{file: name}
	spec = new(larderv1.JobSpec)
	m := spec.ProtoReflect()
	p.field(doc.Content[0], m, m.Descriptor().Fields().ByName("transform"))
	if len(p.problems) > 0 {
		return nil, errors.Join(p.problems...)
	}
	return spec, nil
}

func profileTable(t *tabwriter.Writer, p *profile.Profile, saved string) {
	row(t, "dataset", fmt.Sprintf("%s: %s samples, %s", clipPath(p.Dataset.URI, 60), count(p.Dataset.Samples),
		units.Size(p.Dataset.Bytes)))
	row(t, "recipe", fmt.Sprintf("%s (%s)", strings.Join(p.Recipe.Ops, ", "), p.Recipe.ID))
	row(t, "machine", fmt.Sprintf("%s, %d cores, %s, decoder %s; %d workers", p.Machine.CPU, p.Machine.Cores,
		units.Size(p.Machine.Memory), p.Machine.Decoder, p.Workers))
	row(t, "looked at", fmt.Sprintf("%s samples in %.1f s, %d bad", count(p.Looked), p.Seconds, p.Bad))
	fmt.Fprintln(t)
	row(t, "WORK", "SAMPLES/S", "MEANING")
	for _, x := range []struct {
		name, meaning string
		rate          float64
	}{
		{"storage", "whole objects from storage", p.Storage.SamplesPerSecond},
		{"decode", "encoded to decoded", p.Rates.Decode},
		{"decode+augment", "encoded to a row of a batch", p.Rates.DecodeAugment},
		{"augment", "decoded to a row of a batch", p.Rates.Augment},
		{"finish", "augmented to a row of a batch", p.Rates.Finish},
	} {
		row(t, x.name, perSecond(x.rate), x.meaning)
	}
	fmt.Fprintln(t)
	row(t, "FORM", "BYTES", "OF STORED")
	for _, x := range []struct {
		name string
		n    float64
	}{{"stored", p.Bytes.Stored}, {"encoded", p.Bytes.Encoded}, {"decoded", p.Bytes.Decoded},
		{"augmented", p.Bytes.Augmented}, {"delivered", p.Bytes.Delivered}} {
		row(t, x.name, count(int64(x.n)), fmt.Sprintf("%.2f", x.n/p.Bytes.Stored))
	}
	fmt.Fprintln(t)
	row(t, "storage", units.Size(int64(p.Storage.BytesPerSecond))+"/s", cold(p))
	if d := p.Disk; d != nil {
		row(t, "disk tier", units.Size(int64(d.BytesPerSecond))+"/s", fmt.Sprintf("%.2f ms for one sample; %s; %s",
			1000*d.Latency, printable(d.Dir), d.Method))
	}
	row(t, "memory", units.Size(int64(p.Memory))+"/s", "copied by all workers together")
	if saved != "" {
		row(t, "saved as", filepath.Clean(saved))
	}
}

func cold(p *profile.Profile) string {
	if p.Storage.Cold < 0 {
		return p.Storage.Method + "; whether they were cached is unknown"
	}
	return fmt.Sprintf("%s; %.0f %% of the probed files were cold", p.Storage.Method, 100*p.Storage.Cold)
}
