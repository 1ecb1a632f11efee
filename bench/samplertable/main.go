// Command samplertable makes the tables of docs/measurements/sampler.md: it runs "larder bench sampler" on the
// committed scenarios, compares the figures with what was aimed at, and rewrites what stands between the markers of the
// page. bench/sampler-table.sh runs it.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// report is what is read of the command's JSON.
type report struct {
	Requests    int     `json:"requests"`
	Loads       int     `json:"loads"`
	Bound       int     `json:"loads_lower_bound"`
	Windows     int     `json:"loads_lower_bound_windows"`
	Ratio       float64 `json:"ratio"`
	ExactlyOnce bool    `json:"exactly_once"`
	Jobs        []job   `json:"jobs"`
}

// job is what is read of one job: nil where it has too few epochs.
type job struct {
	SD     *float64 `json:"sd_of_mean_positions"`
	Chance *float64 `json:"sd_by_chance"`
	Lags   []struct {
		Lag         int     `json:"lag"`
		Correlation float64 `json:"correlation"`
		SD          float64 `json:"sd"`
	} `json:"lag_correlations"`
}

// spread is the sd of mean positions by that of chance, of the job where it is largest; ok: some job has one.
func (r report) spread() (worst float64, ok bool) {
	for _, j := range r.Jobs {
		if j.SD != nil && j.Chance != nil && *j.Chance > 0 {
			worst, ok = max(worst, *j.SD / *j.Chance), true
		}
	}
	return worst, ok
}

// lag is the correlation at a lag of the job where it is furthest from 0 in units of its sd by chance: few epochs make
// large ones. ok: some job has one.
func (r report) lag(lag int) (furthest float64, ok bool) {
	most := 0.0
	for _, j := range r.Jobs {
		for _, l := range j.Lags {
			if z := math.Abs(l.Correlation / l.SD); l.Lag == lag && l.SD > 0 && z >= most {
				most, furthest, ok = z, l.Correlation, true
			}
		}
	}
	return furthest, ok
}

// windows is the ratio to the bound of whole windows.
func (r report) windows() float64 { return r.Ratio * float64(r.Bound) / float64(r.Windows) }

// bench asks larder.
type bench struct {
	larder, dir string
	known       map[string]report
}

