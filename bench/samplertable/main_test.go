package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	simulator "larder/bench"
)

// TestWorldsAreTheScenarios: every long training that is committed is in the table, with a cache of parts of its
// samples.
func TestWorldsAreTheScenarios(t *testing.T) {
	files, err := filepath.Glob("../scenarios/long-*.yaml")
	if err != nil || len(files) == 0 || len(files) != len(worlds) {
		t.Fatalf("%v, %v, %d in the table", err, files, len(worlds))
	}
	for _, w := range worlds {
		name := "../scenarios/" + w.scenario + ".yaml"
		if !slices.Contains(files, name) {
			t.Errorf("there is no %s", name)
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sc, err := simulator.ParseScenario(name, data)
		if err != nil || sc.Samples != w.samples {
			t.Fatalf("%s: %v, %+v, want %d samples", name, err, sc, w.samples)
		}
		most := 0
		for i := range sc.Jobs {
			most = max(most, sc.Jobs[i].Epochs)
		}
		if most != 200 {
			t.Errorf("%s: %d epochs, the page says 200", name, most)
		}
		for _, order := range w.orders {
			if err := sc.SetOrder(order); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestWorst: the ratio is that of the worst job, the correlation that which chance explains least; what no job has is a
// dash.
func TestWorst(t *testing.T) {
	var r report
	if err := json.Unmarshal([]byte(`{"jobs": [
		{"sd_of_mean_positions": 0.01, "sd_by_chance": 0.02, "lag_correlations": [
			{"lag": 1, "correlation": 0.02, "sd": 0.01}]},
		{"sd_of_mean_positions": 0.3, "sd_by_chance": 0.2, "lag_correlations": [{"lag": 1, "correlation": 0.06, "sd": 0.05}]},
		{"sd_of_mean_positions": 0.02, "sd_by_chance": 0.02, "lag_correlations": [
			{"lag": 1, "correlation": -0.03, "sd": 0.01},
			{"lag": 5, "correlation": -0.01, "sd": 0.01}]},
		{"sd_of_mean_positions": null, "sd_by_chance": null}]}`), &r); err != nil {
		t.Fatal(err)
	}
	for lag, want := range map[int]string{1: "-0.030", 5: "-0.010", 20: "-"} {
		if got := figure("%+.3f", func() (float64, bool) { return r.lag(lag) }); got != want {
			t.Errorf("lag %d: %s, want %s", lag, got, want)
		}
	}
	if got := figure("%.2f", r.spread); got != "1.50" {
		t.Errorf("%s of chance", got)
	}
	if got := figure("%.2f", report{Jobs: r.Jobs[3:]}.spread); got != "-" {
		t.Errorf("no job has an sd, and it is %s", got)
	}
	if !strings.HasPrefix(begin, "<!-- ") || begin == end {
		t.Error("the markers of the page")
	}
}
