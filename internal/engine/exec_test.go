package engine_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"larder/internal/engine"
	"larder/internal/errs"
	"larder/internal/ident"
	larderv1 "larder/proto/larder/v1"
)

// Issue 2's scene in small: four jobs on overlapping subsets, everything decoded once for all of them.
func TestFourJobsOnOverlappingSubsetsDecodeEverythingOnce(t *testing.T) {
	const n, epochs = 90, 3
	dir := folder(t, n)
	w := serve(t)
	jobs := []struct {
		expr  string
		batch uint32
		want  []int64
		ops   []*larderv1.Op
	}{
		{"label < 2", 7, where(n, func(i int) bool { return i < 60 }), crops},
		{"label >= 1", 16, where(n, func(i int) bool { return i >= 30 }), crops},
		{"", 64, all(n), crops},
		{"id % 2 == 0", 5, where(n, func(i int) bool { return i%2 == 0 }), nil}, // as decoded, every image of its own size
	}
	var wg sync.WaitGroup
	problems := make([]error, len(jobs))
	got := make([][]*seen, len(jobs))
	for i, j := range jobs {
		tr := w.train(spec(fmt.Sprint("job", i), dir, j.batch, subset(j.expr), recipe(j.ops...)), 0)
		wg.Go(func() {
			for e := range uint32(epochs) {
				s, err := tr.epoch(e)
				if err != nil {
					problems[i] = err
					return
				}
				got[i] = append(got[i], s)
			}
			tr.detach()
		})
	}
	wg.Wait()
	if err := errors.Join(problems...); err != nil {
		t.Fatal(err)
	}
	for i, j := range jobs {
		orders := map[string]bool{}
		for e, s := range got[i] {
			exactly(t, fmt.Sprintf("job %d epoch %d", i, e), s.ids, j.want)
			orders[fmt.Sprint(s.ids)] = true
			for id, label := range s.labels {
				if label != id*3/n {
					t.Errorf("sample %d has label %d", id, label)
				}
			}
			if a := s.end.GetAccount(); a.GetState() != "complete" || a.GetDelivered() != uint64(len(j.want)) ||
				s.end.GetSamples() != uint64(len(j.want)) {
				t.Errorf("job %d epoch %d: %v", i, e, s.end)
			}
		}
		if len(orders) != epochs {
			t.Errorf("job %d: %d orders in %d epochs", i, len(orders), epochs)
		}
	}
	for _, s := range got[3] {
		for id, pix := range s.pixels {
			if want, size := decode(t, file(dir, n, int(id))); !bytes.Equal(pix, want) || size != s.sizes[id] {
				t.Errorf("sample %d is not what decoding gives", id)
			}
		}
	}
	for e := 1; e < epochs; e++ { // an instance is never seen again
		for id, pix := range got[2][e].pixels {
			if slices.Equal(pix, got[2][e-1].pixels[id]) {
				t.Logf("sample %d looks the same in epochs %d and %d", id, e-1, e) // a flat image may
			}
		}
	}
	if c := w.stats().GetTotals(); c.GetDecodes() != n || c.GetSourceReads() != n {
		t.Errorf("%d decodes and %d reads for %d images", c.GetDecodes(), c.GetSourceReads(), n)
	}
}

func TestAHitGivesTheSameBytesAsAMiss(t *testing.T) {
	dir := folder(t, 30)
	order := func(s *larderv1.JobSpec) { s.Seed = 5 }
	var first map[int64][]byte
	for _, decoded := range []int64{32 * mib, 0} {
		t.Run(fmt.Sprint(decoded), func(t *testing.T) {
			w := serve(t, func(c *engine.Config) { c.Memory.Tiers.Sizes[ident.Decoded] = decoded })
			tr := w.train(spec("a", dir, 8, recipe(crops...), order), 0)
			tr.must(0)
			s := tr.must(1)
			tr.detach()
			if first == nil {
				first = s.pixels
			} else if !maps.EqualFunc(first, s.pixels, func(a, b []byte) bool { return bytes.Equal(a, b) }) {
				t.Error("pixels depend on what is cached")
			}
		})
	}
}

