package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"larder/cachepolicy/partition"
	"larder/internal/config"
	"larder/internal/errs"
	"larder/internal/profile"
	"larder/internal/units"
)

func init() { extraCommands = append(extraCommands, newTune) }

// tuned is what larder tune prints.
type tuned struct {
	Model      string             `json:"model"`
	Budget     int64              `json:"budget_bytes"`
	Split      tunedSplit         `json:"split"`
	Rate       float64            `json:"samples_per_second"`
	Binding    string             `json:"binding"`
	Load       map[string]float64 `json:"load,omitempty"` // part of each resource that is used
	Why        string             `json:"why"`
	Candidates []tunedCandidate   `json:"candidates"`
	Recipes    []tunedRecipe      `json:"recipes"`
	Warnings   []string           `json:"warnings"`
	Config     string             `json:"config"` // YAML to paste
}

type tunedSplit struct {
	Encoded   int64 `json:"encoded_bytes"`
	Decoded   int64 `json:"decoded_bytes"`
	Augmented int64 `json:"augmented_bytes"`
}

type tunedCandidate struct {
	Name    string             `json:"name"`
	Split   tunedSplit         `json:"split"`
	Rate    float64            `json:"samples_per_second"`
	Binding string             `json:"binding"`
	Load    map[string]float64 `json:"load,omitempty"` // part of each resource that is used
	Unfair  bool               `json:"unfair"`         // a job would fall below its fair share
}

type tunedRecipe struct {
	Dataset   string     `json:"dataset"`
	Recipe    string     `json:"recipe"`
	Split     tunedSplit `json:"split"` // what recipes share is counted at the first of them
	Mix       tunedMix   `json:"served_from"`
	Rate      float64    `json:"samples_per_second"`
	FairShare float64    `json:"fair_share_samples_per_second"`
}

type tunedMix struct {
	Stored    float64 `json:"stored"`
	Encoded   float64 `json:"encoded"`
	Decoded   float64 `json:"decoded"`
	Augmented float64 `json:"augmented"`
}

// tuneFlags are those of larder tune.
type tuneFlags struct {
	out           outputFlag
	files, splits []string
	degrees       []float64
	budget, model string
	disk          string
	use           profile.Use
}

func newTune() *cobra.Command {
	f := tuneFlags{use: profile.Use{Jobs: 1, Fairness: 1}}
	cmd := &cobra.Command{
		Use:   "tune",
		Short: "Compute how to split memory among the tiers; needs no daemon",
		Long: `Solve the model of the tiers for measured rates. The output has the split, the predicted throughput of this
split and of others, what limits them, and the lines for larder.yaml. The daemon does the same while tiers are auto;
fixed sizes override it.

Rates come from larder profile. Several --profile files share one budget: profiles of one dataset share its encoded
samples, and the decoded samples where their recipes have the same prefix. Each profile has --jobs jobs. The objective
is the samples per second of all jobs, where no job gets less than --fairness times what an equal division of the memory
would give it. Models: bottleneck (the busiest resource limits), seneca (Eq. 1-9 of the paper, for comparison).`,
		Example: "  larder tune --budget 8GiB --jobs 4\n  larder tune --profile train.json --budget 8GiB -o yaml > " +
			"larder.yaml",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.out.check(); err != nil {
				return err
			}
			return f.run(cmd)
		},
	}
	cmd.Flags().StringArrayVar(&f.files, "profile", nil,
		"file of larder profile; may be given several times (default: the one saved last)")
	cmd.Flags().StringVar(&f.budget, "budget", "auto",
		"memory of all tiers, e.g. 8GiB or 30%; auto = what tiers.total would be")
	cmd.Flags().StringVar(&f.disk, "disk", "",
		"bytes of a disk tier, e.g. 200GiB, whose speed larder profile --disk measured")
	cmd.Flags().StringArrayVar(&f.splits, "split", nil,
		"also predict this split, e.g. encoded=2GiB,decoded=1GiB; may be given several times")
	cmd.Flags().IntVar(&f.use.Jobs, "jobs", 1, "jobs that run at once on each profile")
	cmd.Flags().BoolVar(&f.use.Share, "share", false, "the jobs share augmented samples (share: augmented)")
	cmd.Flags().Float64SliceVar(&f.degrees, "degree", nil,
		"jobs served by one read; by one decode of what the encoded tier holds; with --share by one augmentation "+
			"that no tier keeps: READ[,DECODE[,AUGMENT]]; 0 = jobs/1.25, as measured for the default order, of the others as "+
			"the first")
	cmd.Flags().Float64Var(&f.use.Ingest, "ingest", 0, "samples a second that each training takes; 0 = not known")
	cmd.Flags().Float64Var(&f.use.Fairness, "fairness", 1, "part of its fair share that every job keeps, 0 to 1")
	cmd.Flags().StringVar(&f.model, "model", partition.Bottleneck, "model: "+strings.Join(partition.Models(), " or "))
	f.out.register(cmd)
	cmd.Flags().Lookup("output").Usage = "table, json, or yaml (lines for larder.yaml, and the rest as comments)"
	return cmd
}

