package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
)

func newExplain(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "explain [JOB]",
		Short: "Explain in sentences what a job or the daemon does, and what limits it",
		Long: `Explain in sentences what a job is promised, what larder decided differently from the request and why, how
much was prepared for this job and how much for others, with whom it shares, and what it waits for. The figures are
those of larder jobs describe. Without JOB: what all jobs wait for, what the machine does, what memory holds and saves,
and what would help.`,
		Example: "  larder explain lr-0.1\n  larder explain",
		Args: func(_ *cobra.Command, got []string) error {
			if len(got) > 1 {
				return usagef("e.g. larder explain lr-0.1", "larder explain takes the name of one JOB, or none")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return g.call(cmd.Context(), shortCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
					r, err := c.GetStats(ctx, &larderv1.GetStatsRequest{})
					if err != nil {
						return err
					}
					if r.GetStats() == nil {
						return errNoAnswer
					}
					return explainDaemon(r.GetStats()).write(cmd.OutOrStdout())
				})
			}
			return g.call(cmd.Context(), shortCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				job, err := c.DescribeJob(ctx, &larderv1.DescribeJobRequest{Name: args[0]})
				if err != nil {
					return err
				}
				if job.GetJob() == nil {
					return errNoAnswer
				}
				all, err := c.ListJobs(ctx, &larderv1.ListJobsRequest{})
				if err != nil {
					return err
				}
				tiers, err := c.GetTiers(ctx, &larderv1.GetTiersRequest{})
				if err != nil {
					return err
				}
				data, err := c.ListDatasets(ctx, &larderv1.ListDatasetsRequest{})
				if err != nil {
					return err
				}
				uris := map[string]string{}
				for _, d := range data.GetDatasets() {
					uris[d.GetName()] = d.GetUri()
				}
				x := explain(job.GetJob(), all.GetJobs(), tiers.GetTiers(), uris)
				explainDisk(x, tiers.GetDisk())
				return x.write(cmd.OutOrStdout())
			})
		},
	}
}

// explain says a sentence or two for each thing there is to say; uris are those of datasets that have names.
func explain(j *larderv1.Job, all []*larderv1.Job, tiers []*larderv1.Tier, uris map[string]string) *explanation {
	x := &explanation{}
	s := j.GetSpec()
	state := jobState(j)
	if r := j.GetEndedReason(); r != "" {
		state += " (" + r + ")"
	}
	x.say("job", "%s is %s.", s.GetName(), state)
	if e := j.GetEpochs(); len(e) > 0 {
		last := e[len(e)-1]
		x.say("epoch", "%d: %s of %s samples delivered.", last.GetEpoch(), count(last.GetDelivered()),
			count(last.GetSubset()))
	}
	if p := j.GetPromise(); p != "" {
		x.say("order", "%s.", strings.TrimSuffix(p, "."))
	}
	for _, n := range j.GetNotes() {
		x.say("note", "%s.", strings.TrimSuffix(n, "."))
	}
	explainWork(x, j)
	explainNeighbours(x, j, all, uris)
	explainWaited(x, j)
	explainWait(x, j)
	explainTiers(x, j, tiers)
	if bad := badSamples(j); len(bad) > 0 {
		q := bad[0].sample
		x.say("bad", "%s cannot be prepared, the first is %s: %s.", plural(len(bad), "sample", "samples"), q.GetKey(),
			strings.TrimSuffix(q.GetReason(), "."))
	}
	return x
}

// explainWaited says how long the job has waited.
func explainWaited(x *explanation, j *larderv1.Job) {
	c := j.GetCounters()
	waited, batches := c.GetWaitSeconds(), c.GetBatchesDelivered()
	if waited < .05 {
		if batches > 0 {
			x.say("waits", "It has not waited for data.")
		}
		return
	}
	each := ""
	if batches > 0 {
		each = fmt.Sprintf(", %.0f ms a batch", 1000*waited/float64(batches))
	}
	x.say("waits", "It has waited %.1f s for data in all%s.", waited, each)
}

