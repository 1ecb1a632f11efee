package coordinator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"larder/internal/ident"
	"larder/jobs"
)

// waits decides what rank r of a job waits for, on a machine whose storage is slow.
func (r *rig) waits(id ident.JobID, rank int) jobs.Wait {
	r.t.Helper()
	return jobs.WaitOf(r.job(id).Facts[rank], jobs.Machine{Workers: 2, Reads: 2, Oldest: time.Second, Storage: 1})
}

// TestFactsOfARankThatWaitsForAnother: who is absent, and who is in an earlier epoch, is known.
func TestFactsOfARankThatWaitsForAnother(t *testing.T) {
	r := decodedTier(t, 30)
	id := r.register("a", 0, 24, 2, ranks(2), slots(4))
	a := r.attach(id, 0)
	if w := r.waits(id, 0); w.Cause != jobs.Script {
		t.Errorf("before it asks: %+v", w)
	}
	a.epoch(0)
	if w := r.waits(id, 0); w.Cause != jobs.OtherRank || len(w.Ranks) != 1 || w.Ranks[0] != 1 ||
		!strings.Contains(w.Text, "rank 1, which has not come") {
		t.Errorf("rank 1 is absent: %+v", w)
	}
	if w := r.waits(id, 1); w.Cause != jobs.Client {
		t.Errorf("of the absent one: %+v", w)
	}
	b := r.attach(id, 1)
	if w := r.waits(id, 0); w.Cause != jobs.OtherRank || !strings.Contains(w.Text, "has not asked") {
		t.Errorf("rank 1 has not asked: %+v", w)
	}
	b.epoch(0)
	r.run()
	if w := r.waits(id, 0); w.Cause != jobs.Script || !strings.Contains(w.Text, "ready for it") {
		t.Errorf("both are in the epoch: %+v", w)
	}
	for range 6 { // rank 0 is done with it before rank 1
		a.release(a.must())
		r.run()
	}
	a.epoch(1)
	r.run()
	if w := r.waits(id, 0); w.Cause != jobs.OtherRank || w.Ranks[0] != 1 || !strings.Contains(w.Text, "still in epoch 0") {
		t.Errorf("rank 1 is behind: %+v", w)
	}
	b.detach(false)
	if w := r.waits(id, 0); w.Cause != jobs.OtherRank || !strings.Contains(w.Text, "client is gone") {
		t.Errorf("rank 1 is gone: %+v", w)
	}
	b = r.attach(id, 1)
	r.step(Detached{Job: id, Rank: 1, Inc: b.inc, Lives: true})
	if w := r.waits(id, 0); w.Cause != jobs.OtherRank || !strings.Contains(w.Text, "client lost its connection") {
		t.Errorf("rank 1 lost its connection: %+v", w)
	}
	r.step(ClientGone{Job: id, Rank: 1, Inc: b.inc})
	if w := r.waits(id, 0); !strings.Contains(w.Text, "client is gone") {
		t.Errorf("rank 1 is gone: %+v", w)
	}
}

// TestFactsOfABatchUnderWay: what of the next batch is there, what storage is to give, and what is not durable.
func TestFactsOfABatchUnderWay(t *testing.T) {
	r := decodedTier(t, 20)
	var held []string
	r.hold = func(e Effect) bool {
		return slices.ContainsFunc(held, func(p string) bool { return strings.HasPrefix(describe(e), p) })
	}
	id := r.register("a", 0, 12, 4, slots(2))
	p := r.attach(id, 0)
	r.run()
	held = []string{"prepare", "persist assign"}
	p.epoch(0)
	r.run()
	f := r.job(id).Facts[0]
	if f.Rows != 4 || f.There != 0 || f.Stored != 4 || f.Held != 0 || !f.Asked() {
		t.Errorf("while it is read: %+v", f)
	}
	if w := r.waits(id, 0); w.Cause != jobs.Storage {
		t.Errorf("%+v", w)
	}
	held = []string{"persist"}
	r.run()
	f = r.job(id).Facts[0]
	if f.There != 4 || f.Stored != 0 || f.Progress != jobs.Recording {
		t.Errorf("while it is recorded: %+v", f)
	}
	if w := r.waits(id, 0); w.Cause != jobs.Log {
		t.Errorf("%+v", w)
	}
	held = nil
	r.run()
	if f = r.job(id).Facts[0]; f.Held != 2 || f.Progress == jobs.Recording {
		t.Errorf("when it is delivered: %+v", f)
	}
	r.ok(r.ask(func(tk Token) Event { return Pause{Token: tk, Job: id, On: true} }))
	if w := r.waits(id, 0); w.Cause != jobs.Pause {
		t.Errorf("%+v", w)
	}
	if got := r.job(id).Rate.At(r.now); got != 8 {
		t.Errorf("%g samples a second, 8 were delivered", got)
	}
}

// TestAJobWithoutClients: a job without clients ends as done when its registrant leaves. A job with a client continues.
func TestAJobWithoutClients(t *testing.T) {
	r := decodedTier(t, 20)
	unused, used := r.register("a", 0, 12, 2), r.register("b", 0, 12, 2)
	r.attach(used, 0)
	for _, id := range []ident.JobID{unused, used} {
		r.ok(r.ask(func(tk Token) Event { return Kill{Token: tk, Job: id, Reason: "killed", Unused: true} }))
	}
	if j := r.job(unused); j.State != jobs.Done || j.Reason != "its client left before its first epoch" {
		t.Errorf("%s: %s", j.State, j.Reason)
	}
	if j := r.job(used); j.State != jobs.Live {
		t.Errorf("%s: %s", j.State, j.Reason)
	}
}

// TestDatasetCounters: what was done for all jobs on a dataset is their sum, also when they have ended.
func TestDatasetCounters(t *testing.T) {
	r := decodedTier(t, 20)
	r.bad[3] = true
	for _, name := range []string{"a", "b"} {
		p := r.join(name, 0, 12, 4)
		for len(r.ends) == 0 {
			r.run()
			if d := p.next(); d != nil {
				p.release(d)
			}
		}
		r.ends = nil
		p.detach(true)
		r.run()
	}
	all := r.c.Stats()
	d := r.c.Datasets()
	if len(d) != 1 {
		t.Fatalf("%+v", d)
	}
	s := d[0].Stats
	if s.Samples != 22 || s.Batches != 6 || s.Quarantined != 2 || d[0].Bad != 1 || d[0].Live != 0 {
		t.Errorf("%+v", d[0])
	}
	if s.SourceReads != all.SourceReads || s.Decodes != all.Decodes || s.Augments != all.Augments || s.Hits != all.Hits ||
		s.Samples != all.Samples || s.SourceBytes != all.SourceBytes {
		t.Errorf("%+v of %+v", s, all)
	}
}