func (f *tuneFlags) check() error {
	switch {
	case f.use.Jobs < 1 || f.use.Jobs > 256:
		return usagef("e.g. --jobs 4", "--jobs %d is not between 1 and 256", f.use.Jobs)
	case !(f.use.Fairness >= 0 && f.use.Fairness <= 1):
		return usagef("1 keeps every job's fair share, 0 looks at the total alone", "--fairness %v is not between 0 and 1",
			f.use.Fairness)
	case !(f.use.Ingest >= 0 && f.use.Ingest < 1e12):
		return usagef("e.g. --ingest 2500", "--ingest %v is no rate", f.use.Ingest)
	}
	return tuneDegrees(f.degrees, &f.use)
}

func (f *tuneFlags) run(cmd *cobra.Command) error {
	if err := f.check(); err != nil {
		return err
	}
	m, err := partition.New(f.model)
	if err != nil {
		return err
	}
	list, warnings, err := loadProfiles(f.files)
	if err != nil {
		return err
	}
	bytes, err := tuneBudget(f.budget, list)
	if err != nil {
		return err
	}
	asked, err := parseSplits(f.splits)
	if err != nil {
		return err
	}
	if err := f.tuneDisk(list); err != nil {
		return err
	}
	demand := profile.Demand(bytes, f.use, list...)
	plan, err := m.Solve(demand)
	if err != nil {
		return err
	}
	for i, s := range asked {
		c, err := m.Predict(demand, s)
		if err != nil {
			return err
		}
		c.Name = f.splits[i]
		plan.Candidates = append(plan.Candidates, c)
	}
	if f.model == partition.Seneca && f.use.Jobs > 1 && f.use.Share {
		warnings = append(warnings, "model seneca does not charge the refill of augmented samples: compare with bottleneck")
	}
	t := present(&plan, bytes, warnings)
	for _, w := range t.Warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "larder: warning: "+printable(w))
	}
	if f.out.form == "yaml" {
		return writeTuneYAML(cmd.OutOrStdout(), t)
	}
	if err := f.out.value(cmd.OutOrStdout(), t, func(w *tabwriter.Writer) { tuneTable(w, t) }); err != nil ||
		f.out.form == "json" {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "\n%s", t.Config)
	return err
}

// tuneDisk sets what --disk says.
func (f *tuneFlags) tuneDisk(list []*profile.Profile) error {
	if f.disk == "" {
		return nil
	}
	size, err := config.ParseSize(f.disk)
	if err != nil {
		return err
	}
	if size.IsAuto() || size.IsPercent() {
		return usagef("e.g. --disk 200GiB", "--disk %s is no number of bytes", f.disk)
	}
	for _, p := range list {
		if p.Disk == nil {
			return usagef("larder profile --disk DIR measures it", "the profile of %s has no disk tier", p.Dataset.URI)
		}
	}
	f.use.Disk = size.Of(0)
	return nil
}

// tuneDegrees sets what --degree says.
func tuneDegrees(list []float64, use *profile.Use) error {
	const hint = "leave it out for what the default order reaches"
	to := [...]*float64{&use.Degree, &use.DecodeDegree, &use.AugmentDegree}
	if len(list) > len(to) {
		return usagef(hint, "--degree has %d numbers: give READ, DECODE and AUGMENT at most", len(list))
	}
	for i, x := range list {
		switch {
		case !(x == 0 || x >= 1 && x <= float64(use.Jobs)):
			return usagef(hint, "--degree %v is not between 1 and --jobs", x)
		case i == 2 && x != 0 && !use.Share:
			return usagef("add --share, or give two numbers",
				"the third number of --degree is of jobs that share augmented samples")
		}
		*to[i] = x
	}
	return nil
}

