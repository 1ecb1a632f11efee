package policytest

import (
	"flag"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"larder/cachepolicy"
	"larder/internal/invariant"
	"larder/internal/xrand"
)

var table = flag.Bool("table", false, "print the table of docs/measurements/policies.md, with 100,000 samples")

// dropping is the policy refcount as in Joader's paper: what no job needs leaves at once.
const dropping = "refcount, dropping"

// run is the hit ratio of a policy over a trace, after warm epochs.
func run(t *testing.T, tr *Trace, name string, capacity, warm int) float64 {
	t.Helper()
	dropSpent := name == dropping
	if dropSpent {
		name = "refcount"
	}
	var f Future
	switch {
	case name == "belady":
		f = tr.Whole()
	case cachepolicy.NeedsFuture(name):
		f = tr.Epochs()
	}
	e, err := cachepolicy.NewGiven(name, xrand.New(uint64(capacity)), cachepolicy.Given{Future: f})
	if err != nil {
		t.Fatal(err)
	}
	return tr.Ratio(Run(tr, capacity, e, f, dropSpent), warm)
}

// One job, fresh uniform orders. The formulas: an LRU entry is hit when the distinct samples between its two uses fit,
// which integrates to c + (1-c) ln(1-c); what is never evicted is hit once an epoch, and no policy can do better.
func TestClosedForms(t *testing.T) {
	if invariant.Enabled {
		t.Skip("statistics of one goroutine: they run without the race detector, which makes them ten times as slow")
	}
	const n = 100_000
	tr := Shuffled(n, 1, 8, xrand.New(1))
	for _, c := range []float64{.2, .5, .8} {
		for name, want := range map[string]float64{"lru": c + (1-c)*math.Log(1-c), "minio": c, "minio-preselect": c} {
			got := run(t, tr, name, int(c*n), 1)
			if math.Abs(got-want) > .02*want {
				t.Errorf("%s with room for %.0f %%: %.4f, the formula says %.4f", name, 100*c, got, want)
			}
		}
	}
}

// Figures of another simulator, written independently (8,000 samples, means of epochs 3 to 6, three digits): tolerance
// is 2 % and four standard deviations of a binomial count.
func TestAgainstAnotherSimulator(t *testing.T) {
	const n = 8000
	one, four := Shuffled(n, 1, 6, xrand.New(1)), Shuffled(n, 4, 6, xrand.New(1))
	for _, c := range []struct {
		name  string
		trace *Trace
		want  map[float64]float64
	}{
		{"lru", one, map[float64]float64{.2: .0215, .5: .153, .8: .478}},
		{"fifo", one, map[float64]float64{.2: .023, .5: .193, .8: .657}},
		{"random", one, map[float64]float64{.2: .044, .5: .286, .8: .677}},
		{"2-random", one, map[float64]float64{.2: .030, .5: .218, .8: .616}},
		{"belady", four, map[float64]float64{.2: .51, .5: .77, .8: .93}},
		{dropping, four, map[float64]float64{.1: .170, .2: .295, .5: .569}},
	} {
		for share, want := range c.want {
			got := run(t, c.trace, c.name, int(share*n), 2)
			sd := math.Sqrt(want * (1 - want) / float64(len(c.trace.Requests)*4/6))
			if math.Abs(got-want) > .02*want+4*sd {
				t.Errorf("%s with room for %.0f %%: %.4f, want %.4f", c.name, 100*share, got, want)
			}
		}
	}
	// Sanity: what one job has had it does not need again, so refcount as in Joader's paper keeps nothing.
	if got := run(t, one, dropping, n/2, 1); got != 0 {
		t.Errorf("refcount for one job: %.4f", got)
	}
}

