package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"larder/bench/policysim"
	"larder/internal/htmlreport"
	"larder/internal/plot"
)

// Policy is the JSON of larder bench policy.
type Policy struct {
	Kind  string            `json:"kind"` // policy
	Facts map[string]string `json:"facts,omitempty"`
	Left  []string          `json:"left_out,omitempty"` // policies that could not run
	policysim.Report
	Systems []SystemRow `json:"systems,omitempty"`
}

// SystemRow is one whole system on the same demand.
type SystemRow struct {
	System      string    `json:"system"`
	Cache       int64     `json:"cache"`
	Unsupported string    `json:"unsupported,omitempty"` // why it cannot run this demand
	Loads       int       `json:"loads"`
	Preps       int       `json:"preps"`
	Delivered   int       `json:"delivered"`
	HitRatio    float64   `json:"hit_ratio"`
	Coverage    float64   `json:"coverage"` // least share of its subset that a job saw in an epoch
	Repeated    int       `json:"repeated"` // deliveries of a sample that the job had in the epoch already
	ExactlyOnce bool      `json:"exactly_once"`
	Makespan    float64   `json:"makespan_seconds"`
	SlowDown    []float64 `json:"slow_downs"` // by job, against running alone without data to wait for
	Jain        float64   `json:"jain"`
}

// notExact is what a picture says beside the name of a system that did not deliver every sample exactly once.
const notExact = " †"

// isBound is what stands beside the name of a bar that no daemon can reach.
const isBound = " (bound)"

func (n *Named) policy() error {
	var p Policy
	if err := json.Unmarshal(n.Raw, &p); err != nil {
		return err
	}
	n.Title = "Policies: " + p.demand()
	n.fact("seed of the trace", fmt.Sprint(p.TraceSeed))
	n.fact("seed of the policies", fmt.Sprint(p.Seed))
	n.Text = append(n.Text, fmt.Sprintf("%s requests of %d jobs for %s different samples; hits are of %s requests, "+
		"after %d epochs of each job. The lower bound is what no order, policy or foresight could go below; dashed lines "+
		"and bars marked as such are bounds that no daemon can have.",
		plot.Thousands(fmt.Sprint(p.Requests)), len(p.Jobs), plot.Thousands(fmt.Sprint(p.Unique)),
		plot.Thousands(fmt.Sprint(p.Counted)), p.Warm))
	if !p.Prescribed {
		n.Text = append(n.Text, fmt.Sprintf("The order of job %s was decided by what was in memory.", p.LooksJob))
	}
	if len(p.Left) > 0 {
		n.Text = append(n.Text, "Left out, for they need to know the future, or more memory than allowed: "+strings.Join(
			p.Left, ", ")+".")
	}
	var caches []int64
	var names []string
	for _, r := range p.Rows {
		if !slices.Contains(caches, r.Cache) {
			caches = append(caches, r.Cache)
		}
		if !slices.Contains(names, r.Policy) {
			names = append(names, r.Policy)
		}
	}
	slices.Sort(caches)
	if best := p.best(caches); best != "" {
		n.Text = append(n.Text, best)
	}
	draw := func(out plot.Plot, value func(*policysim.Row) float64, skip ...string) plot.Plot {
		out.X = "cache, % of what is asked for"
		for _, name := range names {
			if slices.Contains(skip, name) {
				continue
			}
			s := plot.Series{Name: name}
			for _, c := range caches {
				if r := p.Find(name, c); r != nil {
					s.Points = append(s.Points, [2]float64{100 * r.Share, value(r)})
					s.Dashed = s.Dashed || r.Bounding
				}
			}
			out.Series = append(out.Series, s)
		}
		if len(caches) == 1 {
			return barsOfOne(out, "a cache of "+percent(p.share(caches[0])))
		}
		return out
	}
	n.Plots = append(n.Plots,
		draw(plot.Plot{Number: 6, Title: "Loads per unique sample, by policy", Y: "loads per unique sample"},
			func(r *policysim.Row) float64 { return r.PerUnique }),
		draw(plot.Plot{Number: 3, Title: "Hits against cache size, by policy", Y: "hit ratio", Top: 1},
			func(r *policysim.Row) float64 { return r.HitRatio }, policysim.Independent, policysim.LowerBound))
	n.Tables = append(n.Tables, p.overBound(names, caches))
	t := htmlreport.Table{Title: "All figures of policies", Fold: true, Head: []string{"policy", "cache", "share",
		"hit ratio", "miss ratio", "byte misses", "loads", "per unique", "over the bound", "evicted", "Jain of hits"}}
	for _, r := range p.Rows {
		t.Rows = append(t.Rows, []string{r.Policy, fmt.Sprint(r.Cache), fmt.Sprintf("%.1f%%", 100*r.Share),
			fmt.Sprintf("%.4f", r.HitRatio), fmt.Sprintf("%.4f", r.MissRatio), fmt.Sprintf("%.4f", r.ByteMiss),
			fmt.Sprint(r.Loads), fmt.Sprintf("%.3f", r.PerUnique), fmt.Sprintf("%.3f", r.OverBound), fmt.Sprint(r.Evicted),
			fmt.Sprintf("%.3f", r.Jain)})
	}
	n.Tables = append(n.Tables, t)
	n.systems(&p)
	return nil
}

