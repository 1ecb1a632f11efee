package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"testing"
	"time"

	"larder/client"
	"larder/internal/engine"
	"larder/internal/errs"
	"larder/internal/journal"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
)

// diedUnder is what the daemon's death leaves of its folder. Its clients give back what they held, too late for the
// daemon to hear of it.
func diedUnder(fs *journal.MemFS, r *xrand.Rand, clients []*survivor) *journal.MemFS {
	if r.IntN(2) == 0 {
		fs = fs.Clone() // as a killed process leaves it
	} else {
		fs = fs.Crash(r.IntN) // as a machine without power
	}
	for _, c := range clients {
		if c.held != nil {
			c.held.Release()
			c.held = nil
		}
	}
	return fs
}

// onDisk is an engine that restarts from what a folder holds.
func onDisk(t testing.TB, fs journal.FS, change ...func(*engine.Config)) *world {
	t.Helper()
	d, err := journal.OpenDisk(fs, journal.Options{SegmentBytes: 20_000, SnapshotBytes: 20_000})
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, append(change, func(c *engine.Config) { c.Journal.Log, c.Journal.Found = d, d.Found() })...)
}

// survivor is a client that outlives its daemon.
type survivor struct {
	t     testing.TB
	spec  *larderv1.JobSpec
	rank  uint32
	st    *client.Stream
	inc   uint64
	epoch uint32
	step  int
	ids   []int64
	seen  map[string][]byte // by epoch, step and row
	done  bool
	held  *client.Batch                         // read and not counted
	twice int                                   // batches that came again, with the same bytes
	bytes func(b *client.Batch, row int) []byte // of a sample; nil = those of its image
}

