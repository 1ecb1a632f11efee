package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	larderv1 "larder/proto/larder/v1"
)

func newJobs(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "jobs",
		Short:   "List, describe, register, pause, unpause, drain and kill jobs",
		Example: "  larder jobs ls",
		Args:    noArgs,
		RunE:    needSubcommand,
	}
	cmd.AddCommand(newJobsLs(g), newJobsDescribe(g), newJobsRegister(g))
	for _, v := range jobVerbs {
		cmd.AddCommand(newJobsVerb(g, v))
	}
	cmd.AddCommand(newJobsResume(g))
	return cmd
}

// jobVerb is a command that changes one job and prints what became of it.
type jobVerb struct {
	name, short string
	call        func(ctx context.Context, c larderv1.LarderServiceClient, job string) (*larderv1.Job, error)
}

var unpause = jobVerb{"unpause", "Continue a paused job exactly where it was", unpauseJob}

var jobVerbs = []jobVerb{
	{"drain", "Let a job finish its running epoch, then end it", drainJob},
	{"pause", "Plan no more batches for a job until it is unpaused; its clients wait", pauseJob},
	unpause,
	{"kill", "End a job at once; other jobs are untouched", killJob},
}

func drainJob(ctx context.Context, c larderv1.LarderServiceClient, job string) (*larderv1.Job, error) {
	r, err := c.DrainJob(ctx, &larderv1.DrainJobRequest{Name: job})
	return r.GetJob(), err
}

func pauseJob(ctx context.Context, c larderv1.LarderServiceClient, job string) (*larderv1.Job, error) {
	r, err := c.PauseJob(ctx, &larderv1.PauseJobRequest{Name: job})
	return r.GetJob(), err
}

// unpauseJob calls ResumeJob, as the protocol has always called it.
func unpauseJob(ctx context.Context, c larderv1.LarderServiceClient, job string) (*larderv1.Job, error) {
	r, err := c.ResumeJob(ctx, &larderv1.ResumeJobRequest{Name: job})
	return r.GetJob(), err
}

func killJob(ctx context.Context, c larderv1.LarderServiceClient, job string) (*larderv1.Job, error) {
	r, err := c.KillJob(ctx, &larderv1.KillJobRequest{Name: job})
	return r.GetJob(), err
}

// newJobsResume keeps the earlier name of `larder jobs unpause` working: resume is the word for a state_dict.
func newJobsResume(g *globals) *cobra.Command {
	cmd := newJobsVerb(g, unpause)
	run := cmd.RunE
	cmd.Use, cmd.Hidden = "resume NAME", true
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		fmt.Fprintln(cmd.ErrOrStderr(), "larder: warning: larder jobs resume is deprecated; use larder jobs unpause")
		return run(cmd, args)
	}
	return cmd
}

func newJobsLs(g *globals) *cobra.Command {
	var out outputFlag
	var ended bool
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List the jobs",
		Example: "  larder jobs ls --ended -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			return g.call(cmd.Context(), shortCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				r, err := c.ListJobs(ctx, &larderv1.ListJobsRequest{IncludeEnded: ended})
				if err != nil {
					return err
				}
				return out.message(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) { jobTable(t, r.GetJobs()) })
			})
		},
	}
	out.register(cmd)
	cmd.Flags().BoolVar(&ended, "ended", false, "also jobs that are done or dead")
	return cmd
}

func jobTable(t *tabwriter.Writer, list []*larderv1.Job) {
	row(t, "NAME", "STATE", "DATASET", "SERVED BY", "SUBSET", "SAMPLES", "RANKS", "EPOCH", "DELIVERED", "SAMPLES/S",
		"DECODES", "WAITED", "WAITS FOR", "OWNER")
	for _, j := range list {
		subset := j.GetSpec().GetSubset()
		if subset == "" {
			subset = "all"
		}
		row(t, clip(j.GetSpec().GetName(), 40), jobState(j), clipPath(j.GetSpec().GetDataset(), 40), servedBy(j),
			clip(subset, 30), count(j.GetSubsetSize()), ranks(j), epoch(j), count(j.GetCounters().GetSamplesDelivered()),
			rate(j), count(j.GetCounters().GetDecodes()), fmt.Sprintf("%.1fs", j.GetCounters().GetWaitSeconds()),
			waitsFor(j.GetWait()), userName(j.GetOwner()))
	}
}

