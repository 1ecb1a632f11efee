package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"larder/internal/daemon"
	"larder/internal/errs"
	"larder/internal/session"
	larderv1 "larder/proto/larder/v1"
)

func init() { socketCommands = append(socketCommands, newStop) }

// dyingTime is how long a process may hold a socket without answering: a daemon that starts, or one that was killed
// and is being cleared away.
const dyingTime = 5 * time.Second

// endTime is how long a daemon that said that it stops may take to be gone.
const endTime = 30 * time.Second

func newStop(g *globals) *cobra.Command {
	var out outputFlag
	var drain, force bool
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "Stop the daemon for good: its clients do not start another one",
		Long: `Stop the daemon, and return when it has ended. Its clients are notified: their next next() raises
StoppedError, which names who stopped it, and no loader that was made before starts another daemon. A script that is
started afterwards does. With a state directory jobs stay as they are, and continue with the next daemon on it.

While clients hold ranks of jobs, the command asks first, or refuses where it cannot ask. --force stops all the same;
--drain lets the running epochs end first, for at most --timeout (1h), and then cuts off what is left. Where no daemon
runs, nothing is stopped, but live loaders start none either; the exit code is 0.`,
		Example: "  larder stop\n  larder stop --drain --timeout 10m",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if drain && force {
				return usagef("choose one of them", "--drain waits for jobs, and --force does not")
			}
			return stop(cmd, g, &out, &larderv1.StopRequest{Drain: drain, Force: force, By: whoStops()})
		},
	}
	cmd.Flags().BoolVar(&drain, "drain", false, "let the running epochs end first, for at most --timeout (default 1h)")
	cmd.Flags().BoolVar(&force, "force", false, "stop also while clients hold ranks of jobs, without asking")
	cmd.Flags().BoolVarP(&force, "yes", "y", false, "the same as --force")
	out.register(cmd)
	return cmd
}

// whoStops names the user and the process, for the clients that are stopped.
func whoStops() string {
	name := strconv.Itoa(os.Getuid())
	if u, err := user.LookupId(name); err == nil {
		name = u.Username
	}
	return fmt.Sprintf("%s (larder stop, process %d)", name, os.Getpid())
}

// stopped is what the command prints.
type stopped struct {
	Socket     string   `json:"socket"`
	PID        int32    `json:"pid"` // 0 = no daemon ran
	Live       []string `json:"live"`
	Unfinished []string `json:"unfinished"`
	Durable    bool     `json:"durable"`
}

