package bench

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/tiers/tinylfu"
)

// Every policy runs a scenario of fixed orders: exactly once, above the bound, twice the same (but for tinylfu), and
// no policy loads less than belady, which knows everything; the order is one that never depends on the cache. All
// samples have one size, and no sample is asked for twice in a step, or what flies would be hits that no policy could
// have foreseen.
func TestEveryPolicyRuns(t *testing.T) {
	const text = "samples: 900\nrepeats: 2\ncache: {samples: 250, policy: %s}\njobs:\n" +
		"  - {name: a, epochs: 4, order: fixed, batch: 1, window: 1}\n" +
		"  - {name: b, epochs: 4, order: fixed, batch: 1, window: 1, speed: .7, start: 100, seed: 9}\n" +
		"  - {name: c, epochs: 3, batch: 1, window: 1, shuffle: false, start: 50, subset: 'id < 600'}\n"
	loads := map[string]int{}
	for _, name := range append(tinylfu.Names(), "clairvoyant-100") {
		sc := scenarioOf(t, fmt.Sprintf(text, name))
		r := simulate(t, sc)
		if !r.ExactlyOnce || r.Loads < r.LowerBound || r.Policy != name || r.PolicyBreaks != tinylfu.BreaksOf(name) {
			t.Errorf("%s: %+v", name, r)
		}
		if again := simulate(t, sc); name != tinylfu.Name && !reflect.DeepEqual(r, again) {
			t.Errorf("%s: two runs differ", name)
		}
		loads[name] = r.Loads
	}
	t.Log(loads)
	for name, n := range loads {
		// Of several asking in one step a load serves all, which belady does not count on.
		if float64(n) < .99*float64(loads["belady"]) {
			t.Errorf("%s loads %d, belady %d", name, n, loads["belady"])
		}
	}
	if loads["clairvoyant-k"] >= loads["minio"] || loads["clairvoyant-k"] > loads["clairvoyant-100"] ||
		loads["belady"] >= loads["clairvoyant-k"] {
		t.Errorf("more foresight loads more: %v", loads)
	}
}

// A future that cannot be known is refused with the way out.
func TestFutureUnknown(t *testing.T) {
	for _, policy := range []string{"belady", "clairvoyant-k", "clairvoyant-8"} {
		for _, order := range []string{"epoch", "stratified", "strict", "joader", "ods"} {
			sc := scenarioOf(t, fmt.Sprintf("samples: 20\ncache: {samples: 5, policy: %s}\njobs: [{name: f, order: fixed}, "+
				"{name: a, order: %s}]", policy, order))
			_, err := RunSampler(sc, nil, nil)
			if !errs.Is(err, errs.Invalid) || !strings.Contains(err.Error(), `job "a"`) || !strings.Contains(errs.From(err).Hint,
				"order fixed") {
				t.Errorf("%s, %s: %v", policy, order, err)
			}
		}
	}
	sc := scenarioOf(t,
		"samples: 1000000\ncache: {samples: 5, policy: belady}\njobs: [{name: f, order: fixed, epochs: 100}]")
	if _, err := RunSampler(sc, nil, nil); !errs.Is(err, errs.Invalid) ||
		!strings.Contains(err.Error(), "100000000 picks") {
		t.Errorf("%v", err)
	}
	if err := sc.SetCache(5, "clairvoyant-x"); !errs.Is(err, errs.Invalid) || !strings.Contains(errs.From(err).Hint,
		"clairvoyant-k") {
		t.Errorf("%v", err)
	}
}

// Opportunistic sampling as published, aligned jobs: what is substituted from a warm cache satisfies 1-h = (1-c)
// exp(-h/(1-c)), whatever the number of jobs. Two runs of unlike length tell the warm epochs from the first.
func TestODSClosedForm(t *testing.T) {
	const n = 8000
	for _, jobs := range []int{2, 4} {
		for _, c := range []float64{.1, .2, .4} {
			hits := map[int]int{}
			for _, epochs := range []int{3, 11} {
				text := fmt.Sprintf("samples: %d\ncache: {samples: %d, policy: minio}\njobs:\n", n, int(c*n))
				for j := range jobs {
					// In turn, never in one step: what one has just loaded would be available to the others, cached or not.
					text += fmt.Sprintf("  - {name: j%d, order: ods, epochs: %d, batch: 1, window: 1, speed: %g, start: %d}\n", j,
						epochs, 1/float64(jobs), j)
				}
				for _, j := range simulate(t, scenarioOf(t, text)).Jobs {
					hits[epochs] += j.Hits
				}
			}
			got := float64(hits[11]-hits[3]) / float64(8*jobs*n)
			want := c
			for range 200 {
				want = 1 - (1-c)*math.Exp(-want/(1-c))
			}
			t.Logf("%d jobs, %.0f %%: %.4f, formula %.4f", jobs, 100*c, got, want)
			if math.Abs(got-want) > .02*want {
				t.Errorf("%d jobs, %.0f %%: %.4f, the formula says %.4f", jobs, 100*c, got, want)
			}
		}
	}
}

// The daemon's sampler with order fixed agrees with the closed forms of one job: LRU c + (1-c) ln(1-c), never evict c.
func TestPlacementClosedForms(t *testing.T) {
	const n, c = 20_000, .5
	for name, want := range map[string]float64{"lru": c + (1-c)*math.Log(1-c), "minio": c, "minio-preselect": c,
		"belady": c} {
		hits := map[int]int{}
		for _, epochs := range []int{2, 8} {
			r := simulate(t,
				scenarioOf(t, fmt.Sprintf("samples: %d\ncache: {samples: %d, policy: %s}\njobs: [{name: a, order: fixed, "+
					"epochs: %d}]", n, int(c*n), name, epochs)))
			hits[epochs] = r.Jobs[0].Hits
		}
		got := float64(hits[8]-hits[2]) / (6 * n)
		if math.Abs(got-want) > .02*want {
			t.Errorf("%s: %.4f, the formula says %.4f", name, got, want)
		}
	}
}
