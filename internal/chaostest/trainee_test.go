package chaostest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"larder/client"
	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

// trainee is one rank of a job that continues whatever happens to its daemon: the rules of the Python client, in Go.
type trainee struct {
	socket string
	spec   *larderv1.JobSpec
	rank   uint32
	step   time.Duration // of work between batches
	wait   time.Duration // for a batch, at most

	last    atomic.Int64 // epoch after which it stops
	at      atomic.Int64 // epoch that it is in
	taken   atomic.Int64
	epochs  atomic.Int64 // to their end
	afresh  atomic.Int64 // epochs that it was not to begin with what it had asked for
	backed  atomic.Int64 // times it continued in the middle of an epoch
	known   string       // what the daemon knows it by when it comes back
	mu      sync.Mutex
	orders  map[uint32][]int64 // by epoch, of those that were not broken off
	bad     map[uint32][]int64 // likewise, of what could not be prepared
	reasons map[string]int     // why not
	look    func(*client.Batch)
	waits   []time.Duration // from a daemon's being ready to the first batch of it
	seen    int             // the daemon's life that was timed last
	life    func() (time.Time, int)
	inc     uint64
	asked   uint64 // ATTACHes without an answer since: each may have made an incarnation
	epoch   uint32
	next    uint32 // step
	running bool
}

func newTrainee(socket string, spec *larderv1.JobSpec, rank uint32) *trainee {
	tr := &trainee{wait: patience, socket: socket, spec: spec, rank: rank, orders: map[uint32][]int64{},
		bad: map[uint32][]int64{}, reasons: map[string]int{}}
	tr.known = fmt.Sprintf("%d.%p", os.Getpid(), tr)
	tr.last.Store(math.MaxInt64)
	return tr
}

// run trains until ctx ends, or the job's epochs are done.
func (tr *trainee) run(ctx context.Context) error {
	for {
		err := tr.session(ctx)
		switch {
		case err == nil:
			return nil
		case (errs.Is(err, errs.Unavailable) || starved(err)) && ctx.Err() == nil:
			tr.pause(2 * time.Millisecond)
		default:
			return fmt.Errorf("job %s rank %d, epoch %d step %d: %w", tr.spec.GetName(), tr.rank, tr.epoch, tr.next, err)
		}
	}
}

// pause is that of a client before it asks again, or the step of a training.
func (tr *trainee) pause(d time.Duration) {
	if d > 0 {
		time.Sleep(d)
	}
}

// starved reports whether the daemon gave up waiting for the first message of a connection: on a busy machine this
// process may not run for as long as that.
func starved(err error) bool {
	return errs.Is(err, errs.Protocol) && strings.Contains(err.Error(), "no HELLO came")
}

// session is one connection. UNAVAILABLE: it ended, and there may be another one.
func (tr *trainee) session(ctx context.Context) error {
	c, err := client.Dial(ctx, tr.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Call(ctx, "RegisterJob", &larderv1.RegisterJobRequest{Spec: proto.CloneOf(tr.spec)},
		new(larderv1.RegisterJobResponse)); err != nil {
		return err
	}
	st, err := tr.attach(ctx, c)
	if err != nil {
		return err
	}
	tr.inc, tr.asked = st.Info().GetIncarnation(), 0
	begin := !tr.running
	if tr.running {
		if err := st.Continue(ctx, tr.epoch, tr.next); err != nil {
			return err
		}
		tr.backed.Add(1)
	}
	for {
		if begin {
			if next := st.Info().GetNextEpoch(); next > tr.epoch {
				tr.afresh.Add(1)
				tr.epoch = next
			}
			tr.next = 0
			if err := st.StartEpoch(ctx, tr.epoch); err != nil {
				return err
			}
			tr.running = true
			tr.at.Store(int64(tr.epoch))
		}
		if err := tr.read(ctx, st); err != nil {
			return err
		}
		tr.running, begin = false, true
		tr.epoch++
		if end := st.End(); int64(tr.epoch) > tr.last.Load() || end.GetFinal() {
			return st.Detach(ctx)
		}
	}
}

func (tr *trainee) attach(ctx context.Context, c *client.Conn) (*client.Stream, error) {
	inc := tr.inc
	for wait := time.Now().Add(tr.wait); ; {
		st, err := c.Attach(ctx, &larderv1.AttachRequest{Job: tr.spec.GetName(), Rank: tr.rank, Incarnation: inc,
			Pid: int32(os.Getpid()), Client: tr.known})
		switch {
		case errs.Is(err, errs.RankHeld) && time.Now().Before(wait): // the daemon has not seen the end of the last connection
			tr.pause(time.Millisecond)
		case errs.Is(err, errs.Stale) && inc > 0 && inc < tr.inc+tr.asked:
			inc++
		default:
			if errs.Is(err, errs.Unavailable) {
				tr.asked++
			}
			return st, err
		}
	}
}

// read takes an epoch to its end.
func (tr *trainee) read(ctx context.Context, st *client.Stream) error {
	for {
		wait, cancel := context.WithTimeout(ctx, tr.wait)
		b, err := st.Next(wait)
		cancel()
		if errors.Is(err, io.EOF) {
			tr.epochs.Add(1)
			return nil
		}
		if err != nil {
			return err
		}
		if b.Epoch != tr.epoch || b.Step != tr.next {
			return fmt.Errorf("epoch %d step %d came", b.Epoch, b.Step)
		}
		tr.mu.Lock()
		tr.orders[tr.epoch] = append(tr.orders[tr.epoch], b.Index()...)
		for _, q := range b.Report() {
			tr.bad[tr.epoch] = append(tr.bad[tr.epoch], int64(q.GetId()))
			tr.reasons[q.GetReason()]++
		}
		if tr.look != nil {
			tr.look(b)
		}
		if tr.life != nil {
			if born, n := tr.life(); n > tr.seen {
				tr.seen = n
				tr.waits = append(tr.waits, time.Since(born))
			}
		}
		tr.mu.Unlock()
		tr.next++
		tr.pause(tr.step)
		tr.taken.Add(1)
		b.Release()
	}
}

func op(name string, args map[string]any) *larderv1.Op {
	s, err := structpb.NewStruct(args)
	if err != nil {
		panic(err)
	}
	return &larderv1.Op{Name: name, Args: s}
}

// specs are jobs of unlike orders, subsets, batches and ranks on one dataset.
func specs(dir, prefix string) []*larderv1.JobSpec {
	crop := []*larderv1.Op{op("RandomResizedCrop", map[string]any{"size": 12.0})}
	out := []*larderv1.JobSpec{
		{Name: prefix + "tape", BatchSize: 7, Seed: 3, Transform: crop},
		{Name: prefix + "strict", BatchSize: 5, Seed: 4, Order: "strict", Subset: "label < 2", Transform: crop,
			DropLast: true},
		{Name: prefix + "fixed", BatchSize: 6, Seed: 5, Order: "fixed", Subset: "id >= 11", Transform: crop},
		{Name: prefix + "ranks", BatchSize: 4, Seed: 6, WorldSize: 2, Share: "augmented", Transform: crop},
	}
	for _, s := range out {
		s.Dataset, s.Shuffle = "imagefolder:"+dir, true
	}
	return out
}

// class is trainees that run, a goroutine for each rank.
type class struct {
	t      testing.TB
	all    []*trainee
	cancel context.CancelFunc
	done   chan error
	left   int
}

func train(d *daemon, specs []*larderv1.JobSpec, step time.Duration, change ...func(*trainee)) *class {
	c := &class{t: d.t, done: make(chan error, 64)}
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.Background())
	for _, s := range specs {
		for rank := range max(s.GetWorldSize(), 1) {
			tr := newTrainee(d.socket, s, rank)
			tr.step, tr.life = step, d.life
			for _, f := range change {
				f(tr)
			}
			c.all = append(c.all, tr)
			c.left++
			go func() { c.done <- tr.run(ctx) }()
		}
	}
	d.t.Cleanup(func() { // of a test that failed
		c.cancel()
		for range c.left {
			<-c.done
		}
	})
	return c
}

