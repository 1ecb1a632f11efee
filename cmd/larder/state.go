package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"larder/internal/journal"
)

func init() { socketCommands = append(socketCommands, newState) }

func newState(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "state",
		Short:   "Check and repair the state directory of a daemon that does not run",
		Example: "  larder state check",
		Args:    noArgs,
		RunE:    needSubcommand,
	}
	cmd.AddCommand(
		newStateCmd(g, "check", "Read every byte of a state directory and say what is in it",
			`Read every byte of a state directory, and change nothing. Damage is reported with file and byte, and the exit
code is 9. A last record that was being written when the machine stopped is no damage: the next start removes it.`,
			journal.Check),
		newStateCmd(g, "repair", "Make a damaged state directory usable again",
			`Make a damaged state directory usable again, and say what that cost. A damaged snapshot is dropped when the
snapshot before it and the log after that are sound, which loses nothing. Otherwise the log is cut where it is damaged:
batches in the records after the cut are delivered again. Removed parts stay beside the file as NAME.damaged. A sound
directory is not changed.`, journal.Repair),
	)
	return cmd
}

func newStateCmd(g *globals, name, short, long string, do func(journal.FS) (*journal.Report, error)) *cobra.Command {
	var out outputFlag
	cmd := &cobra.Command{
		Use:   name + " [DIR]",
		Short: short,
		Long: long +
			"\n\nWithout DIR, the command uses the folder of the daemon that serves the socket, or would serve it.",
		Example: "  larder state " + name,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("e.g. larder state "+name, "larder state %s takes one DIR, but got %d", name, len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if len(args) == 0 {
				asked, err := askedStateDir(cmd.Context(), g)
				if err != nil {
					return err
				}
				if asked == "" {
					return usagef("name the DIR", "the daemon at %s keeps no state (state.dir: none)", g.target())
				}
				args = []string{asked}
			}
			dir, err := journal.OpenDir(args[0], false)
			if err != nil {
				return err
			}
			r, err := do(dir)
			if r == nil {
				return err
			}
			return errors.Join(out.value(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) { stateTable(t, r) }), err)
		},
	}
	out.register(cmd)
	return cmd
}

func stateTable(t *tabwriter.Writer, r *journal.Report) {
	row(t, "DIRECTORY", "TERM", "RECORDS", "REPLAYED", "SEGMENTS", "ORDERS", "JOBS")
	row(t, clipPath(r.Path, 60), fmt.Sprint(r.Term), count(r.Records), count(r.Replayed), count(r.Segments),
		count(r.Orders), count(len(r.Jobs)))
	for _, list := range []struct {
		word  string
		lines []string
	}{{"job", r.Jobs}, {"note", r.Notes}, {"damage", r.Damage}, {"done", r.Done}} {
		for _, l := range list.lines {
			row(t, list.word+": "+l)
		}
	}
	if len(r.Done) > 0 {
		row(t, fmt.Sprintf("%s records were lost", count(r.Lost)))
	}
}