// golden has what was measured elsewhere with 100,000 samples, after 2 of 6 epochs: LRU, never evict, and Belady.
var golden = []struct {
	jobs               int
	share              float64
	lru, minio, belady float64
}{
	{1, .10, .005, .100, .100}, {1, .35, .071, .350, .350}, {1, .65, .283, .650, .650},
	{4, .10, .076, .100, .369}, {4, .35, .280, .350, .660}, {4, .65, .558, .650, .856},
}

// ratios makes the table: by row of golden and by policy.
func ratios(t *testing.T, n int, names []string) [][]float64 {
	var rows [][]float64
	traces := map[int]*Trace{1: Shuffled(n, 1, 6, xrand.New(1)), 4: Shuffled(n, 4, 6, xrand.New(1))}
	for _, g := range golden {
		var row []float64
		for _, name := range names {
			row = append(row, run(t, traces[g.jobs], name, int(g.share*float64(n)), 2))
		}
		rows = append(rows, row)
	}
	return rows
}

// The table of hit ratios: with fewer samples here, within 0.01 of the golden values and of
// docs/measurements/policies.md, which go test ./cachepolicy/policytest -run TestHitRatios -table -v prints.
func TestHitRatios(t *testing.T) {
	if invariant.Enabled {
		t.Skip("statistics of one goroutine: they run without the race detector, which makes them ten times as slow")
	}
	names, n, close := cachepolicy.Names(), 10_000, .01
	if *table {
		n, close = 100_000, .002
	}
	rows := ratios(t, n, names)
	at := map[string]int{}
	for i, name := range names {
		at[name] = i
	}
	for i, g := range golden {
		for name, want := range map[string]float64{"lru": g.lru, "minio": g.minio, "belady": g.belady} {
			if got := rows[i][at[name]]; math.Abs(got-want) > close {
				t.Errorf("%d jobs, %.0f %%, %s: %.4f, want %.3f", g.jobs, 100*g.share, name, got, want)
			}
		}
		for name, k := range at {
			if rows[i][k] > rows[i][at["belady"]]+1e-9 {
				t.Errorf("%d jobs, %.0f %%: %s has %.4f, more than belady", g.jobs, 100*g.share, name, rows[i][k])
			}
		}
	}
	if *table {
		printTable(names, rows)
		return
	}
	compareDocs(t, names, rows)
}

func printTable(names []string, rows [][]float64) {
	var b strings.Builder
	b.WriteString("\n| policy |")
	for _, g := range golden {
		fmt.Fprintf(&b, " %s, %.0f %% |", map[int]string{1: "1 job", 4: "4 jobs"}[g.jobs], 100*g.share)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(golden)) + "\n")
	for k, name := range names {
		fmt.Fprintf(&b, "| `%s` |", name)
		for i := range golden {
			fmt.Fprintf(&b, " %.3f |", rows[i][k])
		}
		b.WriteString("\n")
	}
	fmt.Print(b.String())
}

func compareDocs(t *testing.T, names []string, rows [][]float64) {
	data, err := os.ReadFile("../../docs/measurements/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	for k, name := range names {
		_, line, ok := strings.Cut(string(data), "\n| `"+name+"` | 0.")
		if !ok {
			t.Errorf("docs/measurements/policies.md has no hit ratios of %s", name)
			continue
		}
		line, _, _ = strings.Cut("0."+line, "\n")
		cells := strings.Split(strings.TrimSuffix(line, " |"), " | ")
		if len(cells) != len(golden) {
			t.Errorf("docs/measurements/policies.md, %s: %q", name, line)
			continue
		}
		close := .015
		if name == "w-tinylfu" {
			close = .03 // its sketch has a power of two counters, and is fuller with one number of samples than with another
		}
		for i, cell := range cells {
			if v, err := strconv.ParseFloat(cell, 64); err != nil || math.Abs(v-rows[i][k]) > close {
				t.Errorf("docs/measurements/policies.md, %s, %d jobs, %.0f %%: %s, measured %.4f", name, golden[i].jobs,
					100*golden[i].share,
					cell, rows[i][k])
			}
		}
	}
}
