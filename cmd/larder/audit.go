package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"larder/internal/audit"
)

func init() { extraCommands = append(extraCommands, newAudit) }

func newAudit() *cobra.Command {
	var out outputFlag
	var o audit.Options
	var expect, silent []string
	var every bool
	cmd := &cobra.Command{
		Use:   "audit DIR|FILE...",
		Short: "Find samples that clients lost, got twice, should not have got, or had changed",
		Long: `Read the logs that clients write when LARDER_AUDIT_LOG names a folder, and nothing else. The command fails
with exit code 10 when a sample of any epoch was lost, repeated, foreign or altered, when a log is damaged, or when the
daemon's own account differs. An epoch is whole when the logs of all its ranks are complete; only then can the audit
prove that nothing was lost. --whole fails when an epoch is not whole.`,
		Example: "  larder audit /tmp/audit\n  larder audit /tmp/audit --expect lr-0.1=0-1281166 --whole -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("e.g. "+firstExample(cmd), "%s needs a folder or files", cmd.CommandPath())
			}
			if err := out.check(); err != nil {
				return err
			}
			var err error
			if o.Expect, err = audit.ParseExpect(expect); err != nil {
				return err
			}
			o.Silent = map[string]bool{}
			for _, job := range silent {
				o.Silent[job] = true
			}
			names, err := audit.Find(args)
			if err != nil {
				return err
			}
			r, err := audit.Check(names, o)
			if err != nil {
				return err
			}
			if err := out.value(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) { auditTable(t, r) }); err != nil {
				return err
			}
			switch whole := r.States[audit.Whole] + r.States[audit.Continued]; {
			case len(r.Findings) > 0:
				return &exitError{exitAudit, fmt.Errorf("%s findings", count(len(r.Findings)))}
			case every && (whole < len(r.Epochs) || whole == 0):
				return &exitError{exitAudit, fmt.Errorf("%d of %d epochs are not whole", len(r.Epochs)-whole, len(r.Epochs))}
			}
			return nil
		},
	}
	out.register(cmd)
	cmd.Flags().StringArrayVar(&expect, "expect", nil,
		"JOB=IDS: the ids of a job's subset, e.g. lr-0.1=0-107,200; may be given several times")
	cmd.Flags().StringArrayVar(&silent, "silent", nil, "JOB: its daemon leaves damaged samples out silently "+
		"(prep.on_corrupt: skip), and is believed how many; may be given several times")
	cmd.Flags().BoolVar(&o.InPlace, "in-place", false,
		"the scripts write into their batches: bytes may change while a batch is held")
	cmd.Flags().BoolVar(&every, "whole", false, "fail when an epoch is not whole")
	return cmd
}

func auditTable(t *tabwriter.Writer, r *audit.Report) {
	row(t, "JOB", "EPOCH", "STATE", "RANKS", "RUNS", "SUBSET", "DELIVERED", "QUARANTINED", "REMOVED", "SILENT", "DROPPED",
		"AGAIN")
	for _, e := range r.Epochs {
		row(t, clip(e.Job, 40), e.Epoch, e.State, e.Ranks, e.Runs, count(e.Subset), count(e.Delivered), count(e.Quarantined),
			count(e.Removed), count(e.Silent), count(e.Dropped), e.Again)
	}
	for _, name := range r.Torn {
		row(t, "torn: "+name+": its last record was cut off")
	}
	const most = 50
	for i, f := range r.Findings {
		if i == most {
			row(t, fmt.Sprintf("and %s more", count(len(r.Findings)-most)))
			break
		}
		line := f.Kind + ": "
		if f.Job != "" {
			line += fmt.Sprintf("job %s epoch %d rank %d step %d: ", f.Job, f.Epoch, f.Rank, f.Step)
		}
		line += f.Text
		if len(f.IDs) > 0 {
			line += fmt.Sprintf("; ids %v", f.IDs)
		}
		if f.Where != "" {
			line += " (" + f.Where + ")"
		}
		row(t, line)
	}
	row(t, fmt.Sprintf("%s logs, %s records, %s batches, %s samples; %d of %d epochs whole; %d findings", count(r.Files),
		count(r.Records), count(r.Batches),
		count(r.Samples), r.States[audit.Whole], len(r.Epochs), len(r.Findings)))
}
