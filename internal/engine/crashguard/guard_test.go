package crashguard

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"testing"

	"larder/internal/ident"
	"larder/internal/prep"
)

// guarded is a Guard on a file whose pieces are of the object of their sample's number, and of one job, 1.
func guarded(t *testing.T, f *File, objects map[ident.ObjectID][]byte, command ...string) *Guard {
	g := New(Config{
		Version: "test", File: f, Command: command, Log: slog.New(slog.DiscardHandler),
		Locate: func(_ context.Context, p Piece) (Sample, error) {
			if p.Job != 1 {
				return Sample{}, errors.New("no such job")
			}
			return Sample{Object: ident.ObjectID(p.Sample)}, nil
		},
		Read: func(_ context.Context, o ident.ObjectID) ([]byte, error) { return objects[o], nil },
		Note: func(_ slog.Level, msg string, args ...any) { t.Log(append([]any{msg}, args...)...) },
	})
	g.Locate(t.Context())
	return g
}

// A suspect is tried once, before it may be decoded; its bytes are refused under every object; the others are innocent.
func TestGuardTriesSuspects(t *testing.T) {
	t.Setenv(trialEnv, t.TempDir()+"/once")
	good := picture(t)
	bad := append(bytes.Clone(good), "poison-SEGV"...)
	objects := map[ident.ObjectID][]byte{3: good, 4: bad, 5: good}
	dir := t.TempDir()
	f, _ := openFile(t, dir, 4)
	for i, p := range []Piece{{Job: 1, Sample: 3}, {Job: 1, Sample: 4}, {Job: 1, Sample: 5}, {Job: 9, Sample: 6}} {
		f.Line(i).Set(p)
	}
	next, _ := openFile(t, dir, 4)
	g := guarded(t, next, objects, os.Args[0])
	recipe, err := prep.ParseRecipe(nil)
	if err != nil {
		t.Fatal(err)
	}
	verdict := func(g *Guard, o ident.ObjectID, enc []byte) string {
		why, stopping := g.Verdict(t.Context(), recipe, o, enc)
		if stopping {
			t.Error("it says that it stops")
		}
		return why
	}
	if why := verdict(g, 3, good); why != "" {
		t.Errorf("an innocent: %q", why)
	}
	g.Run(t.Context())
	const crashed = "the decoder crashed (SIGSEGV)"
	for o, want := range map[ident.ObjectID]string{3: "", 4: crashed, 5: ""} {
		if why := verdict(g, o, objects[o]); why != want {
			t.Errorf("object %d: %q", o, why)
		}
	}
	if why := verdict(g, 77, bad); why != crashed {
		t.Errorf("the same bytes elsewhere: %q", why)
	}
	if s, c := next.Suspects(), next.Crashers(); len(s) != 0 || len(c) != 1 || g.left.Load() != 1 {
		t.Errorf("suspects %v, crashers %v, %d left", s, c, g.left.Load())
	}
}

// Without a way to try it, a suspect is decoded as ever and stays one; a context that ends leaves everything open.
func TestGuardWithoutTrial(t *testing.T) {
	dir := t.TempDir()
	f, _ := openFile(t, dir, 1)
	p := Piece{Job: 1, Sample: 3}
	f.Line(0).Set(p)
	next, _ := openFile(t, dir, 1)
	g := guarded(t, next, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if why, stopping := g.Verdict(ctx, nil, 3, []byte("x")); why != "" || !stopping {
		t.Errorf("stopping: %q, %v", why, stopping)
	}
	if why, stopping := g.Verdict(t.Context(), nil, 3, []byte("x")); why != "" || stopping {
		t.Errorf("no trial: %q, %v", why, stopping)
	}
	if s := next.Suspects(); !slices.Equal(s, []Piece{p}) {
		t.Errorf("suspects are %v", s)
	}
}

func TestGuardWithoutFile(t *testing.T) {
	g := guarded(t, nil, nil)
	g.Run(t.Context())
	if why, stopping := g.Verdict(t.Context(), nil, 3, []byte("x")); why != "" || stopping {
		t.Errorf("%q, %v", why, stopping)
	}
}