func TestABatchThatOutgrowsItsSlotGetsALargerOne(t *testing.T) {
	dir := t.TempDir()
	const n = 24
	for i := range n { // flat images pack far better than the ring expects
		w, h := 20, 20
		if i >= 6 {
			w, h = 90+i, 120
		}
		draw(t, filepath.Join(dir, "c", fmt.Sprintf("%04d.jpg", i)), w, h, uint64(i))
	}
	w := serve(t)
	s := spec("a", dir, 6, func(s *larderv1.JobSpec) { s.Shuffle, s.Prefetch = false, 1 })
	tr := w.train(s, 0)
	before := segments()
	for e := range uint32(3) {
		got := tr.must(e)
		exactly(t, fmt.Sprint("epoch ", e), got.ids, all(n))
		for id, pix := range got.pixels {
			if want, size := decode(t, filepath.Join(dir, "c", fmt.Sprintf("%04d.jpg", id))); !bytes.Equal(pix, want) ||
				size != got.sizes[id] {
				t.Errorf("epoch %d: sample %d is not what decoding gives", e, id)
			}
		}
	}
	if segments() <= before {
		t.Error("no slot got a larger memory: the test shows nothing")
	}
	if ring := w.stats().GetJobs()[0].GetRanks()[0].GetRingBytes(); ring == 0 {
		t.Error("the ring has no bytes")
	}
	tr.detach()
}

func TestRaggedMemoryCountsAndIsRefused(t *testing.T) {
	dir := t.TempDir()
	for i := range 16 { // plain areas pack into next to nothing
		path := filepath.Join(dir, "c", fmt.Sprintf("%04d.png", i))
		draw(t, path, 1, 1, uint64(i))
		if i > 3 {
			plain(t, path, 400, 400)
		}
	}
	w := serve(t, func(c *engine.Config) { c.Memory.MaxRing = mib })
	tr := w.train(spec("a", dir, 8, func(s *larderv1.JobSpec) { s.Shuffle = false }), 0)
	_, err := tr.epoch(0) // 8 x 480,000 bytes in the end
	if reasonOf(err) != errs.RingMemory || !strings.Contains(err.Error(), "of the 1MiB for rings are free") {
		t.Fatalf("the batch came, or: %v", err)
	}
	_ = tr.conn.Close()
	eventually(t, "the ring is freed", func() bool { return w.engine.Attached() == 0 })
	small := w.train(spec("b", dir, 8, recipe(crops...)), 0) // what it held is free again
	exactly(t, "b", small.must(0).ids, all(16))
	small.detach()
}

func TestRanksAreDisjoint(t *testing.T) {
	const n = 41
	dir := folder(t, n)
	w := serve(t)
	s := spec("a", dir, 6, recipe(crops...), func(s *larderv1.JobSpec) { s.WorldSize, s.Even = 2, "none" })
	a, b := w.train(s, 0), w.train(s, 1)
	for e := range uint32(2) {
		var other *seen
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { other, err = b.epoch(e) })
		own := a.must(e)
		wg.Wait()
		if err != nil {
			t.Fatal(err)
		}
		exactly(t, fmt.Sprint("both ranks, epoch ", e), append(own.ids, other.ids...), all(n))
		if len(own.rows) != len(other.rows) {
			t.Errorf("%d and %d batches", len(own.rows), len(other.rows))
		}
	}
	a.detach()
	b.detach()
}

