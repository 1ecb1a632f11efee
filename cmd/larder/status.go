package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"larder/internal/config"
	"larder/internal/daemon"
	"larder/internal/errs"
	"larder/internal/session"
	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
)

func init() { socketCommands = append(socketCommands, newStatus) }

func newStatus(g *globals) *cobra.Command {
	var out outputFlag
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether a daemon runs, which one, and its state",
		Long: `Show whether a daemon serves the socket: its process, version, socket, state folder, log, jobs, memory and
last error. The exit code is 0 when a daemon runs and 3 when none does. Then the output shows who stopped the last
daemon, if a user did, its log, if that lies beside the socket, and the state folder that a daemon started from here
would use. Exit code 4 means that a process holds the socket and does not answer.`,
		Example: "  larder status\n  larder status -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			return status(cmd, g, &out)
		},
	}
	out.register(cmd)
	return cmd
}

func status(cmd *cobra.Command, g *globals, out *outputFlag) error {
	r, err := askStatus(cmd.Context(), g)
	if err == nil {
		return out.message(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) { statusTable(t, r) })
	}
	path, unix := socketOf(g.target())
	if !unix || !errs.Is(err, errs.Unavailable) {
		return err
	}
	if session.Held(path) {
		return silent(path)
	}
	if !unheard(path) {
		return err
	}
	s := notRunning{Socket: path}
	if mark, ok := session.ReadStopMark(path); ok {
		s.StoppedBy, s.StoppedAt = mark.By, mark.At.Format(time.RFC3339)
	}
	if s.StateDir, err = configuredState(g, path); err != nil {
		return err
	}
	if log := strings.TrimSuffix(path, filepath.Ext(path)) + ".log"; exists(log) {
		s.Log = log
	}
	if err := out.value(cmd.OutOrStdout(), s, func(t *tabwriter.Writer) { notRunningTable(t, s) }); err != nil {
		return err
	}
	return &exitError{code: exitNotFound}
}

// unheard reports whether no process listens at a socket; false also where this user may not know.
func unheard(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return false
	}
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// silent is the error where a process holds the lock of a socket and does not answer.
func silent(path string) error {
	who, end := "a process", "look for it with: fuser -v "+path+".lock"
	note, _ := os.ReadFile(path + ".lock") // which the holder has left
	if pid, err := strconv.Atoi(strings.TrimSpace(string(note))); err == nil && pid > 0 {
		who, end = fmt.Sprintf("process %d", pid), fmt.Sprintf("end it: kill -9 %d", pid)
	}
	return errs.New(errs.Unavailable, path, "ask again, for it may be starting or ending; if it stays so, "+end,
		"%s holds %s and does not answer", who, path)
}

func askStatus(ctx context.Context, g *globals) (r *larderv1.StatusResponse, err error) {
	err = g.call(ctx, shortCall, func(ctx context.Context, c larderv1.LarderServiceClient) error {
		r, err = c.Status(ctx, &larderv1.StatusRequest{})
		return err
	})
	return r, err
}

