package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

// meter reads the counters of one daemon.
type meter interface {
	stats(ctx context.Context) (*larderv1.Stats, error)
	Close() error
}

// patience is how long a demo waits for others.
type patience struct {
	start time.Duration // for a daemon's ready line
	job   time.Duration // for a sign of life of any client
	stop  time.Duration // between SIGTERM and SIGKILL
}

var usualPatience = patience{start: 30 * time.Second, job: 60 * time.Second, stop: 5 * time.Second}

const meterEvery = 250 * time.Millisecond // how often the daemons' counters are read for the plots

// event is something that happened in a run; all of them pass through one channel, so that one goroutine keeps the
// books.
type event struct {
	job   int
	line  *line           // a client's report
	ended bool            // the client's output ended
	err   error           // why, when it was not its end
	stats *larderv1.Stats // sum of the daemons' counters
}

// phase is one of the two runs in progress.
type phase struct {
	*runner
	title   string
	dir     string
	plans   []JobPlan
	want    [][]uint32
	daemons []*child
	meters  []meter
	clients []*child

	run      *RunStats
	start    time.Time
	over     chan struct{}  // closed when events are not read any more
	readers  sync.WaitGroup // of the clients' output
	receipts [][]receipt    // by job and epoch
	pictures int64
	repeats  int64
}

// runPhase starts the daemons and clients of one run, lets them work, and returns the books. groups[i] are the jobs of
// daemon i.
func (r *runner) runPhase(ctx context.Context, title, dir string, groups [][]int) (*phase, error) {
	p := &phase{
		runner: r, title: title, dir: filepath.Join(r.temp, dir), plans: r.plans, want: r.want,
		run: &RunStats{Daemons: len(groups)}, receipts: make([][]receipt, len(r.plans)), over: make(chan struct{}),
	}
	for j := range p.plans {
		plan := &p.plans[j]
		p.run.Jobs = append(p.run.Jobs, JobRun{
			Name: plan.Name, Subset: plan.Subset, Samples: len(p.want[j]), Batch: plan.Batch,
			StepMillis: float64(plan.Step) / float64(time.Millisecond),
		})
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, err
	}
	meanwhile := startOthers()
	// The readers' bound: every client may have a line or two on its way while the books are written.
	events := make(chan event, 4*len(p.plans))
	err := p.work(ctx, groups, events)
	close(p.over)
	for _, m := range p.meters {
		_ = m.Close() // the daemon ends next
	}
	// Clients first: a daemon that drains would wait for them.
	p.herd.stop(p.patience.stop, p.clients...)
	p.herd.stop(p.patience.stop, p.daemons...)
	var children time.Duration
	for _, d := range p.daemons {
		children += d.cpu()
		d.out.Close()
	}
	p.run.CPUSeconds = children.Seconds()
	p.readers.Wait()
	for _, c := range p.clients {
		children += c.cpu()
	}
	p.run.OthersCPU = meanwhile.share(children)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (p *phase) work(ctx context.Context, groups [][]int, events chan event) error {
	if err := p.startDaemons(ctx, groups); err != nil {
		return err
	}
	if err := p.startClients(groups, events); err != nil {
		return err
	}
	ready := 0
	if err := p.each(ctx, events, func(e event) (bool, error) {
		if e.line != nil && e.line.Event == "ready" {
			ready++
		}
		return ready == len(p.clients), p.trouble(e)
	}); err != nil {
		return err
	}
	for _, m := range p.meters {
		s, err := m.stats(ctx)
		if err != nil {
			return err
		}
		p.decoder = s.Decoder
	}
	p.start = time.Now()
	for _, c := range p.clients {
		if _, err := fmt.Fprintln(c.stdin, goLine); err != nil {
			return p.died(c, err)
		}
	}
	stop := p.watch(ctx, events)
	err := p.train(ctx, events)
	stop()
	if err != nil {
		return err
	}
	p.run.Seconds = time.Since(p.start).Seconds()
	total, err := p.count(ctx)
	if err != nil {
		return err
	}
	p.note(total)
	t := total.Totals
	p.run.SourceReads, p.run.SourceBytes, p.run.Decodes = t.SourceReads, t.SourceBytes, t.Decodes
	p.run.Augments, p.run.Delivered = t.Augments, t.SamplesDelivered
	return nil
}

// startDaemons starts one daemon per group, all with the same part of the memory, and waits for their ready lines.
func (p *phase) startDaemons(ctx context.Context, groups [][]int) error {
	share := p.memory / int64(len(groups))
	for i := range groups {
		dir := filepath.Join(p.dir, fmt.Sprint("d", i))
		if err := os.MkdirAll(filepath.Join(dir, "index"), 0o700); err != nil {
			return err
		}
		conf := filepath.Join(dir, "larder.yaml")
		text := fmt.Sprintf("tiers: {total: %dKiB}\nsource: {index_dir: %q}\nlog: {level: info}\n", share>>10,
			filepath.Join(dir, "index"))
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			return err
		}
		env := append(cleanEnv(os.Environ()), "XDG_RUNTIME_DIR="+dir, "XDG_CACHE_HOME="+dir, "XDG_STATE_HOME="+dir,
			"TMPDIR="+dir)
		args := append(append([]string{}, p.prefix...), "serve", "--config", conf, "--socket", filepath.Join(dir, "s"))
		c, err := p.herd.start(fmt.Sprintf("daemon %d", i+1), filepath.Join(dir, "log"), env, p.binary, args...)
		if err != nil {
			return err
		}
		p.daemons = append(p.daemons, c)
	}
	for _, c := range p.daemons {
		socket, err := p.readyLine(ctx, c)
		if err != nil {
			return err
		}
		m, err := p.dialMeter(ctx, socket)
		if err != nil {
			return err
		}
		p.meters = append(p.meters, m)
	}
	return nil
}

