package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"larder/internal/config"
	"larder/internal/rpc"
	"larder/internal/session"
	larderv1 "larder/proto/larder/v1"
)

// extraCommands are the commands of files that stand on their own; each appends its constructor in init.
var extraCommands []func() *cobra.Command

// socketCommands are those that ask a daemon.
var socketCommands []func(*globals) *cobra.Command

// globals are the flags every command has.
type globals struct {
	socket  string
	timeout time.Duration
	tcp     rpc.Access // as given on the command line
	// configured: tcp has been read as the configuration of a daemon, so that a Unix socket does not make it idle.
	configured bool
}

func newRoot() *cobra.Command {
	g := &globals{}
	root := &cobra.Command{
		Use:   "larder",
		Short: "Feed all training jobs of a machine from one cache",
		Long: `larder is one daemon per machine that feeds all the training jobs on it: it decides which sample each job
sees next, prepares each sample as few times as possible, and hands every job its batches in shared memory.`,
		Example: "  larder demo\n  larder run -- python train.py\n  larder serve --http 127.0.0.1:9464\n  larder jobs ls",
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if g.timeout < 0 {
				return usagef("e.g. --timeout 30s", "--timeout %v is negative", g.timeout)
			}
			if cmd.Hidden || cmd.Name() == "serve" { // serve has a log for it
				return nil
			}
			for _, w := range config.UnknownEnv(os.Environ()) {
				fmt.Fprintf(cmd.ErrOrStderr(), "larder: warning: %s\n", w)
			}
			return nil
		},
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE:          needSubcommand,
	}
	root.PersistentFlags().StringVar(&g.socket, "socket", "",
		"Unix socket of the daemon, or host:port to ask one over TCP (default: LARDER_SOCKET, else the user's own)")
	root.PersistentFlags().DurationVar(&g.timeout, "timeout", 0,
		"give up a call after this time (default: 30s, 1h for what may index a dataset)")
	registerAccess(root, &g.tcp)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{flagMistake(cmd, err), cmd.CommandPath() + " --help lists the flags"}
	})
	root.SetVersionTemplate("larder {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		newServe(g), newRun(g), newJobs(g), newOrders(g), newDataset(g), newTiers(g), newStats(g), newExplain(g),
		newConfig(g), newDoctor(g), newVersion(), newTrace(g),
	)
	for _, f := range extraCommands {
		root.AddCommand(f())
	}
	for _, f := range socketCommands {
		root.AddCommand(f(g))
	}
	return root
}

// flagMistake names the nearest flag of an unknown one.
func flagMistake(cmd *cobra.Command, err error) error {
	name, ok := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !ok {
		return err
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflagFlag) { known = append(known, f.Name) })
	if n := config.Nearest(name, known); n != "" {
		return fmt.Errorf("unknown flag --%s; did you mean --%s?", name, n)
	}
	return fmt.Errorf("unknown flag --%s", name)
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasAvailableSubCommands() {
		var names []string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				names = append(names, c.Name())
			}
		}
		hint := cmd.CommandPath() + " --help lists them"
		if n := config.Nearest(args[0], names); n != "" {
			hint = "did you mean " + cmd.CommandPath() + " " + n + "?"
		}
		return usagef(hint, "unknown command %q", cmd.CommandPath()+" "+args[0])
	}
	return usagef(cmd.CommandPath()+" --help", "%s takes no argument, but got %q", cmd.CommandPath(), args[0])
}

// args demands exactly the named arguments.
func args(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, got []string) error {
		if len(got) == len(names) {
			return nil
		}
		want := strings.Join(names, " and ")
		if len(got) > len(names) {
			return usagef("e.g. "+firstExample(cmd), "%s takes %s, but got %d arguments: %s", cmd.CommandPath(), want, len(got),
				quoted(got))
		}
		return usagef("e.g. "+firstExample(cmd), "%s needs %s", cmd.CommandPath(), want)
	}
}

// quoted are arguments for a message, as the user gave them, but not without end.
func quoted(got []string) string {
	const most = 5
	more := ""
	if len(got) > most {
		got, more = got[:most], ", …"
	}
	list := make([]string, len(got))
	for i, a := range got {
		list[i] = strconv.Quote(clip(a, 60))
	}
	return strings.Join(list, ", ") + more
}

func firstExample(cmd *cobra.Command) string {
	line, _, _ := strings.Cut(strings.TrimSpace(cmd.Example), "\n")
	return line
}

// needSubcommand shows the help of a command that only groups others, and fails, so that scripts notice.
func needSubcommand(cmd *cobra.Command, _ []string) error {
	_ = cmd.Help()
	return &exitError{code: exitUsage}
}

func (g *globals) target() string {
	if g.socket != "" {
		return g.socket
	}
	return session.DefaultSocket()
}

// Limits of calls, unless --timeout says otherwise.
const (
	shortCall = 30 * time.Second
	longCall  = time.Hour // a first walk over millions of files on slow storage
)

// call connects to the daemon, runs f and disconnects. limit bounds all of it.
func (g *globals) call(ctx context.Context, limit time.Duration,
	f func(context.Context, larderv1.LarderServiceClient) error) error {
	if g.timeout > 0 {
		limit = g.timeout
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	dial, cancel := context.WithTimeout(ctx, min(shortCall, max(limit, time.Second)))
	defer cancel()
	client, closer, err := g.dial(dial)
	if err != nil {
		return err
	}
	defer closer.Close()
	return f(ctx, client)
}

// configFlags are the flags of commands that read the configuration.
type configFlags struct {
	file string
	set  []string
	http string

	storageLimit string
	socketGroup  string
	tcp          rpc.Access // of the daemon's own TCP listener
}

func (c *configFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.file, "config", "", "YAML file (default: LARDER_CONFIG, else none)")
	cmd.Flags().StringArrayVar(&c.set, "set", nil,
		"set one key, e.g. --set tiers.decoded=2GiB; may be given several times")
}

// load reads file, environment and flags.
func (c *configFlags) load(g *globals) (*config.Config, error) { return c.reload(g, "", nil) }

// reload is load with the content of another file, if that has a name.
func (c *configFlags) reload(g *globals, name string, content []byte) (*config.Config, error) {
	flags := map[string]string{}
	for _, kv := range c.set {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			return nil, usagef("e.g. --set tiers.decoded=2GiB", "--set %q is not KEY=VALUE", kv)
		}
		flags[strings.TrimSpace(k)] = strings.TrimSpace(v)
	}
	if g != nil && g.socket != "" {
		flags["socket"] = g.socket
	}
	if g != nil {
		c.tcp, g.configured = g.tcp, true
	}
	accessKeys(c.tcp, flags)
	if c.http != "" {
		flags["http"] = c.http
	}
	if c.socketGroup != "" {
		flags["socket_group"] = c.socketGroup
	}
	if c.storageLimit != "" {
		flags["source.storage_limit"] = c.storageLimit
	}
	file := c.file
	if file == "" {
		file = os.Getenv("LARDER_CONFIG")
	}
	if name != "" {
		return config.LoadContent(name, content, os.Environ(), flags)
	}
	return config.Load(file, os.Environ(), flags)
}

// colour reports whether a stream is a terminal that may be coloured.
func colour(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(w)
}

var errNoAnswer = errors.New("the daemon's answer lacks what was asked for")