func statusTable(t *tabwriter.Writer, r *larderv1.StatusResponse) {
	if r.GetWithheld() {
		const not = "shown to the daemon's user and root alone"
		r.StateDir, r.Log = not, not
		defer row(t, "last error", not)
	}
	word := "running"
	if r.GetStopping() {
		word = "stopping: the running epochs end first"
	}
	row(t, "daemon", fmt.Sprintf("%s, process %d, larder %s, up %s", word, r.GetPid(), r.GetVersion(),
		upTime(r.GetUptime().AsDuration())))
	row(t, "socket", printable(r.GetSocket()))
	for _, x := range [][2]string{{"http", r.GetHttp()}, {"grpc", r.GetGrpc()}} {
		if x[1] != "" {
			row(t, x[0], printable(x[1]))
		}
	}
	row(t, "state folder", orElse(printable(r.GetStateDir()), "none: jobs end with this daemon"))
	row(t, "log", orElse(printable(r.GetLog()), "standard error, which is no file"))
	jobs := fmt.Sprintf("%d live, %d without a client, %d ended", r.GetJobsLive(), r.GetJobsWaiting(), r.GetJobsEnded())
	if n := r.GetJobsPaused(); n > 0 {
		jobs += fmt.Sprintf("; %d paused", n)
	}
	row(t, "jobs", jobs)
	for _, x := range r.GetFailing() {
		row(t, "storage", fmt.Sprintf("%s has failed for %s, and %s for it: %s", printable(x.GetDataset().GetName()),
			time.Duration(x.GetOutage().GetSeconds()*float64(time.Second)).Round(time.Second),
			plural(x.GetJobsWaiting(), "job waits", "jobs wait"), printable(x.GetOutage().GetWhy())))
	}
	for _, x := range r.GetIndexing() {
		row(t, "indexing", fmt.Sprintf("%s for %s: %s", clipPath(x.GetUri(), 80),
			time.Since(x.GetSince().AsTime()).Round(time.Second), howFar(indexedOf(x), 0)))
	}
	row(t, "memory", fmt.Sprintf("tiers %s of %s, rings %s, process %s, memory.limit %s", units.Size(r.GetTiersUsed()),
		units.Size(r.GetTiersTotal()),
		units.Size(r.GetRingsUsed()), units.Size(r.GetRssBytes()), units.Size(r.GetMemoryLimit())))
	if s := r.GetDecoding(); s != "" {
		row(t, "images decoded", printable(s))
	}
	if r.GetWithheld() {
		return
	}
	last := "none"
	if r.GetLastError() != "" {
		last = r.GetLastErrorAt().AsTime().Format("2006-01-02 15:04:05 UTC") + " " + printable(r.GetLastError())
	}
	row(t, "last error", last)
}

// upTime is a duration for people.
func upTime(d time.Duration) string {
	if d < time.Minute {
		return d.Truncate(time.Second).String()
	}
	days := int(d / (24 * time.Hour))
	s := strings.TrimSuffix((d % (24 * time.Hour)).Truncate(time.Minute).String(), "0s")
	if days > 0 {
		return fmt.Sprintf("%dd%s", days, s)
	}
	return s
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// notRunning is the status where no daemon runs.
type notRunning struct {
	PID       int    `json:"pid"` // 0
	Socket    string `json:"socket"`
	StateDir  string `json:"state_dir"`
	Log       string `json:"log"`
	StoppedBy string `json:"stopped_by"`
	StoppedAt string `json:"stopped_at"`
}

func notRunningTable(t *tabwriter.Writer, s notRunning) {
	row(t, "daemon", "not running")
	row(t, "socket", printable(s.Socket))
	if s.StoppedBy != "" {
		row(t, "stopped", fmt.Sprintf("by %s at %s", printable(s.StoppedBy), s.StoppedAt))
	}
	state := orElse(printable(s.StateDir), "none")
	if s.StateDir != "" && !exists(s.StateDir) {
		state += " (not made yet)"
	}
	row(t, "state folder", state)
	if s.Log != "" {
		row(t, "log", printable(s.Log))
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// configuredState is the state folder of a daemon that this environment would start on a socket; "" = it would have
// none.
func configuredState(g *globals, socket string) (string, error) {
	var flags configFlags
	cfg, err := flags.load(g)
	if err != nil {
		return "", err
	}
	r, err := cfg.Resolve(config.DetectMachine())
	if err != nil {
		return "", err
	}
	if r.StateDir != "" && r.StateAuto {
		return daemon.StateFolder(r.StateDir, socket), nil
	}
	return r.StateDir, nil
}

// askedStateDir is the state folder of the daemon that is asked, else of one that would serve its socket; "" = it has
// none.
func askedStateDir(ctx context.Context, g *globals) (string, error) {
	short := *g
	short.timeout = 5 * time.Second
	if r, err := askStatus(ctx, &short); err == nil {
		return r.GetStateDir(), nil
	}
	path, _ := socketOf(g.target())
	return configuredState(g, path)
}