// loadProfiles reads profiles and says what is doubtful about them.
func loadProfiles(files []string) (list []*profile.Profile, warnings []string, err error) {
	if len(files) == 0 {
		name := profile.DefaultFile()
		if name == "" {
			return nil, nil, usagef("larder profile DATASET --save FILE makes one", "larder tune needs --profile FILE")
		}
		files = []string{name}
	}
	if len(files) > 64 {
		return nil, nil, usagef("leave some out", "%d profiles are more than the 64 that are allowed", len(files))
	}
	here := profile.ThisMachine()
	for _, f := range files {
		p, err := profile.Load(f)
		if err != nil {
			return nil, nil, err
		}
		if d := p.Machine.Differs(here); d != "" {
			warnings = append(warnings, fmt.Sprintf("%s is of another machine: %s; larder profile DATASET measures this one", f,
				d))
		}
		for _, w := range p.Warnings() {
			warnings = append(warnings, f+": "+w)
		}
		for _, q := range list {
			if q.Dataset.URI == p.Dataset.URI && q.Recipe.ID == p.Recipe.ID {
				return nil, nil, usagef("use --jobs for several jobs of one recipe",
					"%s: dataset and recipe are those of an earlier profile", f)
			}
		}
		list = append(list, p)
	}
	return list, warnings, nil
}

// tuneBudget turns --budget into bytes, and refuses what could not hold one sample, or what the machine does not have.
func tuneBudget(text string, list []*profile.Profile) (int64, error) {
	size, err := config.ParseSize(text)
	if err != nil {
		return 0, err
	}
	m := config.DetectMachine()
	n := size.Of(m.Memory())
	if size.IsAuto() {
		r, err := config.Default().Resolve(m)
		if err != nil {
			return 0, err
		}
		n = r.Total
	}
	if (size.IsAuto() || size.IsPercent()) && n >= 256<<20 {
		n -= n % (1 << 20) // round bytes make the lines for larder.yaml read better
	}
	foreign := false
	for _, p := range list {
		foreign = foreign || p.Machine.Differs(profile.ThisMachine()) != ""
		if n < int64(p.Bytes.Encoded) {
			return 0, errs.New(errs.ResourceExceeded, "budget", "give at least some hundred samples room",
				"a budget of %s holds not even one encoded sample of %s, which has %s", units.Size(n), p.Dataset.URI,
				units.Size(int64(p.Bytes.Encoded)))
		}
	}
	// An eighth is the daemon's own and a sixteenth the least for rings, as config.Resolve divides memory.
	if mem := m.Memory(); mem > 0 && n > mem-mem/8-mem/16 && !foreign {
		return 0, errs.New(errs.ResourceExceeded, "budget", "lower it to "+units.Size(mem-mem/8-mem/16)+" or less",
			"a budget of %s leaves too little of the %s of this machine (%s) for rings and the daemon itself", units.Size(n),
			units.Size(mem), m.Source())
	}
	return n, nil
}

// present rounds the plan to sizes that people read, and writes the lines for larder.yaml.
func present(p *partition.Plan, budget int64, warnings []string) *tuned {
	convert := func(s partition.Split) tunedSplit { return tunedSplit{s.Encoded, s.Decoded, s.Augmented} }
	t := &tuned{Model: p.Model, Budget: budget, Split: convert(p.Split), Rate: p.Rate, Binding: p.Binding.String(),
		Why: p.Why, Warnings: warnings}
	if t.Warnings == nil {
		t.Warnings = []string{}
	}
	if p.Model == partition.Bottleneck {
		t.Load = loads(p.Load)
	}
	for _, c := range p.Candidates {
		t.Candidates = append(t.Candidates, tunedCandidate{c.Name, convert(c.Split), c.Rate, c.Binding.String(),
			loads(c.Load), c.Unfair})
	}
	for _, d := range p.Datasets {
		for k, r := range d.Recipes {
			x := tunedRecipe{Dataset: d.Name, Recipe: r.Name, Split: tunedSplit{0, r.Decoded, r.Augmented}, Mix: tunedMix(r.Mix),
				Rate: r.Rate, FairShare: r.FairShare}
			if k == 0 {
				x.Split.Encoded = d.Encoded
			}
			t.Recipes = append(t.Recipes, x)
		}
	}
	t.Config = configBlock(p, budget)
	return t
}

// loads names the resources that are used at all; the model of the paper has none.
func loads(of [partition.NumResources]float64) map[string]float64 {
	m := map[string]float64{}
	for k, x := range of[:partition.Training] {
		if x > 0 {
			m[partition.Resource(k).String()] = x
		}
	}
	return m
}