func (b *bench) run(scenario, order string, cache int, policy string) (report, error) {
	key := fmt.Sprint(scenario, order, cache, policy)
	if r, ok := b.known[key]; ok {
		return r, nil
	}
	args := []string{"bench", "sampler", "--scenario", filepath.Join(b.dir, scenario+".yaml"), "--order", order, "--cache",
		fmt.Sprint(cache), "--policy", policy, "-o", "json"}
	var errs bytes.Buffer
	cmd := exec.Command(b.larder, args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return report{}, fmt.Errorf("larder %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	var r report
	if err := json.Unmarshal(out, &r); err != nil {
		return report{}, fmt.Errorf("larder %s: %w", strings.Join(args, " "), err)
	}
	b.known[key] = r
	return r, nil
}

// aim is one figure that was asked for.
type aim struct {
	scenario, order string
	cache           int
	name            string  // of the cache, for readers
	most            float64 // the ratio may not be larger
	windows         bool    // to the bound of whole windows, else to the tighter one
}

var aims = []aim{
	{"a", "epoch", 133, "1 %", 1.02, false},
	{"aligned", "epoch", 600, "10 %", 1.02, false},
	{"aligned", "stratified", 600, "10 %", 1.02, false},
	{"aligned", "strict", 600, "10 %", 1.02, false},
	{"staggered6", "epoch", 1200, "20 %", 1.13, true},
	{"staggered6", "stratified", 1200, "20 %", 1.28, true},
	{"staggered6", "strict", 1200, "20 %", 2.1, true},
	{"staggered6", "epoch", 600, "10 %", 1.14, true},
	{"staggered6", "stratified", 600, "10 %", 1.36, true},
	{"speeds", "epoch", 24, "1 %", 1.02, false},
}

// compared are the scenarios on which everybody runs, with the caches Joader's notes have figures for.
var compared = []struct {
	scenario string
	caches   []int
}{
	{"a", []int{0, 100, 1000, 5000}},
	{"b", []int{0, 500, 1000, 5000}},
	{"c", []int{0, 1000, 5000}},
	{"c4", []int{0, 1000, 5000}},
	{"f", []int{0, 1000}},
	{"g", []int{0, 1000}},
	{"staggered4", []int{0, 20, 200, 400}},
}

// columns are orders and the policy of the cache beside them: each baseline gets the one its authors use.
var columns = []struct{ name, order, policy string }{
	{"independent + LRU", "independent", "lru"},
	{"shared order + LRU", "shared-order", "lru"},
	{"ODS", "ods", "minio"},
	{"Joader as released", "joader-as-released", "need"},
	{"Joader + RefCnt", "joader", "need"},
	{"strict", "strict", "need"},
	{"stratified", "stratified", "need"},
	{"epoch", "epoch", "need"},
}

// worlds are the long trainings, by how many samples there are in all. Their caches are parts of those.
var worlds = []struct {
	scenario string
	samples  int
	orders   []string
}{
	{"long-one", 1000, []string{"strict", "stratified", "epoch"}},
	{"long-disjoint", 1000, []string{"stratified", "epoch"}},
	{"long-nested", 600, []string{"stratified", "epoch"}},
	{"long-half", 750, []string{"stratified", "epoch"}},
	{"long-staggered", 500, []string{"stratified", "epoch"}},
	{"long-slow", 500, []string{"stratified", "epoch"}},
}

func mark(ok bool) string {
	if ok {
		return "yes"
	}
	return "**no**"
}

func tables(b *bench) (string, error) {
	var s strings.Builder
	s.WriteString("| scenario | cache | order | loads | bound | ratio | aim | reached " +
		"|\n|---|---|---|---|---|---|---|---|\n")
	for _, a := range aims {
		r, err := b.run(a.scenario, a.order, a.cache, "need")
		if err != nil {
			return "", err
		}
		bound, ratio, name := r.Bound, r.Ratio, ""
		if a.windows {
			bound, ratio, name = r.Windows, r.windows(), " (windows)"
		}
		fmt.Fprintf(&s, "| %s | %s | %s | %d | %d%s | %.3f | %.2f | %s |\n", a.scenario, a.name, a.order, r.Loads, bound,
			name, ratio, a.most,
			mark(ratio <= a.most && r.ExactlyOnce))
	}
	s.WriteString("\n| scenario | cache | bound |")
	for _, c := range columns {
		s.WriteString(" " + c.name + " |")
	}
	s.WriteString(" stratified ≤ 0.85 Joader |\n|---|---|---|" + strings.Repeat("---|", len(columns)+1) + "\n")
	once := true
	for _, c := range compared {
		for _, n := range c.caches {
			var loads []report
			for _, col := range columns {
				r, err := b.run(c.scenario, col.order, n, col.policy)
				if err != nil {
					return "", err
				}
				once = once && r.ExactlyOnce
				loads = append(loads, r)
			}
			fmt.Fprintf(&s, "| %s | %d | %d |", c.scenario, n, loads[0].Bound)
			for _, r := range loads {
				fmt.Fprintf(&s, " %d |", r.Loads)
			}
			joader, stratified := loads[4], loads[6]
			if joader.Ratio <= 1.25 {
				fmt.Fprintf(&s, " %.2f; Joader is within 1.25 of the bound |\n", float64(stratified.Loads)/float64(joader.Loads))
			} else {
				share := float64(stratified.Loads) / float64(joader.Loads)
				fmt.Fprintf(&s, " %.2f %s |\n", share, mark(share <= .85))
			}
		}
	}
	fmt.Fprintf(&s, "\nExactly once in all of these runs: %s.\n", mark(once))
	return s.String(), nil
}

// training is the table of long trainings.
func training(b *bench) (string, error) {
	var s strings.Builder
	s.WriteString("**Over a training** of 200 epochs (the slow job of `long-slow`: 2). The ratio is that of the job " +
		"where it is " +
		"largest,\neach correlation that of the job where it is furthest from 0 in units of its sd by chance.\n\n" +
		"| world | order | cache | sd of mean positions ÷ chance | lag 1 | lag 2 | lag 5 | lag 20 | loads |\n" +
		"|---|---|---|---|---|---|---|---|---|\n")
	once := true
	for _, w := range worlds {
		for _, order := range w.orders {
			for _, percent := range []int{5, 30, 80} {
				r, err := b.run(w.scenario, order, w.samples*percent/100, "need")
				if err != nil {
					return "", err
				}
				once = once && r.ExactlyOnce
				fmt.Fprintf(&s, "| %s | %s | %d %% | %s |", w.scenario, order, percent, figure("%.2f", r.spread))
				for _, lag := range []int{1, 2, 5, 20} {
					at := func() (float64, bool) { return r.lag(lag) }
					fmt.Fprintf(&s, " %s |", figure("%+.3f", at))
				}
				fmt.Fprintf(&s, " %d |\n", r.Loads)
			}
		}
	}
	fmt.Fprintf(&s, "\nExactly once in all of these runs: %s.\n", mark(once))
	return s.String(), nil
}

// figure is a value in print, or a dash where there is none.
func figure(format string, of func() (float64, bool)) string {
	v, ok := of()
	if !ok {
		return "-"
	}
	return fmt.Sprintf(format, v)
}

const begin, end = "<!-- made by bench/sampler-table.sh: begin -->\n", "<!-- made by bench/sampler-table.sh: end -->\n"

func run() error {
	b := &bench{known: map[string]report{}}
	flag.StringVar(&b.larder, "larder", "bin/larder", "the larder to run")
	flag.StringVar(&b.dir, "scenarios", "bench/scenarios", "folder of the scenarios")
	page := flag.String("page", "", "page to rewrite; none: print the tables")
	flag.Parse()
	t, err := tables(b)
	if err != nil {
		return err
	}
	long, err := training(b)
	if err != nil {
		return err
	}
	t += "\n" + long
	if *page == "" {
		_, err = os.Stdout.WriteString(t)
		return err
	}
	old, err := os.ReadFile(*page)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(old), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return errors.New(*page + " has no place for the tables")
	}
	return os.WriteFile(*page, []byte(head+begin+"\n"+t+"\n"+end+tail), 0o644)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "samplertable:", err)
		os.Exit(1)
	}
}
