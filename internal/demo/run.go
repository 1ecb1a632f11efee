package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/imagegen"
	"larder/internal/units"
)

// Options are the flags of larder demo. Zero values are not defaults; the command has them.
type Options struct {
	Jobs    int
	Samples int
	Epochs  int
	Seed    uint64
	Share   string // none | augmented
	Memory  int64  // bytes of cache in all, for each of the two runs; 0 = enough for one shared cache
	Machine int64  // bytes of memory of this machine, or its control group; 0 = not known
	Report  string // path of the HTML report, "" = none
	Keep    bool   // leave the folder

	Version string
	Command string          // for the report: how to repeat it
	Hurry   <-chan struct{} // closed: end without a grace period
}

// check returns every wrong option at once.
func (o *Options) check() error {
	var problems []error
	bad := func(flag, format string, args ...any) {
		problems = append(problems, errs.New(errs.Invalid, flag, "larder demo --help has the limits", flag+" "+format,
			args...))
	}
	if o.Jobs < minJobs || o.Jobs > maxJobs {
		bad("--jobs", "must be %d to %d, not %d", minJobs, maxJobs, o.Jobs)
	}
	if o.Samples < minSamples || o.Samples > maxSamples {
		bad("--samples", "must be %d to %d, not %d", minSamples, maxSamples, o.Samples)
	}
	if o.Epochs < 1 || o.Epochs > maxEpochs {
		bad("--epochs", "must be 1 to %d, not %d", maxEpochs, o.Epochs)
	}
	if o.Share != "none" && o.Share != "augmented" {
		bad("--share", "must be none or augmented, not %q", o.Share)
	}
	if o.Memory != 0 && o.Memory < minMemory {
		bad("--memory", "must be at least %s, not %s", units.Size(minMemory), units.Size(o.Memory))
	}
	return errors.Join(problems...)
}

// runner is one demo in progress.
type runner struct {
	Options
	view   *View
	herd   *herd
	binary string   // of the children
	prefix []string // arguments before theirs
	temp   string
	drawn  *imagegen.Dataset
	plans  []JobPlan
	want   [][]uint32
	memory int64

	decoder string

	// What tests replace.
	patience  patience
	dialMeter func(ctx context.Context, socket string) (meter, error)
	paint     func(ctx context.Context, root string, spec imagegen.Spec, tick func()) (*imagegen.Dataset, error)
}

// Run does the whole demo and takes away everything it made but the report. It returns a Result whenever both runs
// ended; OK in it is the answer. When ctx ends it cleans up and returns the context's error.
func Run(ctx context.Context, o Options, view *View) (_ *Result, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r := &runner{Options: o, view: view, binary: self, patience: usualPatience, dialMeter: dialMeter, paint: imagegen.Draw}
	return r.all(ctx)
}

func (r *runner) all(ctx context.Context) (_ *Result, err error) {
	began := time.Now()
	if err := writable(r.Report); err != nil {
		return nil, err
	}
	sweep(os.TempDir())
	lock, err := r.makeTemp()
	if err != nil {
		return nil, err
	}
	defer func() {
		r.view.Close()
		if r.Keep && err != nil {
			r.view.say("kept %s", r.temp) // nothing else says where it is
		}
		if e := r.cleanUp(lock); err == nil {
			err = e
		}
	}()
	r.herd = newHerd(r.Hurry)
	defer r.herd.close()

	res := &Result{
		Version: r.Version, Command: r.Command, Started: began, Seed: r.Seed, Epochs: r.Epochs, Share: r.Share,
		Machine: Machine{OS: runtime.GOOS + "/" + runtime.GOARCH, CPU: cpuModel(), Cores: runtime.NumCPU()},
	}
	if err := r.draw(ctx, res); err != nil {
		return nil, err
	}
	if err := r.runBoth(ctx, res); err != nil {
		return nil, err
	}
	res.Seconds = time.Since(began).Seconds()
	if r.Keep {
		res.Kept = r.temp
	}
	res.judge()
	if r.Report != "" {
		if err := writeReport(r.Report, res); err != nil {
			return nil, err
		}
		res.Report = r.Report
	}
	return res, nil
}

// runBoth runs the jobs unshared and shared, and audits what each got.
func (r *runner) runBoth(ctx context.Context, res *Result) error {
	var alone [][]int
	together := [][]int{nil}
	for j := range r.plans {
		alone = append(alone, []int{j})
		together[0] = append(together[0], j)
	}
	for _, half := range []struct {
		title, name, dir string
		groups           [][]int
		run              *RunStats
	}{
		{fmt.Sprintf("unshared: %d jobs, a daemon of its own for each, %s of cache each", r.Jobs,
			units.Size(r.memory/int64(r.Jobs))), "unshared", "u", alone, &res.Unshared},
		{fmt.Sprintf("shared: %d jobs, one daemon, %s of cache", r.Jobs, units.Size(r.memory)), "shared", "s", together,
			&res.Shared},
	} {
		p, err := r.runPhase(ctx, half.title, half.dir, half.groups)
		if err != nil {
			return err
		}
		*half.run = *p.run
		res.Machine.Decoder = r.decoder
		res.Audit.Pictures += p.pictures
		res.Audit.Repeats += p.repeats
		for j := range r.plans {
			for e := range r.Epochs {
				var got receipt // an epoch that was never reported is one that never came
				if e < len(p.receipts[j]) {
					got = p.receipts[j][e]
				}
				res.Audit.epoch(fmt.Sprintf("%s, %s, epoch %d", half.name, r.plans[j].Name, e+1), r.want[j], r.drawn.Labels, got)
			}
		}
		r.view.finish("%s: %.1f s, %s source reads, %s images decoded, %s augmented", half.name, p.run.Seconds,
			count(p.run.SourceReads), count(p.run.Decodes), count(p.run.Augments))
	}
	return ctx.Err()
}