// parseSplits reads values of --split; a tier that is not named gets nothing.
func parseSplits(list []string) ([]partition.Split, error) {
	const example = "e.g. --split encoded=2GiB,decoded=1GiB"
	if len(list) > 4096 {
		return nil, usagef("leave some out", "%d splits are more than the 4096 that are allowed", len(list))
	}
	out := make([]partition.Split, len(list))
	for i, text := range list {
		tiers := map[string]*int64{"encoded": &out[i].Encoded, "decoded": &out[i].Decoded, "augmented": &out[i].Augmented}
		for part := range strings.SplitSeq(text, ",") {
			name, value, ok := strings.Cut(part, "=")
			at := tiers[name]
			if !ok || at == nil {
				return nil, usagef(example,
					"--split %.80q: %.40q is not TIER=SIZE, with each of encoded, decoded and augmented once at most", text, part)
			}
			size, err := config.ParseSize(value)
			if err != nil || size.IsAuto() || size.IsPercent() {
				return nil, usagef(example, "--split %.80q: %.40q is no number of bytes", text, value)
			}
			*at = size.Of(0)
			delete(tiers, name)
		}
	}
	return out, nil
}

// configBlock writes the lines for larder.yaml. Sizes are rounded down to the largest unit that is below 1/256 of the
// budget, and the largest tier gets what that leaves.
func configBlock(p *partition.Plan, budget int64) string {
	unit := int64(1)
	for _, u := range []int64{1 << 10, 1 << 20, 1 << 30} {
		if budget >= 256*u {
			unit = u
		}
	}
	sizes := []*int64{new(p.Split.Encoded), new(p.Split.Decoded), new(p.Split.Augmented)}
	largest, left := sizes[0], p.Split.Total()
	for _, n := range sizes {
		if *n > *largest {
			largest = n
		}
		*n -= *n % unit
		left -= *n
	}
	*largest += left
	var b strings.Builder
	fmt.Fprintf(&b, "# larder tune: %s\n", printable(p.Why))
	// The daemon's own limit must hold the tiers and the rings beside them (docs/configuration.md).
	if m := config.DetectMachine().Memory(); m > 0 && budget > m/4 {
		fmt.Fprintf(&b, "memory:\n  limit: %s\n", config.FormatBytes(min(m, max(budget+budget/3, m/2))))
	}
	fmt.Fprintf(&b, "tiers:\n  total: %s\n  encoded: %s\n  decoded: %s\n  augmented: %s\n", config.FormatBytes(budget),
		config.FormatBytes(*sizes[0]), config.FormatBytes(*sizes[1]), config.FormatBytes(*sizes[2]))
	return b.String()
}

// writeTuneYAML writes a configuration that says in comments what each split would give.
func writeTuneYAML(w io.Writer, x *tuned) error {
	var table strings.Builder
	if err := tableTo(&table, func(t *tabwriter.Writer) {
		row(t, "SPLIT", "ENCODED", "DECODED", "AUGMENTED", "SAMPLES/S", "LIMITED BY", "")
		for _, c := range x.Candidates {
			candidateRow(t, c)
		}
	}); err != nil {
		return err
	}
	var b strings.Builder
	why, rest, _ := strings.Cut(x.Config, "\n") // the first line of it is why
	fmt.Fprintln(&b, why)
	for _, line := range x.Warnings {
		fmt.Fprintln(&b, "# warning: "+printable(line))
	}
	for line := range strings.Lines(table.String()) {
		fmt.Fprintln(&b, strings.TrimRight("# "+printable(strings.TrimSuffix(line, "\n")), " "))
	}
	_, err := io.WriteString(w, b.String()+rest)
	return err
}

func candidateRow(t *tabwriter.Writer, c tunedCandidate) {
	row(t, c.Name, units.Size(c.Split.Encoded), units.Size(c.Split.Decoded), units.Size(c.Split.Augmented),
		perSecond(c.Rate), c.Binding,
		map[bool]string{true: "unfair", false: ""}[c.Unfair])
}

func tuneTable(t *tabwriter.Writer, x *tuned) {
	whyRows(t, x.Why)
	if len(x.Load) > 0 {
		var parts []string
		for _, k := range sortedKeys(x.Load) {
			parts = append(parts, fmt.Sprintf("%s %.0f %%", k, 100*x.Load[k]))
		}
		row(t, "load", strings.Join(parts, ", "))
	}
	fmt.Fprintln(t)
	row(t, "SPLIT", "ENCODED", "DECODED", "AUGMENTED", "SAMPLES/S", "LIMITED BY", "")
	for _, c := range x.Candidates {
		candidateRow(t, c)
	}
	fmt.Fprintln(t)
	row(t, "DATASET", "RECIPE", "ENCODED", "DECODED", "AUGMENTED", "FROM STORAGE", "SAMPLES/S", "FAIR SHARE")
	for _, r := range x.Recipes {
		row(t, clipPath(r.Dataset, 50), r.Recipe, units.Size(r.Split.Encoded), units.Size(r.Split.Decoded),
			units.Size(r.Split.Augmented),
			fmt.Sprintf("%.0f %%", 100*r.Mix.Stored), perSecond(r.Rate), perSecond(r.FairShare))
	}
}