func (c *class) taken() (n int64) {
	for _, tr := range c.all {
		n += tr.taken.Load()
	}
	return n
}

// more waits until every trainee has taken n more batches; a trainee that ends before fails the test.
func (c *class) more(n int64) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("every trainee takes %d batches", n), c.each(n))
}

// each returns what says whether every trainee has taken n more batches.
func (c *class) each(n int64) func() bool {
	from := make([]int64, len(c.all))
	for i, tr := range c.all {
		from[i] = tr.taken.Load()
	}
	return func() bool {
		c.check()
		for i, tr := range c.all {
			if tr.taken.Load() < from[i]+n {
				return false
			}
		}
		return true
	}
}

// took returns what says whether all trainees together have taken n more batches.
func (c *class) took(n int) func() bool {
	want := c.taken() + int64(n)
	return func() bool { c.check(); return c.taken() >= want }
}

// check fails the test when a trainee has failed.
func (c *class) check() {
	c.t.Helper()
	select {
	case err := <-c.done:
		c.left--
		if err != nil {
			c.t.Fatal(err)
		}
	default:
	}
}

// finish makes all trainees end soon, the ranks of a job with the same epoch. However long that takes: while batches
// are taken it waits.
func (c *class) finish() {
	c.t.Helper()
	last := map[string]int64{}
	for _, tr := range c.all {
		last[tr.spec.GetName()] = max(last[tr.spec.GetName()], tr.at.Load()+2) // one may be about to begin another
	}
	for _, tr := range c.all {
		tr.last.Store(last[tr.spec.GetName()])
	}
	for c.left > 0 {
		before := c.taken()
		select {
		case err := <-c.done:
			c.left--
			if err != nil {
				c.t.Fatal(err)
			}
		case <-time.After(c.all[0].wait):
			if c.taken() == before {
				c.t.Fatal("a client does not end")
			}
		}
	}
}

// epochs counts those that were read to their end.
func (c *class) epochs() (n int64) {
	for _, tr := range c.all {
		n += tr.epochs.Load()
	}
	return n
}

// clientEnv makes this test binary one client process: JSON of an order.
const clientEnv = "LARDER_FAULTS_CLIENT"

type order struct {
	Socket string
	Spec   json.RawMessage
	StepUS int
}

// clientMain is a client process. It trains until its input ends, and then to the end of the next epoch. Exit code 0:
// it did; 3: a larder error said that it is out.
func clientMain(text string) int {
	var o order
	spec := new(larderv1.JobSpec)
	if err := errors.Join(json.Unmarshal([]byte(text), &o), protojson.Unmarshal(o.Spec, spec)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	tr := newTrainee(o.Socket, spec, 0)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		tr.last.Store(tr.at.Load() + 1)
	}()
	tr.step = time.Duration(o.StepUS) * time.Microsecond
	tr.life = func() (time.Time, int) { fmt.Println("a batch"); return time.Time{}, 0 }
	err := tr.run(context.Background())
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	if errs.Is(err, errs.Stale) || errs.Is(err, errs.JobEnded) || errs.Is(err, errs.RankHeld) {
		return 3
	}
	return 1
}