// draw makes the dataset and says who wants what of it.
func (r *runner) draw(ctx context.Context, res *Result) error {
	r.view.stage(fmt.Sprintf("drawing %s images in %s", count(r.Samples), r.temp), []int64{int64(r.Samples)}, "images")
	began := time.Now()
	var drawn atomic.Int64
	d, err := r.paint(ctx, filepath.Join(r.temp, "photos"), imagegen.Spec{Seed: r.Seed, Samples: r.Samples}, func() {
		r.view.update(0, drawn.Add(1), "")
	})
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	r.drawn, r.plans = d, Plan(r.Jobs, r.Samples)
	for j := range r.plans {
		r.want = append(r.want, r.plans[j].Expected(d))
	}
	r.memory = r.Memory
	if r.memory == 0 {
		r.memory = enough(d, r.Machine)
	}
	res.MemoryBytes = r.memory
	unique, once := union(d, r.plans)
	res.Unique, res.Deliveries = unique, once*r.Epochs
	res.Dataset = Dataset{
		Samples: r.Samples, Classes: len(d.Classes), Bytes: d.Bytes, MinBytes: d.Min, MaxBytes: d.Max,
		Decoded: 3 * d.Pixels, Seconds: took,
	}
	r.view.finish("drew %s images, %.0f-%.0f kB each, %s (%s decoded), in %.1f s", count(r.Samples),
		float64(d.Min)/1e3, float64(d.Max)/1e3, units.Size(d.Bytes), units.Size(3*d.Pixels), took)
	return nil
}

const minMemory = 32 << 20 // bytes, for all tiers of one run

// enough is the memory that holds the dataset once, as stored and decoded, with a tenth to spare: enough for one cache
// that all share, too little for each job's own. On a small machine it is a third of what there is.
func enough(d *imagegen.Dataset, machine int64) int64 {
	m := (d.Bytes + 3*d.Pixels) * 11 / 10
	if machine > 0 {
		m = min(m, machine/3)
	}
	return max(minMemory, m>>24<<24) // full 16 MiB
}

const (
	tempPattern = "larder-demo-*"
	lockName    = "lock"
	maxSocket   = 107 // bytes of a path that fit a sockaddr_un
)

// makeTemp makes the folder and takes the lock in it, which shows later demos that its owner lives.
func (r *runner) makeTemp() (lock *os.File, err error) {
	if r.temp, err = os.MkdirTemp("", tempPattern); err != nil {
		return nil, errs.New(errs.ResourceExceeded, os.TempDir(), "set TMPDIR to a folder that can be written",
			"the demo needs a folder for its images").Because(err)
	}
	if longest := filepath.Join(r.temp, "u", fmt.Sprint("d", maxJobs), "s.lock"); len(longest) > maxSocket {
		os.Remove(r.temp)
		return nil, errs.New(errs.Invalid, r.temp, "set TMPDIR to a shorter path, e.g. TMPDIR=/tmp",
			"the path of the socket would have %d bytes; a unix socket can have %d", len(longest), maxSocket)
	}
	// The name appears when the lock is held: a demo that sweeps meanwhile never finds it free.
	name := filepath.Join(r.temp, lockName)
	lock, err = os.Create(name + ".new")
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		os.RemoveAll(r.temp)
		return nil, fmt.Errorf("lock %s: %w", r.temp, err)
	}
	return lock, nil
}

// cleanUp removes the folder, or with Keep only the mark of a temporary one. No child lives any more.
func (r *runner) cleanUp(lock *os.File) error {
	defer lock.Close()
	if r.Keep {
		return os.Remove(filepath.Join(r.temp, lockName))
	}
	if err := os.RemoveAll(r.temp); err != nil {
		return errs.New(errs.Internal, r.temp, "remove it by hand", "the demo's folder could not be removed").Because(err)
	}
	return nil
}

// sweep removes folders that killed demos of the same user left. A demo that lives holds its lock; a kept folder has
// none.
func sweep(dir string) {
	found, _ := filepath.Glob(filepath.Join(dir, tempPattern)) // the pattern is well formed
	for _, path := range found {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Getuid() {
			continue
		}
		f, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|syscall.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(path) // what cannot be removed today is tried again by the next demo
		}
		f.Close()
	}
}

// writable finds out before the work, not after it, that the report cannot be written.
func writable(report string) error {
	if report == "" {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(report), ".larder-demo-*")
	if err != nil {
		return errs.New(errs.Invalid, report, "name another place with --report PATH, or none with --report ''",
			"the report could not be written").Because(err)
	}
	f.Close()
	return os.Remove(f.Name())
}
