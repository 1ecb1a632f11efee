package demo

import (
	"fmt"
	"time"

	"larder/internal/imagegen"
)

// Limits of the flags. Fewer samples than minSamples leave subsets with less than a batch.
const (
	minJobs, maxJobs       = 2, 16
	minSamples, maxSamples = 40, 200_000
	maxEpochs              = 100
)

// JobPlan is one simulated training run.
type JobPlan struct {
	Name   string
	Subset string        // a subset expression for the daemon
	Batch  int           // samples
	Step   time.Duration // how long the "accelerator" takes for one batch

	want func(id int, label int64) bool // the same subset, in Go, for the audit
}

// Expected returns the ids that every epoch of the job must deliver exactly once, ascending, from the drawn files
// alone.
func (p *JobPlan) Expected(d *imagegen.Dataset) []uint32 {
	var ids []uint32
	for id, label := range d.Labels {
		if p.want(id, label) {
			ids = append(ids, uint32(id))
		}
	}
	return ids
}

// Plan returns n jobs of a sweep over a dataset of so many samples: overlapping subsets, unlike batches, unlike speeds.
func Plan(n, samples int) []JobPlan {
	names := []string{"lr-0.3", "lr-0.1", "lr-0.03", "lr-0.01"}
	batches := []int{32, 48, 64, 40}
	steps := []time.Duration{12, 30, 24, 16} // ms
	lo, hi := samples/4, samples*9/10
	subsets := []struct {
		expr string
		want func(id int, label int64) bool
	}{
		{"label < 6", func(_ int, l int64) bool { return l < 6 }},
		{"label >= 4", func(_ int, l int64) bool { return l >= 4 }},
		{"id % 2 == 0", func(id int, _ int64) bool { return id%2 == 0 }},
		{fmt.Sprintf("id in [%d, %d)", lo, hi), func(id int, _ int64) bool { return id >= lo && id < hi }},
		{"label in (1, 3, 5, 7, 9)", func(_ int, l int64) bool { return l%2 == 1 }},
		{"not id % 3 == 0", func(id int, _ int64) bool { return id%3 != 0 }},
		{"label < 3 or label > 6", func(_ int, l int64) bool { return l < 3 || l > 6 }},
		{"all", func(int, int64) bool { return true }},
	}
	plans := make([]JobPlan, n)
	for j := range plans {
		name := fmt.Sprintf("job-%d", j+1)
		if j < len(names) {
			name = names[j]
		}
		s := subsets[j%len(subsets)]
		plans[j] = JobPlan{
			Name: name, Subset: s.expr, want: s.want,
			Batch: batches[j%len(batches)], Step: steps[j%len(steps)] * time.Millisecond,
		}
	}
	return plans
}

// union counts the samples that at least one job wants, and the deliveries of one epoch of every job.
func union(d *imagegen.Dataset, plans []JobPlan) (unique, deliveries int) {
	for id, label := range d.Labels {
		wanted := 0
		for j := range plans {
			if plans[j].want(id, label) {
				wanted++
			}
		}
		deliveries += wanted
		if wanted > 0 {
			unique++
		}
	}
	return unique, deliveries
}