// explainTiers says which tiers were too small for a job that has waited.
func explainTiers(x *explanation, j *larderv1.Job, tiers []*larderv1.Tier) {
	if j.GetCounters().GetWaitSeconds() < .05 {
		return
	}
	for _, t := range tiers {
		if t.GetUsed() > t.GetBudget()/8*7 && t.GetEvictions() > 0 { // one that was shrunk has evicted without being full
			x.say("memory", "The %s tier is full: %s of %s, %s entries have left for others. More memory would save work.",
				t.GetForm(), units.Size(t.GetUsed()), units.Size(t.GetBudget()), count(t.GetEvictions()))
		}
	}
}

// explainDisk says what the disk tier does for all jobs, and what it does not.
func explainDisk(x *explanation, d *larderv1.DiskTier) {
	if reads := d.GetHits() + d.GetMisses(); reads > 0 {
		x.say("disk", "Of %s of samples of stores by all jobs, the disk tier served %s.", plural(reads, "read", "reads"),
			count(d.GetHits()))
	}
	if d.GetRefused() > 0 && d.GetState() == "" {
		x.say("disk", "It is full of samples that are needed as much: %s of %s. A larger one would save reads.",
			units.Size(d.GetUsed()), units.Size(d.GetSize()))
	}
	if d.GetState() != "" {
		x.say("disk", "The disk tier does less than it should: %s.", strings.TrimSuffix(d.GetState(), "."))
	}
}

// explainWait says what the job waits for now, and what would help.
func explainWait(x *explanation, j *larderv1.Job) {
	w := j.GetWait()
	if w.GetCause() == "" {
		return
	}
	x.say("waits", "Now it waits for %s.", waitText(w))
	if len(j.GetRanks()) > 1 {
		for _, r := range j.GetRanks() {
			if o := r.GetWait(); r.GetAttached() && o.GetCause() != w.GetCause() {
				x.say("waits", "Its rank %d waits for %s.", r.GetRank(), waitText(o))
			}
		}
	}
	for _, r := range j.GetRanks() {
		if s := r.GetStepSeconds(); s > 0 {
			x.say("waits", "Its script works for %.0f ms on a batch%s.", 1000*s, ofRank(j, r))
		}
	}
	if a := advice(w.GetCause()); a != "" {
		x.say("help", "%s.", a)
	}
}

// ofRank names a rank where there are several.
func ofRank(j *larderv1.Job, r *larderv1.RankInfo) string {
	if j.GetSpec().GetWorldSize() < 2 {
		return ""
	}
	return fmt.Sprintf(" in rank %d", r.GetRank())
}

// sources says where samples came from: each is in one part, and is counted when that is decided, which is before it is
// delivered.
type sources struct {
	all    uint64 // the sum of the parts
	read   uint64 // 0 where blocks is not: reads are of blocks then, and of samples one by one
	blocks uint64
	cached uint64
	rest   uint64
}

// sourcesOf divides the samples of a job, or of all jobs, at least those that were delivered.
func sourcesOf(c *larderv1.Counters) sources {
	h := c.GetHits()
	p := sources{read: c.GetSourceReads(), blocks: h["block"] + h["shared_block"],
		cached: h["encoded"] + h["decoded"] + h["augmented"]}
	if p.blocks > 0 {
		p.read = 0
	}
	sum := p.read + p.blocks + p.cached
	p.all = max(c.GetSamplesDelivered(), sum)
	p.rest = p.all - sum
	return p
}

// percent is how much of all a part is.
func (p sources) percent(n uint64) string {
	return fmt.Sprintf("%.0f %%", 100*float64(n)/float64(p.all))
}

func (p sources) part(n uint64) string { return fmt.Sprintf("%s (%s)", count(n), p.percent(n)) }