// readyLine waits for the line that a daemon prints when it can be used.
func (p *phase) readyLine(ctx context.Context, c *child) (string, error) {
	_ = c.out.SetReadDeadline(time.Now().Add(p.patience.start))
	undo := context.AfterFunc(ctx, func() { _ = c.out.SetReadDeadline(time.Now()) })
	defer undo()
	text, err := bufio.NewReader(c.out).ReadString('\n')
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	var ready struct {
		Socket string `json:"socket"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &ready)
	}
	if err != nil || ready.Socket == "" {
		return "", p.died(c, err)
	}
	return ready.Socket, nil
}

// startClients starts the jobs' processes and a reader for each.
func (p *phase) startClients(groups [][]int, events chan<- event) error {
	for i, jobs := range groups {
		for _, j := range jobs {
			plan := &p.plans[j]
			o := order{
				Socket: filepath.Join(p.dir, fmt.Sprint("d", i), "s"), Dataset: "imagefolder:" + p.drawn.Root,
				Job: plan.Name, Subset: plan.Subset, Batch: uint32(plan.Batch), Epochs: uint32(p.Epochs),
				Seed: p.Seed + uint64(j), StepUS: plan.Step.Microseconds(), Share: p.Share,
			}
			text, err := json.Marshal(o)
			if err != nil {
				return err
			}
			c, err := p.herd.start(plan.Name, filepath.Join(p.dir, plan.Name+".log"), cleanEnv(os.Environ()),
				p.binary, append(append([]string{}, p.prefix...), "demo-client")...)
			if err != nil {
				return err
			}
			p.clients = append(p.clients, c)
			p.readers.Go(func() { p.read(c, j, events) })
			if _, err := c.stdin.Write(append(text, '\n')); err != nil {
				return p.died(c, err)
			}
		}
	}
	return nil
}

// read passes on what a client reports, until it has ended.
func (p *phase) read(c *child, j int, events chan<- event) {
	defer c.out.Close()
	send := func(e event) {
		select {
		case events <- e:
		case <-p.over:
		}
	}
	err := readLines(c.out, func(l *line) { send(event{job: j, line: l}) })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil // the client is dead and someone else holds the pipe
	}
	if err != nil {
		c.signal(syscall.SIGKILL) // its output is not read any more: it would hang in its next report
	}
	<-c.done
	send(event{job: j, ended: true, err: err})
}

// each takes events until f says that it has what it wants, or nothing has come for too long.
func (p *phase) each(ctx context.Context, events <-chan event, f func(event) (bool, error)) error {
	timer := time.NewTimer(p.patience.job)
	defer timer.Stop()
	for {
		select {
		case e := <-events:
			if e.stats == nil {
				timer.Reset(p.patience.job)
			}
			if done, err := f(e); done || err != nil {
				return err
			}
		case <-timer.C:
			if len(events) > 0 { // it was us who slept: stopped in the terminal, or a suspended machine
				timer.Reset(p.patience.job)
				continue
			}
			return errs.New(errs.Unavailable, p.title, "run it again with --keep and look into the logs of the daemons",
				"no job made any progress for %v", p.patience.job)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// trouble returns the error that an event reports.
func (p *phase) trouble(e event) error {
	switch {
	case e.line != nil && e.line.Event == "error" && e.line.Error != nil:
		return fmt.Errorf("%s, %s: %w", p.title, p.plans[e.job].Name, e.line.Error.fault())
	case e.ended:
		return p.died(p.clientOf(e.job), e.err)
	default:
		return nil
	}
}

// clientOf finds a job's process. Clients were started in the order of groups, which is that of jobs in both runs.
func (p *phase) clientOf(job int) *child { return p.clients[job] }

// died makes an error of a child that ended, or said something odd, when it should not have.
func (p *phase) died(c *child, err error) error {
	how := "still runs but does not answer"
	select {
	case <-c.done:
		how = "ended: " + c.cmd.ProcessState.String()
	case <-time.After(200 * time.Millisecond): // its end of the pipe closes a little before it ends
	}
	if err != nil {
		how += ", " + err.Error()
	}
	if tail := strings.TrimSpace(c.tail()); tail != "" {
		how += "; its last words:\n" + tail
	}
	return errs.New(errs.Internal, c.name, "run it again with --keep and look into the logs", "%s: %s %s", p.title, c.name,
		how)
}

// train keeps the books until every client has reported its end.
func (p *phase) train(ctx context.Context, events <-chan event) error {
	var names []string
	var totals []int64
	for j := range p.plans {
		names = append(names, p.plans[j].Name)
		totals = append(totals, int64(len(p.want[j])*p.Epochs))
	}
	p.view.stage(p.title, totals, names...)
	done, finished := 0, make([]bool, len(p.plans))
	return p.each(ctx, events, func(e event) (bool, error) {
		if e.stats != nil {
			p.note(e.stats)
			return false, nil
		}
		if e.ended && finished[e.job] && e.err == nil {
			done++
			return done == len(p.plans), nil
		}
		if err := p.trouble(e); err != nil || e.line == nil {
			return false, err
		}
		if e.line.Event == "done" {
			finished[e.job] = true
			p.pictures += e.line.Pictures
			p.repeats += e.line.Repeats
		}
		p.book(e.job, e.line)
		return false, nil
	})
}

// book enters one report of a client.
func (p *phase) book(j int, l *line) {
	job := &p.run.Jobs[j]
	now := time.Since(p.start).Seconds()
	wait := float64(l.WaitUS) / 1e6
	if l.Event != "ready" {
		job.Points = append(job.Points, Point{Seconds: now, Rows: l.Rows})
		job.Seconds, job.WaitSeconds = now, wait
	}
	if l.Event == "epoch" && l.Receipt != nil {
		start := 0.0
		if n := len(job.Epochs); n > 0 {
			start = job.Epochs[n-1].End
		}
		job.Epochs = append(job.Epochs, EpochRun{Start: start, End: now})
		p.receipts[j] = append(p.receipts[j], *l.Receipt)
		p.view.milestone("%-8s epoch %d of %d: %s samples in %.1f s, %.1f s of it waiting so far",
			job.Name, l.Epoch+1, p.Epochs, count(len(l.Receipt.IDs)), now, wait)
	}
	note := fmt.Sprintf("epoch %d/%d  %4.0f/s  waits %2.0f%%", min(int(l.Epoch)+1, p.Epochs), p.Epochs,
		ratio(float64(l.Rows), now), 100*ratio(wait, now))
	if l.Event == "done" {
		note = fmt.Sprintf("%.1f s, waited %.1f s", now, wait)
	}
	p.view.update(j, l.Rows, note)
}

// watch asks the daemons for their counters again and again, until the function that it returns is called.
func (p *phase) watch(ctx context.Context, events chan<- event) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		t := time.NewTicker(meterEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
			s, err := p.count(ctx)
			if err != nil {
				return // the clients report what happened to the daemon better than we can
			}
			select {
			case events <- event{stats: s}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-gone
	}
}

// count adds up the counters of all daemons of the run.
func (p *phase) count(ctx context.Context) (*larderv1.Stats, error) {
	sum := &larderv1.Stats{Totals: &larderv1.Counters{}}
	for _, m := range p.meters {
		s, err := m.stats(ctx)
		if err != nil {
			return nil, err
		}
		t := s.GetTotals()
		sum.RssBytes += s.GetRssBytes()
		sum.Totals.SourceReads += t.GetSourceReads()
		sum.Totals.SourceBytes += t.GetSourceBytes()
		sum.Totals.Decodes += t.GetDecodes()
		sum.Totals.Augments += t.GetAugments()
		sum.Totals.SamplesDelivered += t.GetSamplesDelivered()
	}
	return sum, nil
}

// note enters the daemons' counters.
func (p *phase) note(s *larderv1.Stats) {
	p.run.PeakRSS = max(p.run.PeakRSS, s.RssBytes)
	p.run.Counters = append(p.run.Counters, Counted{
		Seconds: time.Since(p.start).Seconds(), Reads: s.Totals.SourceReads, Decodes: s.Totals.Decodes,
	})
}

// cleanEnv drops what could make a child talk to, or behave like, the user's own daemon.
func cleanEnv(env []string) []string {
	out := make([]string, 0, len(env))
	for _, e := range env {
		if !strings.HasPrefix(e, "LARDER_") {
			out = append(out, e)
		}
	}
	return out
}
