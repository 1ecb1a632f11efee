package demo

import (
	"slices"
	"strings"
	"testing"

	"larder/internal/imagegen"

	"pgregory.net/rapid"
)

// Whatever is wrong with a receipt, the audit must say it; what is right in any order, it must accept.
func TestAuditAgainstBrokenReceipts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 60).Draw(rt, "samples")
		labels := rapid.SliceOfN(rapid.Int64Range(0, 4), n, n).Draw(rt, "labels")
		var want []uint32
		for id := range n {
			if rapid.Bool().Draw(rt, "wanted") {
				want = append(want, uint32(id))
			}
		}
		if len(want) == 0 {
			want = []uint32{0}
		}
		var got receipt
		for _, id := range rapid.Permutation(slices.Clone(want)).Draw(rt, "order") {
			got.IDs = append(got.IDs, int64(id))
			got.Labels = append(got.Labels, labels[id])
		}
		var a Audit
		a.epoch("who", want, labels, got)
		if !a.OK() {
			rt.Fatalf("a true receipt is refused: %v", a.Problems)
		}
		i := rapid.IntRange(0, len(got.IDs)-1).Draw(rt, "victim")
		var say string
		switch rapid.IntRange(0, 4).Draw(rt, "damage") {
		case 0:
			got.IDs, got.Labels = slices.Delete(got.IDs, i, i+1), slices.Delete(got.Labels, i, i+1)
			say = "never came"
		case 1:
			got.IDs, got.Labels = append(got.IDs, got.IDs[i]), append(got.Labels, got.Labels[i])
			say = "more than once"
		case 2:
			got.Labels[i]++
			say = "wrong label"
		case 3:
			stranger := rapid.SampledFrom([]int64{-1, int64(n), 1 << 40}).Draw(rt, "stranger")
			got.IDs, got.Labels = append(got.IDs, stranger), append(got.Labels, 0)
			say = "did not ask"
		case 4:
			got.Labels = got.Labels[:i]
			say = "ids came with"
		}
		a.epoch("who", want, labels, got)
		if a.OK() || a.Good != 1 || a.JobEpochs != 2 || len(a.Problems) != 1 || !strings.Contains(a.Problems[0], say) {
			rt.Fatalf("audit %+v does not say %q", a, say)
		}
	})
}

// A sample of the dataset that the job did not ask for is as wrong as a lost one.
func TestAuditFindsOthersSamples(t *testing.T) {
	labels := []int64{0, 0, 1, 1}
	var a Audit
	a.epoch("x", []uint32{0, 2}, labels, receipt{IDs: []int64{2, 0, 3, 1}, Labels: []int64{1, 0, 1, 0}})
	if a.OK() || !strings.Contains(a.Problems[0], "did not ask for them (ids [1 3])") {
		t.Errorf("%+v", a)
	}
	var none Audit
	if none.OK() {
		t.Error("nothing checked is called good")
	}
}

func TestPlan(t *testing.T) {
	d := &imagegen.Dataset{}
	for id := range 2000 {
		d.Labels = append(d.Labels, int64(id*imagegen.MaxClasses/2000))
	}
	plans := Plan(maxJobs, 2000)
	names := map[string]bool{}
	for i := range plans {
		n := len(plans[i].Expected(d))
		if n < 900 || n > 2000 || n < plans[i].Batch {
			t.Errorf("%s wants %d samples", plans[i].Subset, n)
		}
		names[plans[i].Name] = true
	}
	if len(names) != maxJobs {
		t.Errorf("%d names for %d jobs", len(names), maxJobs)
	}
	for n := minJobs; n <= maxJobs; n++ {
		unique, deliveries := union(d, plans[:n])
		if unique != 2000 || float64(deliveries) < 1.1*float64(unique) {
			t.Errorf("%d jobs want %d samples %d times: too little to share", n, unique, deliveries)
		}
	}
	// The smallest demo leaves every job at least a sample.
	small := &imagegen.Dataset{Labels: make([]int64, minSamples)}
	for id := range small.Labels {
		small.Labels[id] = int64(id * imagegen.MaxClasses / minSamples)
	}
	for _, p := range Plan(maxJobs, minSamples) {
		if len(p.Expected(small)) < minSamples/4 {
			t.Errorf("%s wants %d of %d samples", p.Subset, len(p.Expected(small)), minSamples)
		}
	}
}
