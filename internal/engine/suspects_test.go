package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"

	"larder/internal/engine"
	"larder/internal/engine/crashguard"
	"larder/internal/ident"
	"larder/internal/journal"
	larderv1 "larder/proto/larder/v1"
)

// trialEnv makes this test binary the process for trials, in which poisoned images crash.
const trialEnv = "LARDER_TEST_TRIAL"

// tryPoison is that process. No image crashes the decoder, as far as is known: here those do that say so.
func tryPoison() {
	err := crashguard.Serve(os.Stdin, os.Stdout, func(x crashguard.Charge, enc []byte) {
		if bytes.HasSuffix(enc, []byte("poison-SEGV")) && os.Getenv(trialEnv) != "" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV)
			select {}
		}
		x.Prepare(enc)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A daemon died while four samples were prepared. One of them crashes the decoder, three are innocent; of the four
// jobs two are back, one has ended, one was never heard of. In the next life the one is bad for every job and every
// recipe, under any name, and all others have everything; the life after that knows it by its bytes alone; another
// build tries it again.
func TestSuspects(t *testing.T) {
	const n, poison = 30, 7
	t.Setenv(trialEnv, "1")
	dir := folder(t, n)
	append2(t, file(dir, n, poison), "poison-SEGV")
	state := t.TempDir()
	fs, err := journal.OpenDir(state, false)
	if err != nil {
		t.Fatal(err)
	}
	var d *crashguard.File
	life := func(t *testing.T, version string, trial ...string) *world {
		t.Helper()
		var notes []string
		if d, notes = crashguard.Open(state, 1, 8, func(err error) { t.Error(err) }); d == nil || len(notes) > 0 {
			t.Fatal(notes)
		}
		held := d
		t.Cleanup(func() { _ = held.Close() })
		return onDisk(t, fs, func(c *engine.Config) { c.Crash.File, c.Version, c.Crash.Trial = held, version, trial })
	}
	skips := func(s *larderv1.JobSpec) { s.OnError = "skip" }
	names := []string{"in place", "whole", "ended"}
	specs := []*larderv1.JobSpec{spec(names[0], dir, 4, recipe(crops...), skips), spec(names[1], dir, 7, skips),
		spec(names[2], dir, 4, skips)}
	t.Run("the first life", func(t *testing.T) {
		w := life(t, "1")
		ids := map[string]uint32{}
		for _, s := range specs {
			r, err := register(w.dial(), s)
			if err != nil {
				t.Fatal(err)
			}
			ids[s.GetName()] = r.GetJob().GetId()
		}
		if _, err := w.engine.KillJob(t.Context(), &larderv1.KillJobRequest{Name: "ended"}); err != nil {
			t.Fatal(err)
		}
		for i, p := range []crashguard.Piece{
			{Job: ident.JobID(ids["in place"]), Sample: 3, Seed: 5, Instance: 1}, {Job: ident.JobID(ids["whole"]), Sample: 4},
			{Job: ident.JobID(ids["ended"]), Sample: poison}, {Job: 99, Sample: 1}, {Job: ident.JobID(ids["whole"]),
				Sample: 1 << 20},
		} {
			d.Line(3 + i).Set(p) // of workers that this engine does not have
		}
	})
	t.Run("the second life", func(t *testing.T) {
		w := life(t, "1", os.Args[0])
		for i, s := range append(specs[:2:2], spec("new", dir, 5, skips,
			recipe(append([]*larderv1.Op{op("Resize", map[string]any{"size": []any{20.0, 24.0}})}, crops...)...))) {
			tr := w.train(s, 0)
			for e := range uint32(2) {
				bad(t, fmt.Sprint(s.GetName(), " ", e), tr.must(e), n, verdict{"the decoder crashed (SIGSEGV)", []int{poison}})
			}
			tr.detach()
			if q := w.stats().GetTotals().GetQuarantined(); q != 1 {
				t.Errorf("%d jobs: %d samples are counted", i+1, q)
			}
		}
		eventually(t, "no suspect is left", func() bool { return len(d.Suspects()) == 0 })
		if c := d.Crashers(); len(c) != 1 || c[0].How != "SIGSEGV" {
			t.Errorf("crashers are %v", c)
		}
	})
	copied := folder(t, n)
	b, err := os.ReadFile(file(dir, n, poison))
	if err == nil {
		err = os.WriteFile(file(copied, n, 12), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Run("the third life", func(t *testing.T) {
		w := life(t, "1") // no trial is needed
		tr := w.train(spec("elsewhere", copied, 5, skips), 0)
		bad(t, "a copy", tr.must(0), n, verdict{"the decoder crashed (SIGSEGV)", []int{12}})
		tr.detach()
	})
	anotherBuild(t, copied, n, life, func() int { return len(d.Crashers()) })
}

// anotherBuild tries the sample that crashed with builds that crash, too, and that do not.
func anotherBuild(
	t *testing.T, copied string, n int, life func(t *testing.T, version string, trial ...string) *world,
	crashers func() int,
) {
	t.Helper()
	skips := func(s *larderv1.JobSpec) { s.OnError = "skip" }
	t.Run("another build that crashes, too", func(t *testing.T) {
		w := life(t, "2", os.Args[0])
		tr := w.train(spec("again", copied, 5, skips), 0)
		bad(t, "again", tr.must(0), n, verdict{"the decoder crashed (SIGSEGV)", []int{12}})
		tr.detach()
	})
	t.Run("another build that does not", func(t *testing.T) {
		t.Setenv(trialEnv, "")
		t.Setenv(cleanEnv, "1")
		w := life(t, "3", os.Args[0])
		tr := w.train(spec("at last", copied, 5, skips, recipe(crops...)), 0)
		bad(t, "at last", tr.must(0), n, verdict{})
		tr.detach()
		if k := crashers(); k != 0 {
			t.Errorf("%d crashers", k)
		}
	})
}

// cleanEnv makes this test binary a process for trials in which nothing crashes.
const cleanEnv = "LARDER_TEST_CLEAN_TRIAL"

// verdict is what an epoch says of its bad samples: why they are bad, and which they are.
type verdict struct {
	why string
	ids []int
}

// bad holds an epoch of n samples against those that are to be bad, and why.
func bad(t *testing.T, what string, got *seen, n int, of verdict) {
	t.Helper()
	var reported []int64
	for _, q := range got.bad {
		reported = append(reported, int64(q.GetId()))
		if q.GetReason() != of.why {
			t.Errorf("%s: %d is bad because %q", what, q.GetId(), q.GetReason())
		}
	}
	var want []int64
	for _, id := range of.ids {
		want = append(want, int64(id))
	}
	if !slices.Equal(reported, want) {
		t.Errorf("%s: bad are %v", what, reported)
	}
	exactly(t, what, append(slices.Clone(got.ids), reported...), all(n))
	if a := got.end.GetAccount(); a.GetState() != "complete" || a.GetDelivered() != uint64(n-len(of.ids)) ||
		a.GetQuarantined() != uint64(len(of.ids)) {
		t.Errorf("%s: the account is %v", what, a)
	}
}

// append2 writes behind the end of an image, where no decoder looks.
func append2(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A suspect whose trial is not possible is decoded as ever, and stays one for the next daemon; one that is not begun
// before the daemon stops, too.
func TestSuspectsWithoutTrial(t *testing.T) {
	const n = 10
	dir := folder(t, n)
	state := t.TempDir()
	fs, err := journal.OpenDir(state, false)
	if err != nil {
		t.Fatal(err)
	}
	p := crashguard.Piece{Sample: 3}
	for name, command := range map[string][]string{"none": nil, "one that is gone": {"/does/not/exist"}} {
		t.Run(name, func(t *testing.T) {
			d, _ := crashguard.Open(state, 1, 4, nil)
			defer d.Close()
			t.Run("a life", func(t *testing.T) {
				w := onDisk(t, fs, func(c *engine.Config) { c.Crash.File, c.Crash.Trial = d, command })
				tr := w.train(spec("a", dir, 4), 0)
				p.Job = ident.JobID(tr.st.Info().GetJob().GetId())
				if s := d.Suspects(); len(s) > 1 {
					t.Errorf("suspects are %v", s)
				}
				bad(t, "an epoch", tr.must(tr.st.Info().GetNextEpoch()), n, verdict{})
				d.Line(3).Set(p)
			})
		})
	}
	d, _ := crashguard.Open(state, 1, 4, nil)
	defer d.Close()
	if s := d.Suspects(); !slices.Equal(s, []crashguard.Piece{p}) {
		t.Errorf("suspects are %v", s)
	}
}
