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
	"larder/internal/fault"
)

// Runs beside each other are those that would have been made one after the other; all are refused before any begins, and the first failure ends them.
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
	told := uint64(0)
	got, err := simulateAll(worlds, labels, coresim.Options{Progress: func(_ time.Duration, samples, of uint64) error {
		told = max(told, samples)
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
	if _, err := simulateAll(worlds, labels, coresim.Options{MaxMemory: w.Estimate() / 2}); !fault.Is(err, fault.ResourceExceeded) || !strings.Contains(err.Error(), "run 0") {
		t.Errorf("too little memory: %v", err)
	}
	big := *w
	for i := range 4 {
		if err := bench.Change(&big, fmt.Sprintf("jobs.%s.epochs=200", big.Jobs[i].Name)); err != nil {
			t.Fatal(err)
		}
	}
	_, err = simulateAll([]*coresim.World{&big, &big}, labels, coresim.Options{Progress: func(time.Duration, uint64, uint64) error { return context.Canceled }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
