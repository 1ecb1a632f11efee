package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"larder/internal/engine"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/journal"
	larderv1 "larder/proto/larder/v1"
)

// failing is a journal whose n-th assignment does not become durable.
type failing struct {
	journal.Log
	left atomic.Int64
}

func (f *failing) Append(r journal.Record, done func(error)) uint64 {
	if _, ok := r.(journal.Assigned); ok && f.left.Add(-1) < 0 {
		return f.Log.Append(r, func(error) { done(errors.New("planned: the disk is gone")) })
	}
	return f.Log.Append(r, done)
}

func TestAJournalThatFailsStopsTheEngine(t *testing.T) {
	dir := folder(t, 60)
	var log failing
	log.left.Store(6)
	w := serve(t, func(c *engine.Config) {
		log.Log = c.Journal.Log
		c.Journal.Log = &log
	})
	tr := w.train(spec("a", dir, 2, recipe(crops...)), 0)
	s, err := tr.epoch(0)
	if reasonOf(err) != errs.Unavailable && reasonOf(err) != errs.JobEnded {
		t.Errorf("the client heard %v", err)
	}
	if len(s.ids) > 2*6 {
		t.Errorf("%d samples left, 12 were durable", len(s.ids))
	}
	run := <-w.ran
	if run == nil || !strings.Contains(run.Error(), "the disk is gone") {
		t.Errorf("the engine ended with %v", run)
	}
	w.ran <- nil
	if _, err := w.engine.ListJobs(context.Background(), &larderv1.ListJobsRequest{}); reasonOf(err) != errs.Unavailable {
		t.Errorf("a stopped engine says %v", err)
	}
}

// stuck is a log whose reader is gone: lines about tiers and ended jobs block.
type stuck struct {
	slog.Handler
	gate chan struct{}
}

func (s stuck) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "tier resized" || r.Message == "job ended" {
		<-s.gate
	}
	return nil
}

func (s stuck) Enabled(context.Context, slog.Level) bool { return true }

func TestAnUnreadLogStopsNoJob(t *testing.T) {
	const n = 40
	dir := folder(t, n)
	gate := make(chan struct{})
	w := serve(t, func(c *engine.Config) { c.Log = slog.New(stuck{slog.DiscardHandler, gate}) })
	defer close(gate)
	w.train(spec("gone", dir, 4), 0).detach()
	tr := w.train(spec("a", dir, 4, recipe(crops...)), 0)
	for e := range uint32(3) {
		for _, size := range []string{"100000", "30000000"} {
			if _, err := w.engine.SetTiers(t.Context(), &larderv1.SetTiersRequest{Decoded: size}); err != nil {
				t.Fatal(err)
			}
		}
		exactly(t, fmt.Sprint("epoch ", e), tr.must(e).ids, all(n))
	}
	tr.detach()
}

// What the coordinator believes to be in a tier and what is there must be the same thing, also after entries were
// freed and made again at once. A bit that flips in memory costs a read (guarantee G6).
func TestTheStoreHoldsWhatTheIndexSays(t *testing.T) {
	const n = 60
	dir := folder(t, n)
	w := serve(t, func(c *engine.Config) { c.Memory.Tiers.Sizes[ident.Decoded] = 24 * 4096 }) // a third of the images
	a, b := w.train(spec("a", dir, 4, recipe(crops...)), 0), w.train(spec("b", dir, 6, recipe(crops...)), 0)
	for e := range uint32(4) {
		exactly(t, fmt.Sprint("a ", e), a.must(e).ids, all(n))
		exactly(t, fmt.Sprint("b ", e), b.must(e).ids, all(n))
	}
	a.detach()
	b.detach()
	eventually(t, "index and store agree", func() bool {
		for _, tier := range w.stats().GetTiers() {
			if tier.GetForm() == "decoded" {
				return uint64(w.store.Used(ident.Decoded)) == tier.GetUsed() &&
					uint64(w.store.Stats(ident.Decoded).Entries) == tier.GetEntries() && tier.GetEntries() > 0
			}
		}
		return false
	})
	if s := w.stats(); s.GetTotals().GetEvictions()["decoded"] == 0 {
		t.Error("nothing was evicted: the test shows nothing")
	}
}