func (p *Policy) demand() string {
	if p.UnitSize {
		return p.Trace
	}
	return p.Trace + ", unlike sizes"
}

// least is the policy of those that a daemon can have with the fewest loads at a capacity; nil when there is none.
func (p *Policy) least(cache int64) *policysim.Row {
	var best *policysim.Row
	for i := range p.Rows {
		if r := &p.Rows[i]; r.Cache == cache && !r.Bounding && r.Policy != policysim.Independent &&
			(best == nil || r.Loads < best.Loads) {
			best = r
		}
	}
	return best
}

// share is the part of what is asked for that a capacity is.
func (p *Policy) share(cache int64) float64 {
	for i := range p.Rows {
		if p.Rows[i].Cache == cache {
			return p.Rows[i].Share
		}
	}
	return 0
}

// barsOfOne is a picture whose lines would be single points with their values as bars, the least first; at says where
// they are.
func barsOfOne(p plot.Plot, at string) plot.Plot {
	out := plot.Plot{Number: p.Number, Title: strings.Replace(p.Title, " against cache size", "", 1) + ": " + at, Y: p.Y,
		Top: p.Top, Note: p.Note, Series: []plot.Series{{Name: p.Y}}}
	series := slices.DeleteFunc(slices.Clone(p.Series), func(s plot.Series) bool { return len(s.Points) == 0 })
	slices.SortStableFunc(series, func(a, b plot.Series) int { return cmp.Compare(a.Points[0][1], b.Points[0][1]) })
	for _, s := range series {
		name := s.Name
		if s.Dashed {
			name += isBound
		}
		out.Bars = append(out.Bars, name)
		out.Series[0].Points = append(out.Series[0].Points, [2]float64{0, s.Points[0][1]})
	}
	return out
}

// best says in a sentence which policy to choose.
func (p *Policy) best(caches []int64) string {
	var parts []string
	for _, c := range caches {
		r := p.least(c)
		if r == nil {
			continue
		}
		said := fmt.Sprintf("%s at %s (%.2f of the lower bound", r.Policy, percent(r.Share), r.OverBound)
		if lru := p.Find("lru", c); lru != nil && lru.Policy != r.Policy {
			said += fmt.Sprintf(", lru %.2f", lru.OverBound)
		}
		parts = append(parts, said+")")
	}
	if len(parts) == 0 {
		return ""
	}
	return "Fewest loads among policies that a daemon can have: " + strings.Join(parts, "; ") + "."
}

func percent(share float64) string { return plot.Number(math.Round(share*1e4)/100) + " %" }

