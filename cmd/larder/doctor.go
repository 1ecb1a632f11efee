package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"larder/internal/config"
	"larder/internal/errs"
	"larder/internal/gpu"
	"larder/internal/prep"
	"larder/internal/units"
	larderv1 "larder/proto/larder/v1"
)

// finding is one line of larder doctor.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"` // ok | warn | fail
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`
}

func newDoctor(g *globals) *cobra.Command {
	var out outputFlag
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this machine has what larder needs",
		Long: `Check shared memory, limits, memory, cores, the decoder, the GPU driver and the daemon's socket. Each line is
ok, warn or fail, with one fix. The exit code is 1 when something fails.`,
		Example: "  larder doctor",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), 15*time.Second)
			defer cancel()
			list := diagnose(ctx, g)
			w := cmd.OutOrStdout()
			tint := colour(w)
			err := out.value(w, list, func(t *tabwriter.Writer) {
				for _, f := range list {
					// Cells of one column carry escape sequences of one length, so that the columns stay straight.
					fmt.Fprintf(t, "%s\t%s\t%s\n", paint(tint, f.Status), printable(f.Check), printable(f.Detail))
					if f.Fix != "" {
						fmt.Fprintf(t, "%s\t\tfix: %s\n", paint(tint, ""), printable(f.Fix))
					}
				}
			})
			if err != nil {
				return err
			}
			for _, f := range list {
				if f.Status == "fail" {
					return &exitError{code: exitFailure}
				}
			}
			return nil
		},
	}
	out.register(cmd)
	return cmd
}

func paint(tint bool, status string) string {
	if !tint {
		return status
	}
	code := map[string]string{"ok": "32", "warn": "33", "fail": "31"}[status]
	if code == "" {
		code = "39"
	}
	return "\x1b[" + code + "m" + status + "\x1b[0m"
}

func diagnose(ctx context.Context, g *globals) []finding {
	m := config.DetectMachine()
	list := []finding{
		checkMemfd(), checkSeals(), checkFiles(), checkMemory(m), checkCores(m), checkDecoder(), checkGPU(ctx),
		checkIndexDir(m), checkStateDir(ctx, g), checkSocket(ctx, g),
	}
	return append(list, checkOpen(ctx, g)...)
}

func checkMemfd() finding {
	f := finding{Check: "shared memory", Status: "ok", Detail: "memfd_create works"}
	fd, err := unix.MemfdCreate("larder-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return finding{f.Check, "fail", "memfd_create: " + err.Error(),
			"use Linux 3.17 or newer; in a sandbox, allow the system call memfd_create"}
	}
	defer unix.Close(fd)
	if err := unix.Fallocate(fd, 0, 0, 1<<20); err != nil {
		return finding{f.Check, "fail", "no memory behind a memfd: " + err.Error(),
			"free memory, or raise the limit of the control group"}
	}
	return f
}

func checkSeals() finding {
	f := finding{Check: "seals", Status: "ok", Detail: "sizes can be sealed, and the seals too"}
	fd, err := unix.MemfdCreate("larder-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return finding{f.Check, "fail", "no memfd to seal: " + err.Error(), "see shared memory"}
	}
	defer unix.Close(fd)
	want := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL // those of rings; tiers have the first two
	if err := unix.Ftruncate(fd, 4096); err != nil {
		return finding{f.Check, "fail", "size a memfd: " + err.Error(), "see shared memory"}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, want); err != nil {
		return finding{f.Check, "fail", "F_ADD_SEALS: " + err.Error(), "use Linux 3.17 or newer"}
	}
	if got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || got&want != want ||
		unix.Ftruncate(fd, 8192) == nil {
		return finding{f.Check, "fail", "seals do not hold", "use a Linux kernel that implements them; some sandboxes do not"}
	}
	return f
}

func checkFiles() finding {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return finding{"open files", "warn", err.Error(), "ulimit -n shows the limit"}
	}
	// Go raises the soft limit to the hard one at the start, so this is what the daemon has.
	f := finding{Check: "open files", Status: "ok", Detail: fmt.Sprintf("limit %d", l.Cur)}
	if l.Cur < 256 {
		f.Status, f.Fix = "fail", "ulimit -n 4096; a session takes 3 descriptors, a worker 1"
	} else if l.Cur < 1024 {
		f.Status, f.Fix = "warn", "ulimit -n 4096; a session takes 3 descriptors, a worker 1"
	}
	return f
}

func checkMemory(m config.Machine) finding {
	r, err := config.Default().Resolve(m)
	if err != nil {
		e := errs.From(err)
		return finding{"memory", "fail", e.Message, e.Hint}
	}
	f := finding{Check: "memory", Status: "ok",
		Detail: fmt.Sprintf("%s (%s); by default larder takes %s, %s of it for tiers",
			units.Size(r.Machine), m.Source(), units.Size(r.Memory), units.Size(r.Total))}
	if r.Machine < 1<<30 {
		f.Status, f.Fix = "warn", "give the control group 2GiB or more; smaller machines hold few samples and small rings "+
			"only"
	}
	return f
}

func checkCores(m config.Machine) finding {
	f := finding{Check: "cores", Status: "ok", Detail: fmt.Sprintf("%d for preparing samples", m.CPUs)}
	if m.Quota > 0 && m.Quota < float64(m.CPUs) {
		f.Detail = fmt.Sprintf("%d for preparing samples, of which the control group gives the time of %.3g", m.CPUs, m.Quota)
	}
	if m.Quota > 0 && m.Quota < 1 {
		f.Status, f.Fix = "warn", "raise the control group's quota of processor time to 2 cores or more (cpu.max; "+
			"docker run --cpus, limits.cpu of Kubernetes)"
	} else if m.CPUs < 2 {
		f.Status, f.Fix = "warn", "give the daemon 2 cores or more; one decodes a few hundred images a second"
	}
	return f
}

func checkDecoder() finding {
	if prep.Parity() {
		return finding{Check: "decoder", Status: "ok", Detail: prep.DecoderName() + ", bit-equal to torchvision"}
	}
	return finding{"decoder", "warn", prep.DecoderName() + ": slower, and not bit-equal to torchvision",
		"install libjpeg-turbo's headers (Debian: apt-get install libjpeg62-turbo-dev, Ubuntu: libjpeg-turbo8-dev) and " +
			"build again: make build"}
}

func checkGPU(ctx context.Context) finding {
	probe := gpu.Open()
	defer probe.Close()
	devices, err := probe.Devices(ctx)
	if err != nil {
		return finding{"gpu", "warn", err.Error(), "nvidia-smi shows whether the driver answers; larder works without it"}
	}
	return finding{Check: "gpu", Status: "ok", Detail: fmt.Sprintf("%s; %d found", probe.Status(), len(devices))}
}

func checkIndexDir(m config.Machine) finding {
	f := finding{Check: "index folder", Status: "ok", Detail: m.IndexDir}
	if m.IndexDir == "" {
		return finding{f.Check, "warn", "there is no cache folder, for neither XDG_CACHE_HOME nor HOME is set",
			"set source.index_dir, or every start walks the datasets again"}
	}
	if err := unix.Access(existing(m.IndexDir), unix.W_OK); err != nil {
		return finding{f.Check, "warn", fmt.Sprintf("%s cannot be written: %v", m.IndexDir, err),
			"set source.index_dir, or every start walks the datasets again"}
	}
	return f
}

// leastStateDisk is what a daemon reserves of the disk of its state directory to begin.
const leastStateDisk = 1 << 20

// checkStateDir looks at the folder of the daemon that is asked, or of the one that would serve the socket.
func checkStateDir(ctx context.Context, g *globals) finding {
	dir, err := askedStateDir(ctx, g)
	if err != nil {
		e := errs.From(err)
		return finding{"state folder", "warn", e.Message, e.Hint}
	}
	return checkStateDisk(dir, servesWithRoom(ctx, g))
}

// servesWithRoom reports whether a daemon runs that finds no disk full.
func servesWithRoom(ctx context.Context, g *globals) bool {
	short := *g
	short.timeout = 5 * time.Second
	ok := false
	err := short.call(ctx, short.timeout, func(ctx context.Context, c larderv1.LarderServiceClient) error {
		r, err := c.GetStats(ctx, &larderv1.GetStatsRequest{})
		ok = err == nil && r.GetStats().GetStateFull() == nil
		return err
	})
	return err == nil && ok
}

// checkStateDisk looks whether a daemon can keep its state in dir. One that runs has its room already, and waits when a
// write fails: as long as none has, little room is but a warning.
func checkStateDisk(dir string, runs bool) finding {
	f := finding{Check: "state folder", Status: "ok", Detail: dir}
	if dir == "" {
		return finding{f.Check, "warn", "there is none: no job outlives the daemon",
			"set state.dir, or XDG_STATE_HOME or HOME"}
	}
	if err := unix.Access(existing(dir), unix.W_OK); err != nil {
		return finding{f.Check, "warn", fmt.Sprintf("%s cannot be written: %v", dir, err),
			"set state.dir, or no job outlives the daemon"}
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(existing(dir), &disk); err != nil || disk.Bavail*uint64(disk.Bsize) >= leastStateDisk {
		return f
	}
	left, need := units.Size(disk.Bavail*uint64(disk.Bsize)), units.Size(uint64(leastStateDisk))
	if runs {
		return finding{f.Check, "warn", fmt.Sprintf("the disk of %s is nearly full: %s are left. The daemon that runs "+
			"continues until a write fails, then jobs wait; "+
			"one that starts needs %s", dir, left, need), "make room on that disk"}
	}
	return finding{f.Check, "fail", fmt.Sprintf("the disk of %s is full: %s are left, and a daemon needs %s", dir, left,
		need), "make room on that disk, or set state.dir"}
}

// existing is the deepest part of a path that exists.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || filepath.Dir(path) == path {
			return path
		}
		path = filepath.Dir(path)
	}
}

func checkSocket(ctx context.Context, g *globals) finding {
	f, target := finding{Check: "socket", Status: "ok"}, g.target()
	if pid := suspended(target); pid > 0 {
		return finding{f.Check, "fail", fmt.Sprintf("the daemon at %s, process %d, is stopped: it answers nothing",
			target, pid), fmt.Sprintf("kill -CONT %d", pid)}
	}
	dial, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client, closer, err := g.dial(dial)
	if err == nil {
		defer closer.Close()
		r, err := client.GetStats(dial, &larderv1.GetStatsRequest{})
		if err != nil {
			e := errs.From(err)
			return finding{f.Check, "fail", fmt.Sprintf("the daemon at %s: %s", target, e.Message), e.Hint}
		}
		if full := r.GetStats().GetStateFull(); full != nil {
			return finding{"state disk", "fail", fmt.Sprintf("the daemon at %s: %s", target, full.GetMessage()), full.GetHint()}
		}
		f.Detail = fmt.Sprintf("larder %s (process %d) serves %s", r.GetStats().GetVersion(), r.GetStats().GetPid(), target)
		return f
	}
	st, serr := os.Lstat(target)
	switch {
	case errors.Is(serr, fs.ErrNotExist):
		dir := existing(filepath.Dir(target))
		if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			return finding{f.Check, "fail", fmt.Sprintf("a daemon could not make %s: %s: %v", target, dir, err),
				"choose another path with --socket or LARDER_SOCKET"}
		}
		f.Detail = fmt.Sprintf("no daemon yet; larder serve can make %s", target)
		return f
	case serr == nil && st.Mode().Type() != fs.ModeSocket:
		return finding{f.Check, "fail", target + " is no socket",
			"move the file away, or choose another path with --socket or LARDER_SOCKET"}
	}
	e := errs.From(err)
	status := "warn"
	if errors.Is(serr, fs.ErrPermission) || !errs.Is(err, errs.Unavailable) {
		status = "fail"
	}
	return finding{f.Check, status, e.Message, e.Hint}
}
