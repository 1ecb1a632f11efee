package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"larder/bench"
	"larder/bench/coresim"
	livebench "larder/bench/live"
	live "larder/bench/measure"
	"larder/internal/errs"
)

// liveFlags are those of larder bench live.
type liveFlags struct {
	out       outputFlag
	sim       simFlags
	scenarios []string
	repeats   int     // 0 = those of the scenario
	seconds   float64 // that decoding and augmenting are measured for
	torch     bool
	python    string
}

func newBenchLive() *cobra.Command {
	var f liveFlags
	cmd := &cobra.Command{
		Use:   "live",
		Short: "Run a scenario with a real daemon on real files, beside the simulator",
		Long: `Start a daemon, let the jobs of a scenario (bench/scenarios/live) train, and count. The images are drawn for
it, unless the scenario names a dataset; storage is held to the scenario's limit. A job keeps each batch for the
scenario's step time without using the processor, as if an accelerator computed. Every repeat has a new daemon, and
several scenarios take turns (ABBA).

A scenario may kill the daemon (kill: {at: 5s}). The daemon is started again at once on the same state, and clients
continue where they were. The result says how long that took and what was lost; if anything was lost, the command fails.

The same scenario is simulated with costs that are measured first, and the differences are printed. The command fails
when reads differ by more than 15 %, or when a count that depends on no timing differs at all.`,
		Example: "  larder bench live --scenario bench/scenarios/live/sweep.yaml\n" +
			"  larder bench live --scenario a.yaml --scenario b.yaml --repeats 7 -o json > live.json",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			return f.run(cmd)
		},
	}
	cmd.Flags().StringArrayVar(&f.scenarios, "scenario", nil, "YAML of a scenario; several take turns")
	cmd.Flags().BoolVar(&f.torch, "torch", false,
		"really train: processes of --python replace the clients that sleep; the simulator gets the step times they took")
	cmd.Flags().StringVar(&f.python, "python", "python3", "Python for --torch; it must have torch and larder")
	cmd.Flags().IntVar(&f.repeats, "repeats", 0, "real runs of each scenario, instead of the file's")
	cmd.Flags().Float64Var(&f.seconds, "measure-seconds", 5,
		"time to measure decoding and augmenting first, for the simulator")
	f.sim.register(cmd)
	f.out.register(cmd)
	return cmd
}

func (f *liveFlags) check(cmd *cobra.Command) error {
	if err := f.out.check(); err != nil {
		return err
	}
	if len(f.scenarios) == 0 {
		return usagef("e.g. larder bench live --scenario bench/scenarios/live/sweep.yaml",
			"larder bench live needs --scenario FILE")
	}
	if cmd.Flags().Changed("repeats") && (f.repeats < 1 || f.repeats > 1000) {
		return usagef("choose 1 to 1000", "--repeats %d is not possible", f.repeats)
	}
	if !(f.seconds >= 1 && f.seconds <= 3600) {
		return usagef("choose 1 to 3600", "--measure-seconds %v is not possible", f.seconds)
	}
	return nil
}

func (f *liveFlags) run(cmd *cobra.Command) error {
	// A signal ends the runs; the daemon and the folder are removed before the process ends.
	ctx, restore := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer restore()
	o, err := f.sim.options(ctx, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "larder-live-*")
	if err != nil {
		return noFolder(err, os.TempDir())
	}
	defer os.RemoveAll(dir)
	tell := func(format string, args ...any) {
		if f.sim.progress || isTerminal(cmd.ErrOrStderr()) {
			fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...)
		}
	}
	r := &live.Result{Kind: live.Kind, Facts: machineFacts()}
	var setups []*livebench.Setup
	for i, file := range f.scenarios {
		l, err := readLive(file, cmd.InOrStdin(), r)
		if err != nil {
			return err
		}
		own := livebench.Options{Dir: filepath.Join(dir, fmt.Sprint("s", i)), Seconds: f.seconds, Report: tell}
		s, err := f.prepare(ctx, l, own)
		if err != nil {
			return err
		}
		if err := s.World.Check(o); err != nil {
			return err
		}
		r.Limits = append(r.Limits, append(l.Notes(), s.World.Notes()...)...)
		if f.torch {
			s.Torch = &livebench.Torch{Python: f.python}
			if err := s.Torch.Check(ctx, s); err != nil {
				return err
			}
		}
		setups = append(setups, s)
	}
	if len(f.scenarios) > 1 {
		r.Scenario, r.Title = strings.Join(f.scenarios, ", "), ""
	}
	if err := runLive(ctx, r, setups, f.scenarios, tell); err != nil {
		return err
	}
	if o, err = f.sim.options(ctx, cmd.ErrOrStderr()); err != nil {
		return err
	}
	if err := simulateLive(o, r, setups, f.scenarios); err != nil {
		return err
	}
	if err := f.out.value(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) { liveTable(t, r) }); err != nil {
		return err
	}
	return liveFailed(r)
}

// prepare readies a scenario in a folder of its own.
func (f *liveFlags) prepare(ctx context.Context, l *bench.Live, o livebench.Options) (*livebench.Setup, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, noFolder(err, o.Dir)
	}
	if f.repeats > 0 {
		l.Repeats = f.repeats
	}
	return livebench.Prepare(ctx, l, o)
}

func noFolder(err error, dir string) error {
	return errs.New(errs.ResourceExceeded, dir, "set TMPDIR to a folder that can be written",
		"the benchmark needs a folder").Because(err)
}

