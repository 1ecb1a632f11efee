package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"larder/bench"
	"larder/bench/coresim"
	"larder/internal/errs"
)

// Runs beside each other are those that would have been made one after the other; all are refused before any begins,
// and the first failure ends them.
func TestSimulateAll(t *testing.T) {
	raw, err := os.ReadFile("../../bench/scenarios/live/sweep.yaml")
	if err != nil {
		t.Fatal(err)
	}
	l, err := bench.ParseLive("sweep.yaml", raw)
	if err != nil {
		t.Fatal(err)
	}
	w, err := l.World(nil, nil, bench.DefaultMachine)
	if err != nil {
		t.Fatal(err)
	}
	var worlds []*coresim.World
	var labels []string
	for i := range 5 {
		own := *w
		if err := bench.Change(&own, fmt.Sprintf("tiers.decoded=%dMiB", i)); err != nil {
			t.Fatal(err)
		}
		worlds, labels = append(worlds, &own), append(labels, fmt.Sprint("run ", i))
	}
	most := uint64(0)
	got, err := simulateAll(worlds, labels, coresim.Options{Progress: func(_ time.Duration, samples, of uint64) error {
		most = max(most, samples)
		if samples > of || of != 5*w.Requests() {
			return fmt.Errorf("%d of %d samples", samples, of)
		}
		return nil
	}})
	if err != nil || len(got) != 5 {
		t.Fatal(got, err)
	}
	for i := range got {
		alone, err := simulate(worlds[i], coresim.Options{}, labels[i])
		if err != nil {
			t.Fatal(err)
		}
		alone.WallSeconds, got[i].WallSeconds = 0, 0
		if !reflect.DeepEqual(*alone, got[i]) {
			t.Errorf("run %d beside others: %+v, alone: %+v", i, got[i], *alone)
		}
	}
	if _, err := simulateAll(worlds, labels, coresim.Options{MaxMemory: w.Estimate() / 2}); !errs.Is(err,
		errs.ResourceExceeded) || !strings.Contains(err.Error(), "run 0") {
		t.Errorf("too little memory: %v", err)
	}
	big := *w
	for i := range 4 {
		if err := bench.Change(&big, fmt.Sprintf("jobs.%s.epochs=200", big.Jobs[i].Name)); err != nil {
			t.Fatal(err)
		}
	}
	_, err = simulateAll([]*coresim.World{&big, &big}, labels,
		coresim.Options{Progress: func(time.Duration, uint64, uint64) error { return context.Canceled }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// A note is made of every run that it is about: of one change alone too, which all of them together may undo.
func TestNotesOfEachChange(t *testing.T) {
	w := &coresim.World{Jobs: []coresim.Job{{Name: "a", Order: "stratified(50)", Subset: make([]uint32, 400)},
		{Name: "b", Order: "epoch", Subset: make([]uint32, 400)}}}
	changed := func(changes ...string) *coresim.World {
		own := *w
		for _, c := range changes {
			if err := bench.Change(&own, c); err != nil {
				t.Fatal(err)
			}
		}
		return &own
	}
	tiles, gone := "jobs.b.order=stratified(20)", "jobs.b=absent"
	got := notesOf([]*coresim.World{w, changed(tiles), changed("jobs.a.order=epoch"), changed(gone),
		changed(tiles, "jobs.a.order=epoch")}, []string{"before", "only tiles", "only epoch", "only gone", "after"})
	if len(got) != 2 || !strings.HasPrefix(got[0], "before, only tiles, only gone: Job a: 6 tiles are used for order "+
		"stratified(50)") || !strings.HasPrefix(got[1], "only tiles, after: Job b: 6 tiles") {
		t.Errorf("%q", got)
	}
	if got := notesOf([]*coresim.World{w, changed(gone)}, []string{"before", "after"}); len(got) != 1 ||
		!strings.HasPrefix(got[0], "Job a: ") {
		t.Errorf("what all runs have in common: %q", got)
	}
}
