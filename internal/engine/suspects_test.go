package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"larder/internal/engine"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/prep"
	larderv1 "larder/proto/larder/v1"
)

// trialEnv makes this test binary the process for trials. Its value is a file for what is to happen once.
const trialEnv = "LARDER_TEST_TRIAL"

// tryPoison is that process. No image crashes the decoder, as far as anybody knows: here those do that say so.
func tryPoison() {
	engine.BeforeTrial(func(enc []byte) {
		_, what, poisoned := bytes.Cut(enc, []byte("poison-"))
		if !poisoned || os.Getenv(trialEnv) == "" {
			return
		}
		signals := map[string]syscall.Signal{"SEGV": syscall.SIGSEGV, "ABRT": syscall.SIGABRT, "KILL": syscall.SIGKILL}
		switch word := string(what); word {
		case "once":
			if f, err := os.OpenFile(os.Getenv(trialEnv), os.O_CREATE|os.O_EXCL, 0o600); err == nil {
				_ = f.Close()
				_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV)
				select {}
			}
		case "exit":
			os.Exit(7)
		case "memory":
			fmt.Fprintln(os.Stderr, "fatal error: runtime: out of memory")
			os.Exit(2)
		case "hang":
			for n := 0; ; n++ {
				_ = n
			}
		case "panic":
			panic("planned")
		default:
			_ = syscall.Kill(os.Getpid(), signals[word])
			select {}
		}
	})
	if err := engine.Try(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// What becomes of the process for trials says what the image is: only what it does to itself, twice, and again, makes it bad.
func TestTrial(t *testing.T) {
	t.Setenv(trialEnv, filepath.Join(t.TempDir(), "once"))
	dir := t.TempDir()
	draw(t, filepath.Join(dir, "a.jpg"), 20, 16, 1)
	image, err := os.ReadFile(filepath.Join(dir, "a.jpg"))
	if err != nil {
		t.Fatal(err)
	}
	poisoned := func(word string) []byte { return append(bytes.Clone(image), "poison-"+word...) }
	self := []string{os.Args[0]}
	for what, c := range map[string]struct {
		command []string
		enc     []byte
		how     string
		err     string
	}{
		"an image":               {self, image, "", ""},
		"no image":               {self, []byte("hello"), "", ""},
		"nothing":                {self, nil, "", ""},
		"a cut image":            {self, image[:len(image)/2], "", ""},
		"one that panics":        {self, poisoned("panic"), "", ""},
		"SIGSEGV":                {self, poisoned("SEGV"), "SIGSEGV", ""},
		"SIGABRT":                {self, poisoned("ABRT"), "SIGABRT", ""},
		"an exit":                {self, poisoned("exit"), "exit 7", ""},
		"no end":                 {self, poisoned("hang"), "hang", ""},
		"one crash of three":     {self, poisoned("once"), "", ""},
		"somebody killed it":     {self, poisoned("KILL"), "", "SIGKILL"},
		"no memory":              {self, poisoned("memory"), "", "memory"},
		"no command":             {nil, image, "", "no command"},
		"no such command":        {[]string{"/does/not/exist"}, image, "", "start"},
		"another command":        {[]string{"/bin/true"}, image, "", "before it began"},
		"one that says nonsense": {[]string{"/bin/echo", "hello"}, image, "", "before it began"},
	} {
		how, err := engine.Trial(t.Context(), c.command, c.enc, prep.Limits{Timeout: 50 * time.Millisecond})
		if how != c.how || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v", what, how, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if how, err := engine.Trial(ctx, self, image, prep.Limits{}); how != "" || !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %q, %v", how, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond) // in its midst
	defer cancel()
	if how, err := engine.Trial(ctx, self, poisoned("hang"), prep.Limits{Timeout: time.Hour}); how != "" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("canceled in its midst: %q, %v", how, err)
	}
}

