package live

import (
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"larder/bench/coresim"
	"larder/bench/measure"
)

// AllowedReads is what the simulator's reads may differ by from the median of the measured runs.
const AllowedReads = 0.15

// Compare puts a simulated run beside measured ones of the same scenario. Counts that do not depend on timing must be
// equal in every run; of reads the error may be AllowedReads, unless their daemon was killed; the others are only
// reported.
func Compare(w *coresim.World, sim *measure.Run, runs []*measure.Run) []measure.Difference {
	leaves, shares, killed := false, false, false
	for _, r := range runs {
		killed = killed || r.Recovery != nil
	}
	for i := range w.Jobs {
		leaves = leaves || w.Jobs[i].Leave > 0
		shares = shares || w.Jobs[i].Share
	}
	exact, reads := 0.0, AllowedReads
	var out []measure.Difference
	add := func(what string, value func(*measure.Run) float64, timing bool, allowed *float64) {
		d := measure.Difference{What: what, Simulated: value(sim), Timing: timing, Allowed: allowed, OK: true}
		for _, r := range runs {
			d.Measured = append(d.Measured, value(r))
		}
		sorted := slices.Sorted(slices.Values(d.Measured))
		if n := len(sorted); n > 0 {
			d.Median = (sorted[(n-1)/2] + sorted[n/2]) / 2
		}
		switch {
		case d.Median != 0:
			d.Error = d.Simulated/d.Median - 1
		case d.Simulated != 0:
			d.Error = 1
		}
		if allowed != nil {
			d.OK = math.Abs(d.Error) <= *allowed
			for _, v := range d.Measured {
				d.OK = d.OK && (timing || v == d.Simulated)
			}
		}
		out = append(out, d)
	}
	limit := func(timing bool) *float64 {
		if timing {
			return nil
		}
		return &exact
	}
	add("samples_delivered", func(r *measure.Run) float64 { return float64(r.Counts.Samples) }, leaves, limit(leaves))
	add("batches_delivered", func(r *measure.Run) float64 { return float64(r.Counts.Batches) }, leaves, limit(leaves))
	add("quarantined", func(r *measure.Run) float64 { return float64(r.Counts.Quarantined) }, leaves, limit(leaves))
	add("augments", func(r *measure.Run) float64 { return float64(r.Counts.Augments) }, leaves || shares || killed,
		limit(leaves || shares || killed))
	judged := &reads
	if killed { // what was in memory is lost with a daemon, which is not simulated
		judged = nil
	}
	add("source_reads", func(r *measure.Run) float64 { return float64(r.Counts.SourceReads) }, true, judged)
	add("decodes", func(r *measure.Run) float64 { return float64(r.Counts.Decodes) }, true, nil)
	add("makespan_seconds", func(r *measure.Run) float64 { return r.Makespan }, true, nil)
	return out
}

// usage is what /proc/stat says of all processors.
type usage struct{ busy, total time.Duration }

func busy() usage {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return usage{}
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	var u usage
	const tick = time.Second / 100 // USER_HZ is 100 on every architecture that Go knows
	for i, f := range strings.Fields(line) {
		if i == 0 || i > 8 { // user nice system idle iowait irq softirq steal
			continue
		}
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return usage{}
		}
		u.total += time.Duration(n) * tick
		if i != 4 && i != 5 {
			u.busy += time.Duration(n) * tick
		}
	}
	return u
}

// others is the part of all processor time since then that went neither to this process nor to its daemon.
func (u usage) others(own time.Duration) float64 {
	now := busy()
	if now.total <= u.total {
		return 0
	}
	return max(0, min(1, float64(now.busy-u.busy-own)/float64(now.total-u.total)))
}
