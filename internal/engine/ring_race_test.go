package engine_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"

	"larder/client"
	"larder/internal/coordinator"
	"larder/internal/engine"
	"larder/internal/ident"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
)

// TestBatchesStayWhileOthersDie: clients come, take some batches and vanish with them in their hands, again and
// again, on tiers that hold a part of the samples. Meanwhile others read: every batch has the right bytes when it
// comes, and has them still when two more have come and it is released; every epoch is exact. Under the race
// detector this is also the test of rings that are filled, read and freed at once.
func TestBatchesStayWhileOthersDie(t *testing.T) {
	const n, batch, rounds = 60, 4, 12
	dir := folder(t, n)
	fixed := recipe(op("Resize", map[string]any{"size": []any{16.0, 16.0}}))
	w := serve(t, func(cfg *engine.Config) {
		cfg.Memory.Tiers = coordinator.TierConfig{Total: mib, Sizes: [ident.NumForms]int64{ident.Decoded: 24 << 10,
			ident.Encoded: 24 << 10}}
	})
	first := w.train(spec("first", dir, batch, fixed), 0)
	right := first.must(0).pixels
	first.detach()

	var readers, others sync.WaitGroup
	stop := make(chan struct{})
	for i := range 3 { // who vanish; of few names, since a job stays for as long as its lease, and a daemon has 64 at most
		others.Go(func() {
			rnd := xrand.New(uint64(i), 0x646965)
			for round := 0; ; round++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := vanish(w, spec(fmt.Sprintf("gone-%d-%d", i, round%18), dir, batch, fixed), 1+rnd.IntN(4)); err != nil {
					t.Errorf("client %d, round %d: %v", i, round, err)
					return
				}
			}
		})
	}
	for i := range 2 { // who read
		tr := w.train(spec(fmt.Sprint("reads-", i), dir, batch, fixed, func(s *larderv1.JobSpec) { s.Prefetch = 3 }), 0)
		readers.Go(func() {
			for e := range uint32(rounds) {
				ids, err := tr.watch(e, right)
				if err != nil {
					t.Errorf("reader %d, epoch %d: %v", i, e, err)
					return
				}
				exactly(t, fmt.Sprintf("reader %d, epoch %d", i, e), ids, all(n))
			}
			_ = tr.st.Detach(context.Background())
			_ = tr.conn.Close()
		})
	}
	readers.Wait()
	close(stop)
	others.Wait()
	eventually(t, "the rings of all that vanished are freed", func() bool { return w.engine.Attached() == 0 })
}

// vanish takes some batches of a new job and leaves without a word, with the last of them in its hands.
func vanish(w *world, s *larderv1.JobSpec, batches int) error {
	ctx := context.Background()
	c, err := client.Dial(ctx, w.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := register(c, s); err != nil {
		return err
	}
	st, err := c.Attach(ctx, &larderv1.AttachRequest{Job: s.GetName()})
	if err != nil {
		return err
	}
	if err := st.StartEpoch(ctx, 0); err != nil {
		return err
	}
	for i := range batches {
		b, err := st.Next(ctx)
		if err != nil {
			return err
		}
		defer b.Release() // after the connection is gone: this process lives on, and unmaps it
		if i%2 == 0 {
			b.Release()
		}
	}
	return c.Close()
}

// watch takes an epoch with up to three batches in its hands, and looks at each of them again before it releases it.
func (tr *trainer) watch(epoch uint32, right map[int64][]byte) (ids []int64, err error) {
	ctx := context.Background()
	if err := tr.st.StartEpoch(ctx, epoch); err != nil {
		return nil, err
	}
	check := func(b *client.Batch, when string) error {
		for row, id := range b.Index() {
			if pix, _, _, _ := b.Image(row); !bytes.Equal(pix, right[id]) {
				return fmt.Errorf("step %d, sample %d: other bytes %s", b.Step, id, when)
			}
		}
		return nil
	}
	var held []*client.Batch
	release := func(most int) error {
		for len(held) > most {
			if err := check(held[0], "when it was released"); err != nil {
				return err
			}
			held[0].Release()
			held = held[1:]
		}
		return nil
	}
	for range (len(right) + 3) / 4 {
		b, err := tr.st.Next(ctx)
		if err != nil {
			return ids, err
		}
		ids = append(ids, b.Index()...)
		held = append(held, b)
		if err := check(b, "when it came"); err != nil {
			return ids, err
		}
		if err := release(2); err != nil {
			return ids, err
		}
	}
	if err := release(0); err != nil {
		return ids, err
	}
	if _, err := tr.st.Next(ctx); err == nil {
		return ids, fmt.Errorf("a batch after the last one")
	}
	return ids, nil
}
