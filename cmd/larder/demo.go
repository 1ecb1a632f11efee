package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"larder/internal/config"
	"larder/internal/demo"
	"larder/internal/errs"
)

func init() {
	extraCommands = append(extraCommands, newDemo, newDemoClient)
}

func newDemo() *cobra.Command {
	o := demo.Options{Version: version}
	var memory string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show in a minute, with generated images, what sharing saves",
		Long: `Generate a dataset of JPEG files that resemble photographs, train several simulated jobs on overlapping parts
of it, once with a daemon for each job and once with one daemon for all, and compare. The demo needs no GPU, no data and
no network. Everything it starts and writes is in a temporary folder and is removed afterwards, also after Ctrl-C; only
the report stays.

The exit code is 0 only if every job received every sample of its subset exactly once in every epoch, by the clients'
own record, and sharing reduced reads and decodes.`,
		Example: "  larder demo\n  larder demo --jobs 8 --samples 1000 --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Machine = config.DetectMachine().Memory()
			if memory != "auto" {
				s, err := config.ParseSize(memory)
				if err != nil {
					return err
				}
				o.Memory = s.Of(o.Machine)
			}
			o.Command = repeat(cmd)
			return runDemo(cmd, o, asJSON)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Jobs, "jobs", 4, "training jobs, 2 to 16")
	f.IntVar(&o.Samples, "samples", 2000, "images to generate")
	f.IntVar(&o.Epochs, "epochs", 3, "epochs of each job")
	f.Uint64Var(&o.Seed, "seed", 1, "of the images and of the jobs' orders")
	f.StringVar(&o.Share, "share", "none", "none, or augmented: jobs also share their random crops")
	f.StringVar(&memory, "memory", "auto",
		"cache of all daemons of a run together, e.g. 512MiB (auto: enough for one shared cache)")
	f.StringVar(&o.Report, "report", "./larder-demo.html", "where to write the HTML report; '' for none")
	f.BoolVar(&o.Keep, "keep", false, "keep the folder with images, configurations and logs")
	f.BoolVar(&asJSON, "json", false, "print one JSON object instead of a table")
	return cmd
}

// repeat is the command line that runs the same demo again.
func repeat(cmd *cobra.Command) string {
	var line strings.Builder
	line.WriteString("larder demo")
	for _, name := range []string{"jobs", "samples", "epochs", "seed", "share", "memory"} {
		fmt.Fprintf(&line, " --%s %s", name, cmd.Flag(name).Value)
	}
	return line.String()
}

// runDemo minds the signals: the first one ends the demo in order, a second one at once. Either way nothing is left.
func runDemo(cmd *cobra.Command, o demo.Options, asJSON bool) error {
	// SIGPIPE is among them: when the reader of our output goes, the children must go too.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancelCause(cmd.Context())
	hurry, over := make(chan struct{}), make(chan struct{})
	o.Hurry = hurry
	view := demo.PlainView(cmd.ErrOrStderr())
	if f, ok := cmd.ErrOrStderr().(*os.File); ok {
		view = demo.OpenView(f, os.Getenv)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		select {
		case s := <-signals:
			cancel(&interrupted{s.(syscall.Signal)})
			view.Close()
			fmt.Fprintln(cmd.ErrOrStderr(), "larder demo: taking everything down (once more to do it at once)")
		case <-over:
			return
		}
		select {
		case <-signals:
			close(hurry)
		case <-over:
		}
	}()
	defer func() {
		close(over)
		<-gone
		cancel(nil)
	}()
	res, err := demo.Run(ctx, o, view)
	if i := (*interrupted)(nil); errors.As(context.Cause(ctx), &i) {
		code := 128 + int(i.signal)
		if err == nil || errors.Is(err, context.Canceled) {
			return &exitError{code: code, err: i}
		}
		return &exitError{code: code, err: err} // something could not be taken down
	}
	if err != nil {
		return err
	}
	if asJSON {
		err = encodeJSON(cmd.OutOrStdout(), res)
	} else {
		err = res.WriteText(cmd.OutOrStdout())
	}
	switch {
	case err != nil:
		return err
	case !res.Audit.OK():
		return errs.New(errs.Internal, "demo", "please report it with the report file",
			"not every job received every sample exactly once: %d of %d job-epochs did", res.Audit.Good, res.Audit.JobEpochs)
	case !res.Saved:
		return &exitError{exitFailure, errors.New("sharing saved no work: " + strings.Join(res.Verdict, " "))}
	}
	return nil
}

// interrupted is the end of a demo by a signal.
type interrupted struct{ signal syscall.Signal }

func (i *interrupted) Error() string {
	return fmt.Sprintf("the demo was ended by a signal (%v)", i.signal)
}

// newDemoClient is what the demo starts as its training jobs.
func newDemoClient() *cobra.Command {
	return &cobra.Command{
		Use:    "demo-client",
		Short:  "One make-believe training job of larder demo",
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM)
			defer stop()
			return demo.Client(ctx, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