// liveFailed returns why a result fails the command; nil = it does not.
func liveFailed(r *live.Result) error {
	if err := runFailed(r); err != nil {
		return err
	}
	for _, e := range r.Errors {
		if !e.OK {
			return errs.New(errs.Internal, e.What,
				"a simulator that is wrong answers no question: please report it with the scenario",
				"the simulator says %s %.6g, measured were %v", e.What, e.Simulated, e.Measured)
		}
	}
	return nil
}

// runLive runs the scenarios in turn, the order turned round from one repeat to the next.
func runLive(ctx context.Context, r *live.Result, setups []*livebench.Setup, names []string,
	tell func(string, ...any)) error {
	most := 0
	for _, s := range setups {
		most = max(most, s.Live.Repeats)
	}
	for n := range most {
		for k := range setups {
			i := k
			if n%2 == 1 {
				i = len(setups) - 1 - k
			}
			if n >= setups[i].Live.Repeats {
				continue
			}
			label := liveLabel(names, i, fmt.Sprintf("repeat %d", n+1))
			tell("%s", label)
			run, err := setups[i].Run(ctx, startDaemon, label)
			if err != nil {
				return err
			}
			r.Runs = append(r.Runs, *run)
		}
	}
	return nil
}

func liveLabel(names []string, i int, what string) string {
	if len(names) == 1 {
		return what
	}
	return fmt.Sprintf("%s of %s", what, names[i])
}

// simulateLive simulates what was run, and notes the differences.
func simulateLive(o coresim.Options, r *live.Result, setups []*livebench.Setup, names []string) error {
	measured := r.Runs
	for i, s := range setups {
		var mine []*live.Run
		for k := range measured {
			if len(names) == 1 || strings.HasSuffix(measured[k].Label, " of "+names[i]) {
				mine = append(mine, &measured[k])
			}
		}
		if s.Torch != nil {
			s.LearnSteps(mine)
		}
		run, err := simulate(s.World, o, liveLabel(names, i, "simulated"))
		if err != nil {
			return err
		}
		r.Runs = append(r.Runs, *run)
		for _, e := range livebench.Compare(s.World, run, mine) {
			e.What = liveLabel(names, i, e.What)
			r.Errors = append(r.Errors, e)
		}
	}
	return nil
}

// ownDaemon is a larder serve that this process started.
type ownDaemon struct {
	cmd    *exec.Cmd
	socket string
	log    string
}

const (
	patienceStart = time.Minute
	patienceStop  = 15 * time.Second
)

// startDaemon starts this very program as larder serve and waits until it can be used. Should this process be killed,
// the daemon ends when it was idle for a minute.
func startDaemon(ctx context.Context, dir, config string) (livebench.Daemon, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	d := &ownDaemon{socket: filepath.Join(dir, "s"), log: filepath.Join(dir, "log")}
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) // one that was killed has written there
	if err != nil {
		return nil, errs.New(errs.ResourceExceeded, d.log, "set TMPDIR to a folder that can be written",
			"the daemon needs a log").Because(err)
	}
	defer log.Close()
	//nolint:noctx // it gets SIGTERM, and is killed when it does not end
	d.cmd = exec.Command(self, "serve", "--config", config, "--socket", d.socket, "--idle-exit", "1m")
	d.cmd.Stderr = log
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "LARDER_") {
			d.cmd.Env = append(d.cmd.Env, kv)
		}
	}
	d.cmd.Env = append(d.cmd.Env, fmt.Sprintf("GOMAXPROCS=%d", runtime.GOMAXPROCS(0)))
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches this process alone, which ends it
	ready, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	line := make(chan error, 1)
	go func() {
		_, err := bufio.NewReader(ready).ReadString('\n')
		line <- err
	}()
	select {
	case err = <-line:
	case <-time.After(patienceStart):
		err = errors.New("it did not say that it is ready")
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil {
		return d, nil
	}
	_, _ = d.Stop()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, errs.New(errs.Unavailable, "daemon", "its last words: "+tail(d.log), "the daemon did not start").
		Because(err)
}

func (d *ownDaemon) Socket() string { return d.socket }

func (d *ownDaemon) Stop() (livebench.Usage, error) {
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself, which Wait reports
	killed := false
	kill := time.AfterFunc(patienceStop, func() { killed = true; _ = d.cmd.Process.Kill() })
	err := d.cmd.Wait()
	kill.Stop()
	if err != nil && !killed {
		err = errs.New(errs.Internal, "daemon", "its last words: "+tail(d.log), "the daemon failed").Because(err)
	} else if killed {
		err = errs.New(errs.Internal, "daemon", "its last words: "+tail(d.log), "the daemon did not stop within %v",
			patienceStop)
	}
	return d.used(), err
}

func (d *ownDaemon) Kill() (livebench.Usage, error) {
	_ = d.cmd.Process.Kill() // if it has ended by itself, Wait reports
	_ = d.cmd.Wait()
	if s, ok := d.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
		return d.used(), errs.New(errs.Internal, "daemon", "its last words: "+tail(d.log),
			"the daemon ended before it was killed: %v", d.cmd.ProcessState)
	}
	return d.used(), nil
}

// used is what the process used, when it has ended.
func (d *ownDaemon) used() (u livebench.Usage) {
	if s := d.cmd.ProcessState; s != nil {
		u.CPU = s.UserTime() + s.SystemTime()
		if r, ok := s.SysUsage().(*syscall.Rusage); ok {
			u.PeakRSS = r.Maxrss << 10
		}
	}
	return u
}

// tail is the end of a log, in one line.
func tail(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return printable(strings.Join(strings.Fields(string(raw[max(0, len(raw)-500):])), " "))
}