func stop(cmd *cobra.Command, g *globals, out *outputFlag, req *larderv1.StopRequest) error {
	limit, end := shortCall, endTime
	if req.GetDrain() {
		limit = daemon.LongestDrain
		if g.timeout > 0 {
			limit = g.timeout
		}
		req.Timeout = durationpb.New(limit)
		limit += endTime // for the answer
	} else if g.timeout > 0 {
		limit, end = g.timeout, g.timeout
	}
	ask := *g
	ask.timeout = limit
	var r *larderv1.StopResponse
	call := func(ctx context.Context, c larderv1.LarderServiceClient) (err error) {
		r, err = c.Stop(ctx, req)
		return err
	}
	path, unix := socketOf(g.target())
	result := stopped{Socket: g.target(), Live: []string{}, Unfinished: []string{}}
	err := ask.call(cmd.Context(), limit, call)
	for end := time.Now().Add(dyingTime); unix && errs.Is(err, errs.Unavailable) &&
		time.Now().Before(end); err = ask.call(cmd.Context(), limit, call) {
		switch done, err := markUnserved(path, req.GetBy()); {
		case err != nil:
			return err
		case done:
			return out.value(cmd.OutOrStdout(), result, func(t *tabwriter.Writer) {
				row(t, unservedText(path))
			})
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	if !r.GetStopping() {
		if err := agree(cmd, r); err != nil {
			return err
		}
		req.Force = true
		if err := ask.call(cmd.Context(), limit, call); err != nil {
			return err
		}
	}
	if err := awaitEnd(cmd.Context(), g.target(), r.GetPid(), end); err != nil {
		return err
	}
	result.PID, result.Live, result.Unfinished, result.Durable = r.GetPid(), append(result.Live, r.GetLive()...),
		append(result.Unfinished, r.GetUnfinished()...), r.GetDurable()
	return out.value(cmd.OutOrStdout(), result, func(t *tabwriter.Writer) { stoppedTable(t, result, req.GetDrain()) })
}

// unservedText describes a stop where no daemon ran.
func unservedText(path string) string {
	if !exists(filepath.Dir(path)) {
		return fmt.Sprintf("no daemon serves %s: its folder does not exist", path)
	}
	return fmt.Sprintf("no daemon serves %s; loaders that live start none", path)
}

// markUnserved leaves the mark of a stop where no daemon runs; false: a process holds the socket, and is dying or about
// to serve it. In a folder that does not exist no daemon has been, so no loader lives that had one: no process would
// read the mark.
func markUnserved(path, by string) (bool, error) {
	if _, err := os.Stat(filepath.Dir(path)); errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if session.Held(path) {
		return false, nil
	}
	err := session.MarkUnserved(path, session.NewStopMark(by, 0))
	if errs.Is(err, errs.AlreadyExists) {
		return false, nil
	}
	return err == nil, err
}

func stoppedTable(t *tabwriter.Writer, s stopped, drained bool) {
	row(t, fmt.Sprintf("stopped process %d, which served %s", s.PID, s.Socket))
	switch {
	case len(s.Unfinished) > 0:
		row(t, fmt.Sprintf("cut off before their epoch was over: %s", jobNames(s.Unfinished)))
	case len(s.Live) == 0 || drained:
	case s.Durable:
		row(t, fmt.Sprintf("live until then: %s; they continue with the next daemon on its state directory",
			jobNames(s.Live)))
	default:
		row(t, fmt.Sprintf("live until then: %s; they ended with it, for it had no state directory", jobNames(s.Live)))
	}
}

func jobNames(names []string) string {
	const most = 8
	more := ""
	if len(names) > most {
		more = fmt.Sprintf(" and %d more", len(names)-most)
		names = names[:most]
	}
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = printable(n)
	}
	return strings.Join(list, ", ") + more
}

// agree asks whether live jobs may be cut off, or refuses where it cannot ask.
func agree(cmd *cobra.Command, r *larderv1.StopResponse) error {
	jobs := "jobs are"
	if len(r.GetLive()) == 1 {
		jobs = "job is"
	}
	what := fmt.Sprintf("%d %s live: %s", len(r.GetLive()), jobs, jobNames(r.GetLive()))
	if isTerminal(cmd.InOrStdin()) && isTerminal(cmd.ErrOrStderr()) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s. Stop process %d all the same? [y/N] ", what, r.GetPid())
		line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
		if word := strings.ToLower(strings.TrimSpace(line)); err == nil && (word == "y" || word == "yes") {
			return nil
		}
	}
	return &exitError{exitConflict, &usageError{fmt.Errorf("the daemon was not stopped: %s", what),
		"larder stop --drain lets their epochs end first, larder stop --force stops at once"}}
}

// socketOf is the path of a Unix socket; false for host:port.
func socketOf(target string) (string, bool) {
	path, named := strings.CutPrefix(target, "unix:")
	if named {
		path = strings.TrimPrefix(path, "//")
	}
	return path, named || strings.Contains(target, "/")
}

// awaitEnd returns when no daemon serves the target any more.
func awaitEnd(ctx context.Context, target string, pid int32, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	path, unix := socketOf(target)
	for {
		if unix && !session.Held(path) || !unix && unservedAt(ctx, target) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return errs.New(errs.Unavailable, target, fmt.Sprintf("wait longer with --timeout, or end it: kill -9 %d", pid),
				"process %d was told to stop, and has not ended after %v", pid, limit)
		}
	}
}

// unservedAt reports whether no process listens at host:port. What went wrong with TLS or a token says nothing about
// that, so neither is tried; what closes a connection that it has just accepted is a tunnel without a daemon: a daemon
// speaks first, or with TLS waits for the client.
func unservedAt(ctx context.Context, target string) bool {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", target)
	if err != nil {
		return errors.Is(err, syscall.ECONNREFUSED)
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		return false
	}
	_, err = c.Read(make([]byte, 1))
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
}