// servedBy says in the words of the DataLoader's served_by who makes the samples of a job. A DataLoader that torch
// serves has no job.
func servedBy(j *larderv1.Job) string {
	if strings.HasPrefix(j.GetSpec().GetDataset(), "python:") {
		return "workers"
	}
	return "native"
}

// jobState is the state of a job in a word or two: one that is paused lives, or is suspect, as well.
func jobState(j *larderv1.Job) string {
	switch state := stateWord(j.GetState()); {
	case !j.GetPaused():
		return state
	case j.GetState() == larderv1.JobState_JOB_STATE_LIVE:
		return "paused"
	default:
		return state + ", paused"
	}
}

func stateWord(s larderv1.JobState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "JOB_STATE_"))
}

func ranks(j *larderv1.Job) string {
	n := 0
	for _, r := range j.GetRanks() {
		if r.GetAttached() {
			n++
		}
	}
	return fmt.Sprintf("%d/%d", n, max(1, j.GetSpec().GetWorldSize()))
}

func epoch(j *larderv1.Job) string {
	at, any := uint32(0), false
	for _, r := range j.GetRanks() {
		at, any = max(at, r.GetEpoch()), true
	}
	switch {
	case !any:
		return "-"
	case j.GetSpec().GetEpochs() > 0:
		return fmt.Sprintf("%d/%d", at, j.GetSpec().GetEpochs())
	default:
		return fmt.Sprint(at)
	}
}

func newJobsDescribe(g *globals) *cobra.Command {
	var out outputFlag
	cmd := &cobra.Command{
		Use:     "describe NAME",
		Short:   "Show everything about one job",
		Example: "  larder jobs describe lr-0.1",
		Args:    args("the NAME of a job"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			return g.call(cmd.Context(), shortCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				r, err := c.DescribeJob(ctx, &larderv1.DescribeJobRequest{Name: args[0]})
				if err != nil {
					return err
				}
				return printJob(cmd.OutOrStdout(), &out, r.GetJob())
			})
		},
	}
	out.register(cmd)
	return cmd
}

func printJob(w io.Writer, out *outputFlag, j *larderv1.Job) error {
	if j == nil {
		return errNoAnswer
	}
	return out.message(w, j, func(t *tabwriter.Writer) { describeJob(t, j) })
}

func describeJob(t *tabwriter.Writer, j *larderv1.Job) {
	describeSpec(t, j)
	describeWork(t, j)
	describeRanks(t, j)
	for _, e := range j.GetEpochs() {
		text := fmt.Sprintf("%s: %s delivered + %s quarantined + %s dropped of %s",
			e.GetState(), count(e.GetDelivered()), count(e.GetQuarantined()), count(e.GetDropped()), count(e.GetSubset()))
		if n := e.GetRemoved(); n > 0 {
			text += fmt.Sprintf(" (%s of the quarantined were removed from the dataset)", count(n))
		}
		row(t, fmt.Sprintf("epoch %d", e.GetEpoch()), text)
	}
	for _, b := range badSamples(j) {
		q := b.sample
		text := fmt.Sprintf("%d %s: %s (%s)", q.GetId(), q.GetKey(), q.GetReason(), q.GetPath())
		if q.DamagedAt != nil {
			text = fmt.Sprintf("%d %s: %s (byte %d of %s)", q.GetId(), q.GetKey(), q.GetReason(), q.GetDamagedAt(), q.GetPath())
		}
		if b.times > 1 {
			text += fmt.Sprintf(", %d times", b.times)
		}
		row(t, "quarantined", text)
	}
}

