// Command larder is the daemon that feeds all training jobs of a machine, and the command line that speaks to it.
//
//	main ── run ── root.go ─┬─ serve.go ── internal/daemon    a daemon of its own process
//	                        ├─ run.go   ── internal/daemon    a private daemon for one command
//	                        ├─ jobs, dataset, tiers, stats    ask a daemon through rpc.Dial
//	                        └─ config, doctor, version        need none
//
// A file a subcommand; main is wiring and owns nothing but the process: signals, streams and the exit code. Exit codes
// are in exit.go and docs/cli.md.
package main

import (
	"context"
	"io"
	"os"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run executes one command line and returns its exit code. It writes errors to stderr itself.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil {
		printError(stderr, err)
	}
	return exitCode(err)
}