// sayRest says what the other parts leave; text is how much that is.
func (p sources) sayRest(x *explanation, text string) {
	switch {
	case p.rest == 0:
	case p.blocks > 0:
		x.say("samples", "The other %s were read one by one, or another job had them prepared at that moment.",
			text)
	default:
		x.say("samples", "The other %s were made by workers, or another job had them prepared at that moment.",
			text)
	}
}

// explainWork says where the job's samples came from.
func explainWork(x *explanation, j *larderv1.Job) {
	c := j.GetCounters()
	got := c.GetSamplesDelivered()
	if got == 0 {
		return
	}
	h, p := c.GetHits(), sourcesOf(c)
	under := ""
	if p.all > got {
		under = " and " + count(p.all-got) + " that are on their way"
	}
	x.say("samples", "Of the %s it got%s:", plural(got, "sample", "samples"), under)
	if p.blocks > 0 {
		x.say("samples", "%s came from blocks in memory, %s of them from blocks read for other jobs; %s for it,",
			p.part(p.blocks), count(h["shared_block"]), plural(c.GetSourceReads(), "read was made", "reads were made"))
	} else {
		x.say("samples", "%s were read for it,", p.part(p.read))
	}
	x.say("samples", "%s were cached: %s encoded, %s decoded, %s augmented.", p.part(p.cached), count(h["encoded"]),
		count(h["decoded"]), count(h["augmented"]))
	p.sayRest(x, p.part(p.rest))
	x.say("samples", "%s were decoded for it.", count(c.GetDecodes()))
}

// explainNeighbours says who else draws from the dataset, and whether what is prepared for one serves the other.
func explainNeighbours(x *explanation, j *larderv1.Job, all []*larderv1.Job, uris map[string]string) {
	dataset := func(j *larderv1.Job) string { return cmp.Or(uris[j.GetSpec().GetDataset()], j.GetSpec().GetDataset()) }
	var same, other, group []string
	hidden := 0 // of other users: what they draw from is not shown
	for _, k := range all {
		ended := k.GetEndedReason() != "" || k.GetState() == larderv1.JobState_JOB_STATE_DONE ||
			k.GetState() == larderv1.JobState_JOB_STATE_DEAD
		switch {
		case k.GetId() == j.GetId() || ended:
			continue
		case k.GetOthers():
			hidden++
			continue
		case j.GetShareGroup() != 0 && k.GetShareGroup() == j.GetShareGroup():
			group = append(group, k.GetSpec().GetName())
		}
		switch {
		case dataset(k) != dataset(j):
		case k.GetPrefix() == j.GetPrefix():
			same = append(same, k.GetSpec().GetName())
		default:
			other = append(other, k.GetSpec().GetName())
		}
	}
	if hidden > 0 {
		defer x.say("sharing", "What %s of other users draw from is not shown: they may share with it too.",
			plural(hidden, "job",
				"jobs"))
	}
	if len(same)+len(other) == 0 && hidden > 0 {
		x.say("sharing", "No other job that you may see draws from its dataset.")
		return
	}
	if len(same)+len(other) == 0 {
		x.say("sharing", "No other job draws from its dataset: what it saves, it saves from one epoch to the next.")
		return
	}
	if len(same) > 0 {
		x.say("sharing", "What is decoded for it serves %s too, where their subsets overlap.", someOf(same))
	}
	if len(other) > 0 {
		x.say("sharing", "With %s it shares what is read, not what is decoded: their recipes begin differently.",
			someOf(other))
	}
	switch g := j.GetShareGroup(); {
	case g == 0:
	case len(group) == 0:
		x.say("sharing", "It would share augmented samples (group %d), but no other job has its recipe and share: augmented.",
			g)
	default:
		x.say("sharing", "It shares augmented samples with %s (group %d).", someOf(group), g)
	}
	if n := j.GetInstanceOffset(); n > 0 {
		x.say("sharing", "Its epoch e has the augmentations of instance e + %d.", n)
	}
}

// someOf names a few of many.
func someOf(names []string) string {
	const most = 8
	if len(names) <= most+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %s more jobs", strings.Join(names[:most], ", "), count(len(names)-most))
}
