package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/types/known/structpb"

	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

// session is what a client process needs of client.
type session interface {
	register(ctx context.Context, spec *larderv1.JobSpec) error
	attach(ctx context.Context, job string) (stream, error)
	io.Closer
}

// stream is one rank's batches. next returns io.EOF at the end of an epoch.
type stream interface {
	startEpoch(ctx context.Context, epoch uint32) error
	next(ctx context.Context) (batch, error)
	detach(ctx context.Context) error
}

// batch is valid until release.
type batch interface {
	ids() []int64
	labels() []int64
	pixels(row int) []byte
	release()
}

// progressEvery bounds how often a client reports.
const progressEvery = 120 * time.Millisecond

// maxPictures bounds the memory of the comparison of pictures (about 40 bytes each).
const maxPictures = 1 << 20

// Client is one training process: it reads its order from stdin, trains after "go", and reports on stdout. It ends
// with an error line when something fails, and quietly when stdin ends, because then the parent is gone.
func Client(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	return runClient(ctx, stdin, stdout, dialSession)
}

func runClient(ctx context.Context, stdin io.Reader, stdout io.Writer, dial func(context.Context, string) (session,
	error)) error {
	in := bufio.NewReader(stdin)
	first, err := in.ReadBytes('\n')
	if err != nil {
		return errs.New(errs.Invalid, "demo-client", "larder demo starts it by itself; run that",
			"no order on standard input")
	}
	var o order
	if err := json.Unmarshal(first, &o); err != nil {
		return errs.New(errs.Invalid, "demo-client", "larder demo starts it by itself; run that",
			"the order on standard input is not understood").Because(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started := make(chan struct{})
	// Owned by the process, not by this function: a read of a pipe cannot be broken off, so it ends with stdin.
	go func() {
		defer cancel()
		for {
			text, err := in.ReadString('\n')
			if err != nil {
				return
			}
			if strings.TrimSpace(text) == goLine {
				close(started)
				break
			}
		}
		_, _ = io.Copy(io.Discard, in)
	}()
	out := json.NewEncoder(stdout)
	c := trainee{order: o, out: out}
	if err := c.run(ctx, started, dial); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		_ = out.Encode(&line{Event: "error", Error: newLineError(err)}) // stdout may be gone too; the exit code says the rest
		return err
	}
	return nil
}

// trainee is a training run in the making.
type trainee struct {
	order
	out  *json.Encoder
	rows int64
	wait time.Duration

	pictures map[uint64]struct{}
	compared int64
	repeats  int64
}

func (c *trainee) run(ctx context.Context, started <-chan struct{}, dial func(context.Context, string) (session,
	error)) error {
	s, err := dial(ctx, c.Socket)
	if err != nil {
		return err
	}
	defer s.Close()
	spec, err := c.spec()
	if err != nil {
		return err
	}
	if err := s.register(ctx, spec); err != nil {
		return err
	}
	st, err := s.attach(ctx, c.Job)
	if err != nil {
		return err
	}
	if err := c.out.Encode(&line{Event: "ready"}); err != nil {
		return err
	}
	select {
	case <-started:
	case <-ctx.Done():
		return ctx.Err()
	}
	c.pictures = map[uint64]struct{}{}
	for e := range c.Epochs {
		if err := c.epoch(ctx, st, e); err != nil {
			return err
		}
	}
	if err := st.detach(ctx); err != nil {
		return err
	}
	return c.out.Encode(&line{
		Event: "done", Rows: c.rows, WaitUS: c.wait.Microseconds(), Pictures: c.compared, Repeats: c.repeats,
	})
}

// spec is the recipe every training script for photographs begins with.
func (c *trainee) spec() (*larderv1.JobSpec, error) {
	size, err := structpb.NewStruct(map[string]any{"size": 224})
	if err != nil {
		return nil, err
	}
	return &larderv1.JobSpec{
		Name: c.Job, Dataset: c.Dataset, Subset: c.Subset, BatchSize: c.Batch, Shuffle: true, Seed: c.Seed,
		Share: c.Share, Epochs: c.Epochs,
		Transform: []*larderv1.Op{
			{Name: "RandomResizedCrop", Args: size},
			{Name: "RandomHorizontalFlip"},
		},
	}, nil
}

func (c *trainee) epoch(ctx context.Context, st stream, epoch uint32) error {
	// The wait for the first batch of an epoch counts from the wish for the epoch.
	asked := time.Now()
	if err := st.startEpoch(ctx, epoch); err != nil {
		return err
	}
	var got receipt
	var reported time.Time
	for step := 0; ; step++ {
		b, err := st.next(ctx)
		c.wait += time.Since(asked)
		if errors.Is(err, io.EOF) {
			return c.out.Encode(&line{
				Event: "epoch", Epoch: epoch, Step: step, Rows: c.rows, WaitUS: c.wait.Microseconds(), Receipt: &got,
			})
		}
		if err != nil {
			return err
		}
		c.take(b, &got)
		// The simulated training step: the processor is free meanwhile, as it is while an accelerator works.
		select {
		case <-time.After(time.Duration(c.StepUS) * time.Microsecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		if now := time.Now(); now.Sub(reported) >= progressEvery {
			reported = now
			l := line{Event: "progress", Epoch: epoch, Step: step + 1, Rows: c.rows, WaitUS: c.wait.Microseconds()}
			if err := c.out.Encode(&l); err != nil {
				return err
			}
		}
		asked = time.Now()
	}
}

// take writes down what came, compares the pictures with all earlier ones, and releases the slot.
func (c *trainee) take(b batch, got *receipt) {
	defer b.release()
	ids := b.ids()
	got.IDs = append(got.IDs, ids...)
	got.Labels = append(got.Labels, b.labels()...)
	c.rows += int64(len(ids))
	for row := range ids {
		if len(c.pictures) >= maxPictures {
			return
		}
		sum := xxhash.Sum64(b.pixels(row)) // reads every byte, as copying the batch to an accelerator would
		if _, seen := c.pictures[sum]; seen {
			c.repeats++
		}
		c.pictures[sum] = struct{}{}
		c.compared++
	}
}
