package main

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"larder/internal/daemon"
	"larder/internal/telemetry"
)

func newRun(g *globals) *cobra.Command {
	var cfg configFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- CMD [ARG...]",
		Short: "Run a command with a daemon of its own",
		Long: `Start a private daemon, run the command with LARDER_SOCKET set to it, and stop the daemon when the command
ends. The exit code is the command's: 126 when it cannot be run, 127 when it is not found, 128 + n when signal n ended
it.`,
		Example: "  larder run -- python train.py",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("e.g. larder run -- python train.py", "larder run needs a command")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return runCommand(cmd, g, &cfg, args) },
	}
	cmd.Flags().SetInterspersed(false) // flags behind the command belong to it, also without --
	cfg.register(cmd)
	cmd.Flags().StringVar(&cfg.http, "http", "", "serve metrics on host:port while the command runs (default: off)")
	return cmd
}

func runCommand(cmd *cobra.Command, g *globals, flags *configFlags, args []string) (err error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)

	flags.tcp = g.tcp
	cfg, err := flags.load(nil)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "larder-run-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cfg.Socket = filepath.Join(dir, "larder.sock")
	if g.socket != "" {
		cfg.Socket = g.socket
	}
	if cfg.Origin("log.level").Kind == "default" {
		cfg.Log.Level = "warn" // the command's own output is what matters
	}
	log, level, err := telemetry.NewLogger(cmd.ErrOrStderr(), cfg.Log.Level, cfg.Log.Format)
	if err != nil {
		return err
	}
	cfg.State.Dir = "none" // it lives as long as its command
	d, err := daemon.Open(daemonOptions(cfg, log, level))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return child(cmd, log, args, append(withoutSocket(os.Environ()), "LARDER_SOCKET="+d.Socket()), signals)
}

func withoutSocket(env []string) []string {
	var out []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, "LARDER_SOCKET=") {
			out = append(out, kv)
		}
	}
	return out
}

// child runs the command and passes signals on to it.
func child(cmd *cobra.Command, log *slog.Logger, args, env []string, signals <-chan os.Signal) error {
	c := exec.Command(args[0], args[1:]...) // without a context: its end is its own
	c.Stdin, c.Stdout, c.Stderr, c.Env = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), env
	if err := c.Start(); err != nil {
		code := 126
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			code = 127
		}
		return &exitError{code, err}
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	// The keys of a terminal signal the whole foreground group: the command has had its SIGINT then, and a second one
	// would make many programs stop without cleaning up.
	fromKeys := isTerminal(cmd.InOrStdin())
	for {
		select {
		case sig := <-signals:
			if fromKeys && (sig == syscall.SIGINT || sig == syscall.SIGQUIT) {
				continue
			}
			if err := c.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
				log.Warn("pass a signal on", "signal", sig.String(), "error", err)
			}
		case err := <-ended:
			return commandExit(err)
		}
	}
}

func commandExit(err error) error {
	if err == nil {
		return nil
	}
	e := (*exec.ExitError)(nil)
	if !errors.As(err, &e) {
		return err
	}
	code := e.ExitCode()
	if st, ok := e.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		code = 128 + int(st.Signal())
	}
	return &exitError{code: code}
}