func TestAShareGroupGetsEqualBytesForOneInstance(t *testing.T) {
	const n = 60
	dir := folder(t, n)
	w := serve(t)
	share := func(s *larderv1.JobSpec) { s.Share = "augmented" }
	a, b := w.train(spec("a", dir, 5, recipe(crops...), share), 0), w.train(spec("b", dir, 5, recipe(crops...), share), 0)
	var own, other [2]*seen
	for e := range uint32(2) {
		for _, tr := range []*trainer{a, b} {
			if err := tr.st.StartEpoch(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		own[e], other[e] = newSeen(), newSeen()
		for range n / 5 { // side by side
			a.one(own[e])
			b.one(other[e])
		}
	}
	differ := 0
	for e := range 2 {
		for id, pix := range own[e].pixels {
			if !bytes.Equal(pix, other[e].pixels[id]) {
				t.Errorf("epoch %d: sample %d differs within its group", e, id)
			}
			if !bytes.Equal(pix, own[1-e].pixels[id]) {
				differ++
			}
		}
	}
	if differ < n { // of 2n comparisons; a flat crop may repeat
		t.Errorf("only %d of %d samples changed from epoch to epoch", differ/2, n)
	}
	jobs := w.stats().GetJobs()
	if jobs[0].GetShareGroup() == 0 || jobs[0].GetShareGroup() != jobs[1].GetShareGroup() ||
		jobs[0].GetInstanceOffset() != jobs[1].GetInstanceOffset() {
		t.Errorf("groups %d and %d", jobs[0].GetShareGroup(), jobs[1].GetShareGroup())
	}
	if hits := w.stats().GetTotals().GetHits()["augmented"]; hits < n/2 {
		t.Errorf("%d of %d rows were shared", hits, 2*n)
	}
	a.detach()
	b.detach()
}

// spoil makes samples 3, 8 and 12 of a folder bad in three ways.
func spoil(t *testing.T, dir string, n int) {
	t.Helper()
	whole, err := os.ReadFile(file(dir, n, 8))
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range map[int][]byte{3: {}, 8: whole[:len(whole)/2], 12: []byte("this is no image at all")} {
		if err := os.WriteFile(file(dir, n, i), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBadFilesAreReportedSkippedOrReplaced(t *testing.T) {
	const n = 30
	bad := []int64{3, 8, 12}
	dir := folder(t, n)
	spoil(t, dir, n)
	w := serve(t)
	for _, how := range []string{"raise", "skip", "substitute"} {
		tr := w.train(spec(how, dir, 4, recipe(crops...), func(s *larderv1.JobSpec) { s.OnError = how }), 0)
		for e := range uint32(2) {
			s := tr.must(e)
			exactly(t, fmt.Sprint(how, " epoch ", e), s.ids,
				where(n, func(i int) bool { return !slices.Contains(bad, int64(i)) }))
			var reported []int64
			for _, q := range s.bad {
				reported = append(reported, int64(q.GetId()))
				if q.GetPath() != file(dir, n, int(q.GetId())) || q.GetReason() == "" || q.GetKey() == "" {
					t.Errorf("report %v", q)
				}
			}
			exactly(t, how+" reports", reported, bad)
			if a := s.end.GetAccount(); a.GetState() != "complete" || a.GetQuarantined() != 3 || a.GetDelivered() != n-3 {
				t.Errorf("%s: %v", how, a)
			}
			full := 0
			for _, r := range s.rows {
				if r == 4 {
					full++
				}
			}
			if how == "substitute" && full < 6 {
				t.Errorf("%d full batches: %v", full, s.rows)
			}
		}
		tr.detach()
	}
	st := w.stats()
	if q := st.GetTotals().GetQuarantined(); q != 3 {
		t.Errorf("%d objects are quarantined", q)
	}
	// Jobs and datasets count each as often as it was left out: in two epochs of three jobs, and in what was prepared
	// beyond them.
	for _, j := range st.GetJobs() {
		if q := j.GetCounters().GetQuarantined(); q < 6 {
			t.Errorf("job %s counts %d", j.GetSpec().GetName(), q)
		}
	}
	if d := st.GetDatasets(); len(d) != 1 || d[0].GetBadSamples() != 3 || d[0].GetCounters().GetQuarantined() < 18 {
		t.Errorf("the dataset counts %v", d)
	}
}

func TestAFileThatChangedAfterIndexingIsReported(t *testing.T) {
	const n = 20
	dir := folder(t, n)
	w := serve(t)
	tr := w.train(spec("a", dir, 4, recipe(crops...)), 0)
	draw(t, file(dir, n, 7), 99, 99, 1234)
	if err := os.Remove(file(dir, n, 9)); err != nil {
		t.Fatal(err)
	}
	s := tr.must(0)
	exactly(t, "the others", s.ids, where(n, func(i int) bool { return i != 7 && i != 9 }))
	reasons := map[uint64]string{}
	for _, q := range s.bad {
		reasons[q.GetId()] = q.GetReason()
	}
	if len(reasons) != 2 || !strings.Contains(reasons[7], "it had") && !strings.Contains(reasons[7], "modified") ||
		!strings.Contains(reasons[9], "no such file") {
		t.Errorf("%v", reasons)
	}
	tr.detach()
}

func TestAKilledClientFreesItsRingAndOthersGoOn(t *testing.T) {
	const n = 60
	dir := folder(t, n)
	w := serve(t)
	dead, live := w.train(spec("dead", dir, 4, recipe(crops...)), 0), w.train(spec("live", dir, 4, recipe(crops...)), 0)
	before := segments() // two rings, mapped on both sides
	if err := dead.st.StartEpoch(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	inHands, err := dead.st.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = dead.conn.Close() // no goodbye
	inHands.Release()     // this process is the client's too, and lives on
	eventually(t, "its ring is freed", func() bool { return w.engine.Attached() == 1 })
	for e := range uint32(2) {
		exactly(t, fmt.Sprint("live epoch ", e), live.must(e).ids, all(n))
	}
	j, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "dead"})
	if err != nil || j.GetJob().GetState() != larderv1.JobState_JOB_STATE_SUSPECT {
		t.Errorf("%v %v", j.GetJob().GetState(), err)
	}
	eventually(t, "its memory is unmapped", func() bool { return segments() < before })
	// It comes back under its name.
	again := w.train(spec("dead", dir, 4, recipe(crops...)), 0)
	if inc := again.st.Info().GetIncarnation(); inc != 2 {
		t.Errorf("incarnation %d", inc)
	}
	exactly(t, "after the crash", again.must(again.st.Info().GetNextEpoch()).ids, all(n))
	again.detach()
	live.detach()
}

func TestAClientThatNeverReadsCostsOthersNothing(t *testing.T) {
	const n = 60
	dir := folder(t, n)
	w := serve(t)
	idle := w.train(spec("idle", dir, 4, recipe(crops...)), 0)
	if err := idle.st.StartEpoch(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	live := w.train(spec("live", dir, 4, recipe(crops...)), 0)
	for e := range uint32(4) {
		exactly(t, fmt.Sprint("live epoch ", e), live.must(e).ids, all(n))
	}
	j, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "idle"})
	if err != nil {
		t.Fatal(err)
	}
	if got := j.GetJob().GetCounters().GetBatchesDelivered(); got > 4 { // its ring
		t.Errorf("%d batches for a client that takes none", got)
	}
	exactly(t, "idle, late", idle.rest(t), all(n))
	live.detach()
	idle.detach()
}

// one takes the next batch.
func (tr *trainer) one(s *seen) {
	tr.t.Helper()
	b, err := tr.st.Next(tr.t.Context())
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.take(b, s)
	b.Release()
}

// rest takes what is left of the running epoch.
func (tr *trainer) rest(t *testing.T) []int64 {
	t.Helper()
	s := newSeen()
	for {
		b, err := tr.st.Next(t.Context())
		if err != nil {
			if tr.st.End() == nil {
				t.Fatal(err)
			}
			return s.ids
		}
		tr.take(b, s)
		b.Release()
	}
}

func TestTiersShrinkAndGrowWhileJobsRun(t *testing.T) {
	const n = 80
	dir := folder(t, n)
	w := serve(t)
	ctx := t.Context()
	trainers := []*trainer{w.train(spec("a", dir, 7, recipe(crops...)), 0), w.train(spec("b", dir, 16), 0)}
	var wg sync.WaitGroup
	problems := make([]error, len(trainers))
	for i, tr := range trainers {
		wg.Go(func() {
			for e := range uint32(6) {
				s, err := tr.epoch(e)
				if err != nil {
					problems[i] = err
					return
				}
				exactly(t, fmt.Sprint("job ", i, " epoch ", e), s.ids, all(n))
			}
		})
	}
	for i := range 30 {
		size := []string{"0", "100000", "33554432"}[i%3]
		r, err := w.engine.SetTiers(ctx, &larderv1.SetTiersRequest{Decoded: size})
		if err != nil {
			t.Fatal(err)
		}
		for _, tier := range r.GetTiers() {
			if tier.GetForm() == "decoded" && (fmt.Sprint(tier.GetBudget()) != size || tier.GetSetting() != size ||
				tier.GetUsed() > tier.GetBudget()) {
				t.Errorf("%v after it was set to %s", tier, size)
			}
		}
	}
	wg.Wait()
	if err := errors.Join(problems...); err != nil {
		t.Fatal(err)
	}
	if _, err := w.engine.SetTiers(ctx, &larderv1.SetTiersRequest{Decoded: "0"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the shrunk tier is empty", func() bool { return w.store.Used(ident.Decoded) == 0 })
	_, err := w.engine.SetTiers(ctx, &larderv1.SetTiersRequest{Decoded: "966367641600"})
	if reasonOf(err) != errs.ResourceExceeded || !strings.Contains(err.Error(),
		"tiers.decoded 900GiB + tiers.augmented 16MiB exceed tiers.total 64MiB") {
		t.Errorf("too large: %v", err)
	}
	if _, err = w.engine.SetTiers(ctx, &larderv1.SetTiersRequest{Total: "999999999"}); reasonOf(
		err) != errs.ResourceExceeded ||
		!strings.Contains(err.Error(), "tiers.total 954MiB and rings of") {
		t.Errorf("more than there is: %v", err)
	}
	for _, tr := range trainers {
		tr.detach()
	}
}

func TestRegisteringTwice(t *testing.T) {
	dir := folder(t, 20)
	w := serve(t)
	c := w.dial()
	first, err := register(c, spec("a", dir, 4))
	if err != nil || !first.GetCreated() {
		t.Fatalf("%v %v", first, err)
	}
	// the defaults, said
	again, err := register(c, spec("a", dir, 4, func(s *larderv1.JobSpec) { s.WorldSize, s.Order = 1, "stratified" }))
	if err != nil || again.GetCreated() || again.GetJob().GetId() != first.GetJob().GetId() {
		t.Errorf("%v %v", again, err)
	}
	_, err = register(c, spec("a", dir, 5))
	if reasonOf(err) != errs.AlreadyExists || !strings.Contains(err.Error(), "batch_size is 4 there and 5 here") {
		t.Errorf("another spec: %v", err)
	}
	if _, err := w.engine.KillJob(t.Context(), &larderv1.KillJobRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	if r, err := register(c, spec("a", dir, 5)); err != nil || !r.GetCreated() {
		t.Errorf("the name of a dead job: %v", err)
	}
}

func TestBadRequestsNameTheFix(t *testing.T) {
	dir := folder(t, 20)
	w := serve(t)
	c := w.dial()
	for name, x := range map[string]struct {
		spec   *larderv1.JobSpec
		reason errs.Reason
		words  string
	}{
		"no name":      {spec("", dir, 4), errs.Invalid, "not a name"},
		"a bell in it": {spec("a\a", dir, 4), errs.Invalid, "not a name"},
		"no dataset":   {&larderv1.JobSpec{Name: "a", BatchSize: 4}, errs.Invalid, "no dataset"},
		"no folder":    {spec("a", dir+"/nowhere", 4), errs.DatasetUnread, "nowhere"},
		"batch 0":      {spec("a", dir, 0), errs.Invalid, "batch_size is 0"},
		"order typo": {spec("a", dir, 4, func(s *larderv1.JobSpec) { s.Order = "stratifed" }), errs.Invalid,
			"stratifed"},
		"order unshuffled": {spec("a", dir, 4, func(s *larderv1.JobSpec) { s.Shuffle, s.Order = false, "fixed" }),
			errs.Invalid, "needs shuffle"},
		"replica": {spec("a", dir, 4, func(s *larderv1.JobSpec) { s.Replica = 1 }), errs.Unsupported,
			"replica is 1, and replicas do not work yet"},
		"nodes": {spec("a", dir, 4, func(s *larderv1.JobSpec) { s.NumNodes = 2 }), errs.Unsupported,
			"num_nodes is 2, and a job of several machines does not work yet"},
		"prefetch": {spec("a", dir, 4, func(s *larderv1.JobSpec) { s.Prefetch = 99 }), errs.Invalid,
			"prefetch is 99"},
		"share": {spec("a", dir, 4, func(s *larderv1.JobSpec) { s.Share = "all" }), errs.Invalid, "share"},
		"cache": {spec("a", dir, 4, func(s *larderv1.JobSpec) { s.Cache = "items" }), errs.Unsupported,
			"cache belongs to datasets made by workers"},
		"schema": {spec("a", dir, 4, func(s *larderv1.JobSpec) { s.Schema = &larderv1.Schema{} }), errs.Unsupported,
			"schema belongs to datasets made by workers"},
		"an index that is not there": {spec("a", dir, 4, func(s *larderv1.JobSpec) {
			s.Indices = binary.LittleEndian.AppendUint32(nil, 1<<20)
		}), errs.Invalid, "sample 1048576 is not in"},
		"python op":       {spec("a", dir, 4, recipe(&larderv1.Op{Kind: "python", Name: "f"})), errs.Invalid, "schema"},
		"unknown op":      {spec("a", dir, 4, recipe(op("RandomCrap", nil))), errs.RecipeInvalid, "RandomCrap"},
		"subset typo":     {spec("a", dir, 4, subset("lable < 3")), errs.SubsetSyntax, "lable"},
		"subset empty":    {spec("a", dir, 4, subset("label > 77")), errs.SubsetEmpty, "label > 77"},
		"batch too large": {spec("a", dir, 21, func(s *larderv1.JobSpec) { s.DropLast = true }), errs.SubsetEmpty, "21"},
		"ring too large": {spec("a", dir, 1<<16, recipe(op("RandomResizedCrop", map[string]any{"size": 2240.0}))),
			errs.RingMemory,
			"need 1.12GiB (4 slots of 287MiB), and 192MiB of the 192MiB for rings are free"},
		"rings too large": {spec("a", dir, 1<<12, recipe(op("RandomResizedCrop", map[string]any{"size": 2240.0})),
			func(s *larderv1.JobSpec) { s.WorldSize = 2 }), errs.RingMemory,
			"(4 slots of 144MiB for each of 2 ranks)"},
	} {
		_, err := register(c, x.spec)
		if reasonOf(err) != x.reason || !strings.Contains(err.Error(), x.words) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"attach": func() error { _, err := c.Attach(t.Context(), &larderv1.AttachRequest{Job: "nobody"}); return err }(),
		"kill": func() error {
			_, err := w.engine.KillJob(t.Context(), &larderv1.KillJobRequest{Name: "nobody"})
			return err
		}(),
		"drain": func() error {
			_, err := w.engine.DrainJob(t.Context(), &larderv1.DrainJobRequest{Name: "nobody"})
			return err
		}(),
		"describe": func() error {
			_, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "nobody"})
			return err
		}(),
		"stats": func() error {
			_, err := w.engine.GetStats(t.Context(), &larderv1.GetStatsRequest{Job: "nobody"})
			return err
		}(),
	} {
		if reasonOf(err) != errs.NotFound || !strings.Contains(err.Error(), "nobody") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Attach(t.Context(), &larderv1.AttachRequest{Job: "a",
		NodeRank: 1}); reasonOf(err) != errs.Unsupported ||
		!strings.Contains(err.Error(), "node_rank is 1, and a job of several machines does not work yet") {
		t.Errorf("node_rank: %v", err)
	}
	if n := len(w.stats().GetJobs()); n != 0 {
		t.Errorf("%d jobs were made", n)
	}
}

// A job outlives hundreds of others: what is known of it must not be forgotten with them.
// A caller that stops waiting for an answer must not leave half a job or half an attachment behind.
// Attaching while the job is killed: whatever comes first, no ring stays without an owner.