// describeSpec prints what a job asks for.
func describeSpec(t *tabwriter.Writer, j *larderv1.Job) {
	s := j.GetSpec()
	row(t, "name", s.GetName())
	state := jobState(j)
	if r := j.GetEndedReason(); r != "" {
		state += ": " + r
	}
	row(t, "state", state)
	row(t, "owner", userName(j.GetOwner()))
	row(t, "dataset", s.GetDataset())
	row(t, "served by", servedBy(j))
	if s.GetSubset() != "" {
		row(t, "subset", s.GetSubset())
	}
	row(t, "samples", count(j.GetSubsetSize()))
	if n := j.GetNextSubsetSize(); n > 0 {
		next := j.GetNextSubset()
		if next == "" {
			next = "all"
		}
		row(t, "next epoch", fmt.Sprintf("%s: %s samples", next, count(n)))
	}
	if s.GetOrder() == "given" {
		row(t, "batches", "as its client says, of at most "+plural(s.GetBatchSize(), "sample", "samples"))
	} else {
		row(t, "batches", count(j.GetBatchesPerEpoch())+" "+batchesText(j))
	}
	order := s.GetOrder()
	if !s.GetShuffle() && order == "" {
		order = "sequential"
	}
	row(t, "order", order)
	if j.GetPromise() != "" {
		row(t, "promise", j.GetPromise())
	}
	for _, n := range j.GetNotes() {
		row(t, "note", n)
	}
	for i, op := range s.GetTransform() {
		name := ""
		if i == 0 {
			name = "transform"
		}
		row(t, name, opText(op))
	}
	share := s.GetShare()
	if j.GetShareGroup() != 0 {
		share += fmt.Sprintf(", group %d, instance offset %d", j.GetShareGroup(), j.GetInstanceOffset())
	}
	row(t, "share", share)
	if c := s.GetCache(); c != "" {
		row(t, "cache", c)
	}
	row(t, "on_error", s.GetOnError())
}

// describeWork prints what a job got, what was done for it, and what it waits for.
func describeWork(t *tabwriter.Writer, j *larderv1.Job) {
	c := j.GetCounters()
	row(t, "delivered", fmt.Sprintf("%s samples in %s batches",
		count(c.GetSamplesDelivered()), count(c.GetBatchesDelivered())))
	row(t, "work", fmt.Sprintf("%s reads, %s decodes, %s augments",
		count(c.GetSourceReads()), count(c.GetDecodes()), count(c.GetAugments())))
	h := c.GetHits()
	row(t, "hits", fmt.Sprintf("%s encoded, %s decoded, %s augmented",
		count(h["encoded"]), count(h["decoded"]), count(h["augmented"])))
	if own, shared := h["block"], h["shared_block"]; own+shared > 0 {
		row(t, "from blocks", fmt.Sprintf("%s read for it, %s read for other jobs", count(own), count(shared)))
	}
	row(t, "samples/s", rate(j))
	row(t, "waited", fmt.Sprintf("%.1fs", c.GetWaitSeconds()))
	if w := j.GetWait(); w.GetCause() != "" {
		row(t, "waits for", waitText(w))
	}
}

// describeRanks prints who holds each rank and where it is.
func describeRanks(t *tabwriter.Writer, j *larderv1.Job) {
	for _, r := range j.GetRanks() {
		held := "free"
		if r.GetAttached() {
			held = fmt.Sprintf("held by process %d of uid %d", r.GetPid(), r.GetUid())
		}
		row(t, fmt.Sprintf("rank %d", r.GetRank()), fmt.Sprintf("%s, epoch %d, batch %s, incarnation %d",
			held, r.GetEpoch(), count(r.GetStep()), r.GetIncarnation()))
		if w := r.GetWait(); w.GetCause() != "" && len(j.GetRanks()) > 1 {
			row(t, "", "waits for "+waitText(w))
		}
	}
	for _, k := range j.GetWorkers() {
		text := fmt.Sprintf("process %d of uid %d, has made %s, has %d in hand", k.GetPid(), k.GetUid(),
			plural(k.GetDone(), "sample", "samples"), k.GetTasks())
		if s := k.GetBusySeconds(); s >= .05 {
			text += fmt.Sprintf(", one for %.1f s", s)
		}
		row(t, fmt.Sprintf("worker %d", k.GetId()), text)
	}
	if n := j.GetTasksWaiting(); n > 0 {
		row(t, "for workers", plural(n, "sample waits", "samples wait"))
	}
}