// overBound is the loads over the lower bound, a row for each policy and a column for each capacity, the best policy
// first.
func (p *Policy) overBound(names []string, caches []int64) htmlreport.Table {
	t := htmlreport.Table{Title: "Loads over the lower bound", Head: []string{"policy"}}
	for _, c := range caches {
		t.Head = append(t.Head, percent(p.share(c)))
	}
	type line struct {
		name  string
		bound bool
		sum   float64
	}
	var lines []line
	for _, name := range names {
		if name == policysim.LowerBound || name == policysim.Unbounded {
			continue
		}
		l := line{name: name}
		for _, c := range caches {
			if r := p.Find(name, c); r != nil {
				l.sum += r.OverBound
				l.bound = r.Bounding
			}
		}
		lines = append(lines, l)
	}
	slices.SortStableFunc(lines, func(a, b line) int {
		if a.bound != b.bound {
			if b.bound {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.sum, b.sum)
	})
	for i, l := range lines {
		name := l.name
		if l.bound {
			name += " (foresight)"
		}
		row := []string{name}
		for k, c := range caches {
			text := "-"
			if r := p.Find(l.name, c); r != nil {
				text = fmt.Sprintf("%.3f", r.OverBound)
				if b := p.least(c); b != nil && b.Loads == r.Loads && !l.bound {
					t.Strong = append(t.Strong, [2]int{i, k + 1})
				}
			}
			row = append(row, text)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// systems shows whole systems on the same demand.
func (n *Named) systems(p *Policy) {
	if len(p.Systems) == 0 {
		return
	}
	var caches []int64
	var names []string
	wrong := map[string]bool{}
	for _, r := range p.Systems {
		if !slices.Contains(caches, r.Cache) {
			caches = append(caches, r.Cache)
		}
		if r.Unsupported != "" {
			continue
		}
		if !slices.Contains(names, r.System) {
			names = append(names, r.System)
		}
		wrong[r.System] = wrong[r.System] || !r.ExactlyOnce
	}
	slices.Sort(caches)
	middle := caches[len(caches)/2]
	shown := func(name string) string {
		if wrong[name] {
			return name + notExact
		}
		return name
	}
	note := ""
	for _, name := range names {
		if wrong[name] {
			note = "† did not deliver every sample exactly once: what it saves, it saves by that."
		}
	}
	at := fmt.Sprintf("cache of %s samples", plot.Thousands(fmt.Sprint(middle)))
	speed := plot.Plot{Number: 3, Title: "Throughput against cache size, by system", X: "cache, samples",
		Y: "samples a second of all jobs, virtual time", Note: note}
	work := plot.Plot{Number: 6, Title: "Systems: reads and preparations per unique sample, " + at, Y: "times each sample",
		Series: []plot.Series{{Name: "reads"}, {Name: "preparations"}}, Note: note}
	fair := plot.Plot{Number: 11, Title: "Systems: slow-down of the least and the most slowed job, " + at,
		Y: "time over that of the job alone with cached data", Series: []plot.Series{{Name: "least"},
			{Name: "most"}}, Note: note}
	for _, name := range names {
		s := plot.Series{Name: shown(name)}
		for _, r := range p.Systems {
			if r.System == name && r.Unsupported == "" && r.Makespan > 0 {
				s.Points = append(s.Points, [2]float64{float64(r.Cache), float64(r.Delivered) / r.Makespan})
			}
		}
		speed.Series = append(speed.Series, s)
	}
	for _, r := range p.Systems {
		if r.Unsupported != "" || r.Cache != middle {
			continue
		}
		work.Bars = append(work.Bars, shown(r.System))
		for k, v := range []int{r.Loads, r.Preps} {
			work.Series[k].Points = append(work.Series[k].Points, [2]float64{0, float64(v) / float64(max(1, p.Unique))})
		}
		if len(r.SlowDown) > 0 {
			fair.Bars = append(fair.Bars, shown(r.System))
			fair.Series[0].Points = append(fair.Series[0].Points, [2]float64{0, slices.Min(r.SlowDown)})
			fair.Series[1].Points = append(fair.Series[1].Points, [2]float64{0, slices.Max(r.SlowDown)})
		}
	}
	if len(names) > 0 {
		if len(caches) == 1 {
			speed = barsOfOne(speed, at)
		}
		n.Plots = append(n.Plots, work, speed, fair)
	}
	n.Tables = append(n.Tables, p.systemsTable())
}

// systemsTable has all figures of systems.
func (p *Policy) systemsTable() htmlreport.Table {
	t := htmlreport.Table{Title: "All figures of systems, re-implemented from their descriptions", Fold: true,
		Head: []string{"system", "cache", "reads", "preparations", "delivered", "hit ratio", "coverage", "repeated",
			"exactly once", "makespan", "Jain"}}
	for _, r := range p.Systems {
		if r.Unsupported != "" {
			t.Rows = append(t.Rows, []string{r.System, fmt.Sprint(r.Cache), "unsupported: " + r.Unsupported})
			continue
		}
		once := "no"
		if r.ExactlyOnce {
			once = "yes"
		}
		t.Rows = append(t.Rows, []string{r.System, fmt.Sprint(r.Cache), fmt.Sprint(r.Loads), fmt.Sprint(r.Preps),
			fmt.Sprint(r.Delivered), fmt.Sprintf("%.4f", r.HitRatio), fmt.Sprintf("%.3f", r.Coverage),
			fmt.Sprint(r.Repeated), once, fmt.Sprintf("%.3f s", r.Makespan), fmt.Sprintf("%.3f", r.Jain)})
	}
	return t
}

// inShort answers the question of who reads only the beginning: which policy, and what larder's own orders save.
func inShort(results []Named) *htmlreport.Table {
	t := htmlreport.Table{Title: "At the middle one of the cache sizes of each result. Policies replay given orders; " +
		"systems choose their own, in virtual time. Only systems that delivered every sample exactly once are compared.",
		Head: []string{"demand", "cache", "policy with the fewest loads", "its loads over the bound", "those of lru",
			"reads, independent loaders", "reads, larder", "samples/s, independent loaders", "samples/s, larder",
			"samples/s, fastest system"}}
	for i := range results {
		var p Policy
		if results[i].Kind != "policy" || json.Unmarshal(results[i].Raw, &p) != nil {
			continue
		}
		var caches []int64
		for _, r := range p.Rows {
			caches = append(caches, r.Cache)
		}
		slices.Sort(caches)
		caches = slices.Compact(caches)
		if len(caches) == 0 {
			continue
		}
		k := len(caches) / 2
		best := p.least(caches[k])
		if best == nil {
			continue
		}
		row := []string{p.demand(), percent(best.Share), best.Policy, fmt.Sprintf("%.3f", best.OverBound), "-"}
		if lru := p.Find("lru", caches[k]); lru != nil {
			row[4] = fmt.Sprintf("%.3f", lru.OverBound)
		}
		t.Rows = append(t.Rows, append(row, p.systemsInShort(k)...))
	}
	if len(t.Rows) == 0 {
		return nil
	}
	return &t
}

// systemsInShort are the last cells of a row of inShort, at the k-th capacity.
func (p *Policy) systemsInShort(k int) []string {
	var caches []int64
	for _, r := range p.Systems {
		caches = append(caches, r.Cache)
	}
	slices.Sort(caches)
	if caches = slices.Compact(caches); len(caches) <= k {
		return []string{"-", "-", "-", "-", "-"}
	}
	reads, rate := map[string]string{}, map[string]string{}
	fastest, name := 0.0, "-"
	for _, r := range p.Systems {
		if r.Cache != caches[k] || r.Unsupported != "" || !r.ExactlyOnce || r.Makespan <= 0 {
			continue
		}
		v := float64(r.Delivered) / r.Makespan
		reads[r.System], rate[r.System] = fmt.Sprint(r.Loads), plot.Number(math.Round(v))
		if v > fastest*1.0001 {
			fastest, name = v, r.System
		}
	}
	or := func(s string) string { return cmp.Or(s, "-") }
	last := "-"
	if fastest > 0 {
		last = fmt.Sprintf("%s (%s)", plot.Number(math.Round(fastest)), name)
	}
	return []string{or(reads["independent"]), or(reads["larder"]), or(rate["independent"]), or(rate["larder"]), last}
}

// sampled is what the report reads of the JSON of larder bench sampler.
type sampled struct {
	Policy string       `json:"policy"`
	Loads  int          `json:"loads"`
	Bound  int          `json:"loads_lower_bound"`
	Ratio  float64      `json:"ratio"`
	Exact  bool         `json:"exactly_once"`
	Jobs   []sampledJob `json:"jobs"`
}

type sampledJob struct {
	Name    string        `json:"name"`
	Order   string        `json:"order"`
	Loads   int           `json:"loads"`
	Overlap *float64      `json:"epoch_overlap_q1"`
	Rho     *float64      `json:"spearman_rho"`
	SD      *float64      `json:"sd_of_mean_positions"`
	Chance  *float64      `json:"sd_by_chance"`
	Lags    []correlation `json:"lag_correlations"`
	Cells   []struct {
		Size int     `json:"size"`
		Mean float64 `json:"mean_position"`
		SD   float64 `json:"sd_of_mean"`
	} `json:"cells"`
}

// furthestCell is the largest distance of a cell's mean position from the middle of an epoch, in standard deviations;
// NaN without cells.
func (j *sampledJob) furthestCell() float64 {
	worst := math.NaN()
	for _, c := range j.Cells {
		if z := math.Abs(c.Mean-.5) / c.SD; c.SD > 0 && !(z <= worst) {
			worst = z
		}
	}
	return worst
}

// sampler shows the JSON of larder bench sampler.
func (n *Named) sampler() error {
	var s sampled
	if err := json.Unmarshal(n.Raw, &s); err != nil {
		return err
	}
	n.Title = "Sampler: " + strings.TrimPrefix(strings.TrimSuffix(n.Name, ".json"), "sampler-")
	once := "exactly once in every epoch"
	if !s.Exact {
		once = "NOT exactly once"
	}
	n.Text = append(n.Text, fmt.Sprintf("Policy %s: %s loads, %.3f of the lower bound %s; every sample %s.", s.Policy,
		plot.Thousands(fmt.Sprint(s.Loads)), s.Ratio, plot.Thousands(fmt.Sprint(s.Bound)), once))
	p := plot.Plot{Number: 12, Title: "Resemblance of consecutive epochs", Y: "overlap of first quarters: 0.25 when " +
		"epochs are independent; correlation: 0", Marks: []plot.Mark{{X: .25, Text: "independent"}},
		Series: []plot.Series{{Name: "overlap of first quarters"}, {Name: "rank correlation, absolute"}}}
	far := plot.Plot{Number: 12,
		Title: "Distance of the mean position of the samples of a cell from the middle of an epoch", Y: "standard deviations",
		Marks: []plot.Mark{{X: 4, Text: "no chance"}}, Series: []plot.Series{{Name: "furthest cell"}}}
	t := htmlreport.Table{Head: []string{"job", "order", "loads", "overlap of first quarters (independent: .25)",
		"rank correlation (independent: 0)", "furthest cell (standard deviations)"}}
	t.Head = append(t.Head, meansHead...)
	figure := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return fmt.Sprintf("%.3f", *v)
	}
	for i, j := range s.Jobs {
		cell := "-"
		if worst := j.furthestCell(); !math.IsNaN(worst) {
			cell = fmt.Sprintf("%.2f", worst)
			far.Bars = append(far.Bars, j.Name)
			far.Series[0].Points = append(far.Series[0].Points, [2]float64{0, worst})
		}
		t.Rows = append(t.Rows, []string{j.Name, j.Order, fmt.Sprint(j.Loads), figure(j.Overlap), figure(j.Rho), cell})
		var m *means
		if j.SD != nil && j.Chance != nil {
			m = &means{*j.SD, *j.Chance, j.Lags}
		}
		t.Rows[i] = append(t.Rows[i], m.cells()...)
		if j.Overlap != nil && j.Rho != nil {
			p.Bars = append(p.Bars, j.Name)
			p.Series[0].Points = append(p.Series[0].Points, [2]float64{0, *j.Overlap})
			p.Series[1].Points = append(p.Series[1].Points, [2]float64{0, math.Abs(*j.Rho)})
		}
	}
	for _, p := range []plot.Plot{p, far} {
		if len(p.Bars) > 0 {
			n.Plots = append(n.Plots, p)
		}
	}
	n.Tables = append(n.Tables, t)
	return nil
}

// speedUps shows what systems gain over independent loaders by the number of jobs, where results of policy differ in
// that alone: the same family of demand, as many samples, the same cache.
func speedUps(results []Named) []Named {
	groups, order := map[string][]sized{}, []string{}
	for i := range results {
		var p Policy
		if results[i].Kind != "policy" || json.Unmarshal(results[i].Raw, &p) != nil || len(p.Systems) == 0 {
			continue
		}
		family, _, _ := strings.Cut(p.Trace, ",")
		key := fmt.Sprintf("%s, %d samples", family, p.Unique)
		if groups[key] == nil {
			order = append(order, key)
		}
		if !slices.ContainsFunc(groups[key], func(r sized) bool { return r.jobs == len(p.Jobs) }) {
			groups[key] = append(groups[key], sized{len(p.Jobs), &p})
		}
	}
	var out []Named
	for _, key := range order {
		g := groups[key]
		if len(g) < 2 {
			continue
		}
		slices.SortFunc(g, func(a, b sized) int { return a.jobs - b.jobs })
		n := Named{Name: "speed-up: " + key}
		n.Title, n.Kind, n.Plots = "Systems by the number of jobs", "systems", []plot.Plot{speedUp(key, g)}
		n.Text = []string{"Virtual time until all jobs are done, of independent loaders over that of each system, from " +
			"the results above."}
		out = append(out, n)
	}
	return out
}

// sized is a result of some number of jobs.
type sized struct {
	jobs int
	p    *Policy
}

// speedUp draws the speed-up of every system over independent loaders against the number of jobs, in the middle one of
// the cache sizes.
func speedUp(key string, g []sized) plot.Plot {
	var caches []int64
	for _, r := range g[0].p.Systems {
		caches = append(caches, r.Cache)
	}
	slices.Sort(caches)
	caches = slices.Compact(caches)
	cache := caches[len(caches)/2]
	find := func(p *Policy, system string) float64 {
		for _, r := range p.Systems {
			if r.System == system && r.Cache == cache && r.Unsupported == "" {
				return r.Makespan
			}
		}
		return 0
	}
	speed := plot.Plot{Number: 5, Title: fmt.Sprintf("Speed-up over independent loaders, %s, cache %s", key,
		plot.Thousands(fmt.Sprint(cache))), X: "jobs", Y: "times as fast"}
	for _, row := range g[0].p.Systems {
		if row.Cache != cache || row.System == "independent" {
			continue
		}
		s := plot.Series{Name: row.System}
		for _, r := range g {
			if !exact(r.p, row.System) {
				s.Name = row.System + notExact
			}
		}
		for _, r := range g {
			if alone, own := find(r.p, "independent"), find(r.p, row.System); alone > 0 && own > 0 {
				s.Points = append(s.Points, [2]float64{float64(r.jobs), alone / own})
			}
		}
		speed.Series = append(speed.Series, s)
	}
	speed.Note = "† did not deliver every sample exactly once in some of them."
	return speed
}

// exact reports whether a system delivered every sample exactly once wherever it ran.
func exact(p *Policy, system string) bool {
	return !slices.ContainsFunc(p.Systems, func(r SystemRow) bool {
		return r.System == system && r.Unsupported == "" &&
			!r.ExactlyOnce
	})
}
