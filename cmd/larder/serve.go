package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"larder/internal/config"
	"larder/internal/daemon"
	"larder/internal/telemetry"
)

// readyLine is what serve prints on standard output once clients can connect.
type readyLine struct {
	Socket  string `json:"socket"`
	HTTP    string `json:"http"`
	GRPC    string `json:"grpc,omitempty"`
	PID     int    `json:"pid"`
	Version string `json:"version"`
}

func newServe(g *globals) *cobra.Command {
	var cfg configFlags
	var times serveTimes
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `Run the daemon in the foreground. When clients can connect it prints one line of JSON on standard output:
{"socket": …, "http": …, "pid": …, "version": …}. The log goes to standard error.

SIGTERM or Ctrl-C stops it. With a state directory the daemon stops at once: jobs stay as they are, and clients wait and
continue in the middle of their epochs with the next daemon on that directory. With --drain-timeout, and where nothing
survives the daemon, clients first get that time to finish their epochs, and their jobs end; a second signal stops at
once. SIGHUP reads the configuration again and applies what can change live, or refuses all of it.`,
		Example: "  larder serve --config larder.yaml --http 127.0.0.1:9464",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if times.idle < 0 || times.drain < 0 {
				return usagef("e.g. --idle-exit 10m", "a duration is negative")
			}
			return serve(cmd, g, &cfg, &times)
		},
	}
	cfg.register(cmd)
	cmd.Flags().StringVar(&cfg.http, "http", "",
		"serve /metrics, /healthz, /readyz and /debug/vars on host:port (default: off)")
	cmd.Flags().StringVar(&cfg.storageLimit, "storage-limit", "",
		"limit reads from storage to so many bytes per second, e.g. 20MB/s")
	cmd.Flags().StringVar(&cfg.socketGroup, "socket-group", "",
		"let the members of a group (name or number) use the socket too; see docs/security.md")
	cmd.Flags().DurationVar(&times.idle, "idle-exit", 0, "exit when no client has been connected for this time (default: never)")
	cmd.Flags().DurationVar(&times.drain, "drain-timeout", 10*time.Second,
		"how long clients may finish their epochs after the first signal, where state.dir is none or this flag is given")
	times.clock.register(cmd)
	return cmd
}

// serveTimes are the times of a daemon, and the clock that they pass on.
type serveTimes struct {
	idle, drain time.Duration
	clock       clockFlag
}

func serve(cmd *cobra.Command, g *globals, flags *configFlags, times *serveTimes) (err error) {
	// Signals are caught before anything exists that they would leave behind.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)

	cfg, err := flags.load(g)
	if err != nil {
		return err
	}
	out := cmd.ErrOrStderr()
	if cfg.Log.File != "" {
		file, bad := telemetry.OpenLogFile(cfg.Log.File, cmp.Or(cfg.Log.MaxSize.Of(0), config.LogSize))
		if bad != nil {
			return bad
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		out = file
	}
	log, level, err := telemetry.NewLogger(out, cfg.Log.Level, cfg.Log.Format)
	if err != nil {
		return err
	}
	for _, w := range config.UnknownEnv(os.Environ()) {
		log.Warn(w)
	}
	if err := scheduleAsBatch(); err != nil {
		log.Warn("the daemon competes with its clients for processors", "error", err)
	}
	o := daemonOptions(cfg, log, level)
	o.Reload = func(file string, content []byte) (*config.Config, error) { return flags.reload(g, file, content) }
	if o.Clock, err = times.clock.open(); err != nil {
		return err
	}
	d, err := daemon.Open(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	line := readyLine{Socket: d.Socket(), HTTP: d.HTTP(), GRPC: d.GRPC(), PID: os.Getpid(), Version: version}
	if err := encodeJSON(cmd.OutOrStdout(), line); err != nil {
		return fmt.Errorf("print the ready line: %w", err)
	}
	log.Info("serving", "socket", line.Socket, "http", line.HTTP, "pid", line.PID, "version", version)
	return d.Serve(cmd.Context(), daemon.ServeOptions{
		Signals: signals, IdleExit: times.idle, DrainTimeout: times.drain, AlwaysDrain: cmd.Flags().Changed("drain-timeout"),
	})
}

// daemonOptions are those of every daemon that this program opens.
func daemonOptions(cfg *config.Config, log *slog.Logger, level *slog.LevelVar) daemon.Options {
	return daemon.Options{Config: cfg, Log: log, Level: level, Version: version, Trial: tryCommand,
		Decode: decodeCommand}
}