func (s *survivor) attach(w *world) {
	s.t.Helper()
	c := w.dial()
	if _, err := register(c, s.spec); err != nil {
		s.t.Fatal(err)
	}
	st, err := c.Attach(s.t.Context(), &larderv1.AttachRequest{Job: s.spec.GetName(), Rank: s.rank, Incarnation: s.inc})
	if err != nil {
		s.t.Fatal(err)
	}
	back := s.inc != 0
	s.st, s.inc = st, st.Info().GetIncarnation()
	if back {
		err = st.Continue(s.t.Context(), s.epoch, uint32(s.step))
	} else {
		err = st.StartEpoch(s.t.Context(), 0)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// sample is the bytes of a row.
func (s *survivor) sample(b *client.Batch, row int) []byte {
	if s.bytes != nil {
		return s.bytes(b, row)
	}
	pix, _, _, _ := b.Image(row)
	return pix
}

// take takes up to n batches; use says whether the client counts the last one as used.
func (s *survivor) take(n int, use bool, epochs uint32) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for i := 0; i < n && !s.done; i++ {
		b, err := s.st.Next(ctx)
		if errors.Is(err, io.EOF) {
			s.epoch, s.step = s.epoch+1, 0
			if s.epoch == epochs {
				s.done = true
				return nil
			}
			if err := s.st.StartEpoch(ctx, s.epoch); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		if int(b.Step) != s.step || b.Epoch != s.epoch {
			return fmt.Errorf("epoch %d step %d came, and epoch %d step %d is next", b.Epoch, b.Step, s.epoch, s.step)
		}
		for r, id := range b.Index() {
			pix := s.sample(b, r)
			key := fmt.Sprint(s.epoch, " ", s.step, " ", id)
			if old := s.seen[key]; old != nil {
				s.twice++
				if !bytes.Equal(old, pix) {
					return fmt.Errorf("epoch %d step %d sample %d has other bytes than the first time", s.epoch, s.step, id)
				}
			}
			s.seen[key] = bytes.Clone(pix)
		}
		if i == n-1 && !use { // it was read and not counted: as if the client had never got it
			s.held = b
			return nil
		}
		for _, id := range b.Index() {
			s.ids = append(s.ids, int64(s.epoch)<<32|id)
		}
		s.step++
		b.Release()
	}
	return nil
}

// A daemon dies at any moment, three times, while two jobs of unlike orders and one of two ranks train: the next one
// continues every job where its clients are, with the same samples and the same bytes under the same numbers, and
// every epoch is whole.
func TestDaemonDies(t *testing.T) {
	dir := folder(t, 60)
	const epochs = 3
	for _, seed := range []uint64{1, 2, 3} {
		r := xrand.New(seed, 1)
		fs := journal.NewMemFS()
		specs := []*larderv1.JobSpec{
			spec("tape", dir, 7, recipe(crops...)),
			spec("fixed", dir, 5, recipe(crops...), subset("id >= 20"), func(s *larderv1.JobSpec) { s.Order = "fixed" }),
			spec("ranks", dir, 4, recipe(crops...), func(s *larderv1.JobSpec) { s.WorldSize, s.Share = 2, "augmented" }),
			spec("shares", dir, 6, recipe(crops...), func(s *larderv1.JobSpec) { s.Share = "augmented" }),
		}
		var clients []*survivor
		for _, s := range specs {
			for rank := range max(s.GetWorldSize(), 1) {
				clients = append(clients, &survivor{t: t, spec: s, rank: rank, seen: map[string][]byte{}})
			}
		}
		for life := range 4 {
			t.Run(fmt.Sprintf("seed %d life %d", seed, life), func(t *testing.T) {
				w := onDisk(t, fs)
				for _, c := range clients {
					c.t = t
					if !c.done {
						c.attach(w)
					}
				}
				problems := make(chan error)
				n := 0
				much := map[*larderv1.JobSpec]int{} // the ranks of a job wait for each other between epochs
				for _, c := range clients {
					if much[c.spec] == 0 {
						much[c.spec] = 1 + r.IntN(12)
					}
					if c.done {
						continue
					}
					n++
					k, use := much[c.spec], r.IntN(2) == 0
					if life == 3 {
						k, use = 1000, true
					}
					go func() { problems <- c.take(k, use, epochs) }()
				}
				for range n {
					if err := <-problems; err != nil {
						t.Error(err)
					}
				}
				fs = diedUnder(fs, r, clients)
			})
			if t.Failed() {
				return
			}
		}
		twice := 0
		for _, c := range clients {
			twice += c.twice
			if !c.done {
				t.Errorf("%s rank %d stopped in epoch %d", c.spec.GetName(), c.rank, c.epoch)
			}
		}
		if twice == 0 {
			t.Error("nothing came again: the test cannot see that it is the same")
		}
		receivedOnce(t, specs, clients, epochs)
	}
}

// receivedOnce checks that the ranks of each job together got each sample once in each epoch.
func receivedOnce(t *testing.T, specs []*larderv1.JobSpec, clients []*survivor, epochs int64) {
	t.Helper()
	for _, s := range specs {
		var got, want []int64
		for _, c := range clients {
			if c.spec == s {
				got = append(got, c.ids...)
			}
		}
		for e := range epochs {
			for _, id := range where(60, func(i int) bool { return s.GetSubset() == "" || i >= 20 }) {
				want = append(want, e<<32|id)
			}
		}
		exactly(t, s.GetName(), got, want)
	}
}

// A dataset that changed while no daemon ran is not guessed at: its job ends, with the reason, and its name is free.
func TestRestoreRefusesAnotherDataset(t *testing.T) {
	dir := folder(t, 20)
	fs := journal.NewMemFS()
	t.Run("before", func(t *testing.T) {
		tr := onDisk(t, fs).train(spec("lr", dir, 4), 0)
		if err := tr.st.StartEpoch(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		fs = fs.Clone()
	})
	draw(t, filepath.Join(dir, "c0", "another.jpg"), 24, 24, 1)
	w := onDisk(t, fs)
	c := w.dial()
	if _, err := c.Attach(t.Context(), &larderv1.AttachRequest{Job: "lr",
		Incarnation: 1}); reasonOf(err) != errs.NotFound {
		t.Errorf("attach to a job that could not be restored: %v", err)
	}
	if r, err := register(c, spec("lr", dir, 4)); err != nil || !r.GetCreated() || r.GetJob().GetId() == 1 {
		t.Errorf("its name: %v, %v", r, err)
	}
}