// badSample is a sample that cannot be prepared, and how often the job met it for that reason.
type badSample struct {
	sample *larderv1.QuarantinedSample
	times  int
}

// badSamples lists what a job met that cannot be prepared, each once, in the order of their first time.
func badSamples(j *larderv1.Job) []badSample {
	type key struct {
		id     uint64
		reason string
	}
	var out []badSample
	at := map[key]int{}
	for _, q := range j.GetQuarantined() {
		k := key{q.GetId(), q.GetReason()}
		if i, ok := at[k]; ok {
			out[i].times++
			continue
		}
		at[k] = len(out)
		out = append(out, badSample{q, 1})
	}
	return out
}

// batchesText says what the batches of a job are.
func batchesText(j *larderv1.Job) string {
	s := j.GetSpec()
	text := "per epoch and rank, of " + plural(s.GetBatchSize(), "sample", "samples")
	if s.GetDropLast() {
		text += "; a last one that is short is dropped"
	}
	return text
}

// opText writes an op as in Python: RandomResizedCrop(size=224).
func opText(op *larderv1.Op) string {
	var parts []string
	for _, k := range sortedKeys(op.GetArgs().GetFields()) {
		b, err := op.GetArgs().GetFields()[k].MarshalJSON()
		if err != nil {
			continue
		}
		parts = append(parts, k+"="+strings.ReplaceAll(string(b), " ", ""))
	}
	return op.GetName() + "(" + strings.Join(parts, ", ") + ")"
}

func newJobsVerb(g *globals, v jobVerb) *cobra.Command {
	var out outputFlag
	cmd := &cobra.Command{
		Use:     v.name + " NAME",
		Short:   v.short,
		Example: "  larder jobs " + v.name + " lr-0.1",
		Args:    args("the NAME of a job"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			return g.call(cmd.Context(), shortCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				j, err := v.call(ctx, c, args[0])
				if err != nil {
					return err
				}
				if j == nil {
					return errNoAnswer
				}
				return out.message(cmd.OutOrStdout(), j, func(t *tabwriter.Writer) {
					text := jobState(j)
					if r := j.GetEndedReason(); r != "" {
						text += ": " + r
					} else if v.name == "drain" {
						text += ": it ends when its running epoch is over"
					}
					row(t, j.GetSpec().GetName(), text)
				})
			})
		},
	}
	out.register(cmd)
	return cmd
}

func newJobsRegister(g *globals) *cobra.Command {
	var out outputFlag
	var file string
	cmd := &cobra.Command{
		Use:   "register -f FILE",
		Short: "Register a job that a client then attaches to by name",
		Long: `Register a job from a YAML (or JSON) file, - for standard input. Keys are those of JobSpec in snake_case or
lowerCamelCase; docs/cli.md lists them. A relative folder in dataset is taken from the folder of the file.
Registering an equal job again is no error; one of that name that differs is.`,
		Example: "  larder jobs register -f job.yaml",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if file == "" {
				return usagef("e.g. larder jobs register -f job.yaml", "larder jobs register needs -f FILE")
			}
			spec, err := readJobFile(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			return g.call(cmd.Context(), longCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
				r, err := c.RegisterJob(ctx, &larderv1.RegisterJobRequest{Spec: spec})
				if err != nil {
					return err
				}
				if r.GetJob() == nil {
					return errNoAnswer
				}
				return out.message(cmd.OutOrStdout(), proto.Message(r), func(t *tabwriter.Writer) {
					verb := "registered"
					if !r.GetCreated() {
						verb = "was registered already"
					}
					row(t, r.GetJob().GetSpec().GetName(), fmt.Sprintf("%s: %s, %s", verb,
						plural(r.GetJob().GetSubsetSize(), "sample", "samples"),
						plural(r.GetJob().GetBatchesPerEpoch(), "batch", "batches")+" "+batchesText(r.GetJob())))
				})
			})
		},
	}
	out.register(cmd)
	cmd.Flags().StringVarP(&file, "file", "f", "", "YAML or JSON file of the job, - for standard input")
	return cmd
}