// A daemon died while four samples were prepared. One of them crashes the decoder, three are innocent; of the four jobs two are back, one has ended, one was never heard of. In the next
// life the one is bad for every job and every recipe, under any name, and everybody else has everything; the life after that knows it by its bytes alone; another build tries it anew.
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
	var d *journal.Decoding
	life := func(t *testing.T, version string, trial ...string) *world {
		t.Helper()
		var notes []string
		if d, notes = journal.OpenDecoding(state, 1, 8, func(err error) { t.Error(err) }); d == nil || len(notes) > 0 {
			t.Fatal(notes)
		}
		held := d
		t.Cleanup(func() { _ = held.Close() })
		return onDisk(t, fs, func(c *engine.Config) { c.Decoding, c.Version, c.Trial = held, version, trial })
	}
	skips := func(s *larderv1.JobSpec) { s.OnError = "skip" }
	names := []string{"in place", "whole", "ended"}
	specs := []*larderv1.JobSpec{spec(names[0], dir, 4, recipe(crops...), skips), spec(names[1], dir, 7, skips), spec(names[2], dir, 4, skips)}
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
		for i, p := range []journal.Piece{
			{Job: ident.JobID(ids["in place"]), Sample: 3, Seed: 5, Instance: 1}, {Job: ident.JobID(ids["whole"]), Sample: 4},
			{Job: ident.JobID(ids["ended"]), Sample: poison}, {Job: 99, Sample: 1}, {Job: ident.JobID(ids["whole"]), Sample: 1 << 20},
		} {
			d.Slot(3 + i).Set(p) // of workers that this engine does not have
		}
	})
	t.Run("the second life", func(t *testing.T) {
		w := life(t, "1", os.Args[0])
		for i, s := range append(specs[:2:2], spec("new", dir, 5, skips, recipe(append([]*larderv1.Op{op("Resize", map[string]any{"size": []any{20.0, 24.0}})}, crops...)...))) {
			tr := w.train(s, 0)
			for e := range uint32(2) {
				bad(t, fmt.Sprint(s.GetName(), " ", e), tr.must(e), n, "the decoder crashed (SIGSEGV)", poison)
			}
			tr.detach()
			if q := w.stats().GetTotals().GetQuarantined(); q != 1 {
				t.Errorf("%d jobs: %d samples are counted", i+1, q)
			}
		}
		eventually(t, "everybody is settled", func() bool { return len(d.Suspects()) == 0 })
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
		bad(t, "a copy", tr.must(0), n, "the decoder crashed (SIGSEGV)", 12)
		tr.detach()
	})
	t.Run("another build that crashes, too", func(t *testing.T) {
		w := life(t, "2", os.Args[0])
		tr := w.train(spec("again", copied, 5, skips), 0)
		bad(t, "again", tr.must(0), n, "the decoder crashed (SIGSEGV)", 12)
		tr.detach()
	})
	t.Run("another build that does not", func(t *testing.T) {
		t.Setenv(trialEnv, "")
		t.Setenv(cleanEnv, "1")
		w := life(t, "3", os.Args[0])
		tr := w.train(spec("at last", copied, 5, skips, recipe(crops...)), 0)
		bad(t, "at last", tr.must(0), n, "")
		tr.detach()
		if c := d.Crashers(); len(c) != 0 {
			t.Errorf("crashers are %v", c)
		}
	})
}

// cleanEnv makes this test binary a process for trials in which nothing crashes.
const cleanEnv = "LARDER_TEST_CLEAN_TRIAL"

// bad holds an epoch of n samples against those that are to be bad, and why.
func bad(t *testing.T, what string, got *seen, n int, why string, ids ...int) {
	t.Helper()
	var told []int64
	for _, q := range got.bad {
		told = append(told, int64(q.GetId()))
		if q.GetReason() != why {
			t.Errorf("%s: %d is bad because %q", what, q.GetId(), q.GetReason())
		}
	}
	var want []int64
	for _, id := range ids {
		want = append(want, int64(id))
	}
	if !slices.Equal(told, want) {
		t.Errorf("%s: bad are %v", what, told)
	}
	exactly(t, what, append(slices.Clone(got.ids), told...), all(n))
	if a := got.end.GetAccount(); a.GetState() != "complete" || a.GetDelivered() != uint64(n-len(ids)) || a.GetQuarantined() != uint64(len(ids)) {
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

// A suspect whose trial is not possible is decoded as ever, and stays one for the next daemon; one that is not begun before the daemon stops, too.
func TestSuspectsWithoutTrial(t *testing.T) {
	const n = 10
	dir := folder(t, n)
	state := t.TempDir()
	fs, err := journal.OpenDir(state, false)
	if err != nil {
		t.Fatal(err)
	}
	p := journal.Piece{Sample: 3}
	for name, command := range map[string][]string{"none": nil, "one that is gone": {"/does/not/exist"}} {
		t.Run(name, func(t *testing.T) {
			d, _ := journal.OpenDecoding(state, 1, 4, nil)
			defer d.Close()
			t.Run("a life", func(t *testing.T) {
				w := onDisk(t, fs, func(c *engine.Config) { c.Decoding, c.Trial = d, command })
				tr := w.train(spec("a", dir, 4), 0)
				p.Job = ident.JobID(tr.st.Info().GetJob().GetId())
				if s := d.Suspects(); len(s) > 1 {
					t.Errorf("suspects are %v", s)
				}
				bad(t, "an epoch", tr.must(tr.st.Info().GetNextEpoch()), n, "")
				d.Slot(3).Set(p)
			})
		})
	}
	d, _ := journal.OpenDecoding(state, 1, 4, nil)
	defer d.Close()
	if s := d.Suspects(); !slices.Equal(s, []journal.Piece{p}) {
		t.Errorf("suspects are %v", s)
	}
}
