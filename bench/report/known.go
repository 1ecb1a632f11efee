package report

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"larder/bench/policysim"
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

func (n *Named) policy() error {
	var p Policy
	if err := json.Unmarshal(n.Raw, &p); err != nil {
		return err
	}
	n.Title, n.Facts = "Policies: "+p.Trace, p.Facts
	if n.Facts == nil {
		n.Facts = map[string]string{}
	}
	n.Facts["seed of the trace"], n.Facts["seed of the policies"] = fmt.Sprint(p.TraceSeed), fmt.Sprint(p.Seed)
	n.Text = append(n.Text, fmt.Sprintf("%d requests of %d jobs for %d different samples; hits of %d requests are counted, after %d epochs of each job. The lower bound is what no order, policy or foresight could go below; dashed lines are bounds that no daemon can have.",
		p.Requests, len(p.Jobs), p.Unique, p.Counted, p.Warm))
	if !p.Prescribed {
		n.Text = append(n.Text, fmt.Sprintf("The order of job %s was decided by what was in memory.", p.LooksJob))
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
	plot := func(number int, title, y string, top float64, value func(*policysim.Row) float64, skip ...string) Plot {
		out := Plot{Number: number, Title: title, X: "cache, share of the data in %", Y: y, Top: top}
		for _, name := range names {
			if slices.Contains(skip, name) {
				continue
			}
			s := Series{Name: name}
			for _, c := range caches {
				if r := p.Find(name, c); r != nil {
					s.Points = append(s.Points, [2]float64{100 * r.Share, value(r)})
					s.Dashed = r.Bounding
				}
			}
			out.Series = append(out.Series, s)
		}
		return out
	}
	n.Plots = append(n.Plots,
		plot(3, "Hits against cache size", "hit ratio", 1, func(r *policysim.Row) float64 { return r.HitRatio }, policysim.Independent, policysim.LowerBound),
		plot(6, "Loads per unique sample against cache size", "times", 0, func(r *policysim.Row) float64 { return r.PerUnique }))
	t := Table{Title: "All policies", Head: []string{"policy", "cache", "share", "hit ratio", "miss ratio", "byte misses", "loads", "per unique", "over the bound", "evicted", "Jain"}}
	for _, r := range p.Rows {
		t.Rows = append(t.Rows, []string{r.Policy, fmt.Sprint(r.Cache), fmt.Sprintf("%.1f%%", 100*r.Share), fmt.Sprintf("%.4f", r.HitRatio), fmt.Sprintf("%.4f", r.MissRatio), fmt.Sprintf("%.4f", r.ByteMiss),
			fmt.Sprint(r.Loads), fmt.Sprintf("%.3f", r.PerUnique), fmt.Sprintf("%.3f", r.OverBound), fmt.Sprint(r.Evicted), fmt.Sprintf("%.3f", r.Jain)})
	}
	n.Tables = append(n.Tables, t)
	n.systems(&p)
	return nil
}

// systems shows whole systems on the same demand.
func (n *Named) systems(p *Policy) {
	if len(p.Systems) == 0 {
		return
	}
	rows := p.Systems
	last := rows[len(rows)-1].Cache
	loads := Plot{Title: "Systems: time until all jobs are done", Y: "seconds, virtual", Series: []Series{{Name: "makespan"}}}
	fair := Plot{Number: 11, Title: "Systems: slow-down of the fastest and the slowest job", Y: "times alone", Series: []Series{{Name: "least"}, {Name: "most"}}}
	t := Table{Title: "Systems, re-implemented from their descriptions", Head: []string{"system", "cache", "loads", "preparations", "delivered", "hit ratio", "coverage", "repeated", "exactly once", "makespan", "Jain"}}
	for _, r := range rows {
		if r.Unsupported != "" {
			t.Rows = append(t.Rows, []string{r.System, fmt.Sprint(r.Cache), "unsupported: " + r.Unsupported})
			continue
		}
		once := "no"
		if r.ExactlyOnce {
			once = "yes"
		}
		t.Rows = append(t.Rows, []string{r.System, fmt.Sprint(r.Cache), fmt.Sprint(r.Loads), fmt.Sprint(r.Preps), fmt.Sprint(r.Delivered), fmt.Sprintf("%.4f", r.HitRatio), fmt.Sprintf("%.3f", r.Coverage),
			fmt.Sprint(r.Repeated), once, fmt.Sprintf("%.3f s", r.Makespan), fmt.Sprintf("%.3f", r.Jain)})
		if r.Cache == last && len(r.SlowDown) > 0 {
			loads.Bars, fair.Bars = append(loads.Bars, r.System), append(fair.Bars, r.System)
			loads.Series[0].Points = append(loads.Series[0].Points, [2]float64{0, r.Makespan})
			fair.Series[0].Points = append(fair.Series[0].Points, [2]float64{0, slices.Min(r.SlowDown)})
			fair.Series[1].Points = append(fair.Series[1].Points, [2]float64{0, slices.Max(r.SlowDown)})
		}
	}
	n.Plots = append(n.Plots, loads, fair)
	n.Tables = append(n.Tables, t)
}

// sampler shows the JSON of larder bench sampler.
func (n *Named) sampler() error {
	var s struct {
		Policy string  `json:"policy"`
		Loads  int     `json:"loads"`
		Bound  int     `json:"loads_lower_bound"`
		Ratio  float64 `json:"ratio"`
		Exact  bool    `json:"exactly_once"`
		Jobs   []struct {
			Name    string   `json:"name"`
			Order   string   `json:"order"`
			Loads   int      `json:"loads"`
			Overlap *float64 `json:"epoch_overlap_q1"`
			Rho     *float64 `json:"spearman_rho"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal(n.Raw, &s); err != nil {
		return err
	}
	n.Title = "Sampler: " + n.Name
	once := "exactly once in every epoch"
	if !s.Exact {
		once = "NOT exactly once"
	}
	n.Text = append(n.Text, fmt.Sprintf("Policy %s: %d loads, %.3f of the lower bound %d; %s.", s.Policy, s.Loads, s.Ratio, s.Bound, once))
	p := Plot{Number: 12, Title: "Orders of consecutive epochs", X: "job", Y: "share or correlation", Series: []Series{{Name: "overlap of first quarters"}, {Name: "rank correlation"}}}
	t := Table{Head: []string{"job", "order", "loads", "overlap of first quarters (independent: .25)", "rank correlation (independent: 0)"}}
	figure := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return fmt.Sprintf("%.3f", *v)
	}
	for _, j := range s.Jobs {
		t.Rows = append(t.Rows, []string{j.Name, j.Order, fmt.Sprint(j.Loads), figure(j.Overlap), figure(j.Rho)})
		if j.Overlap != nil && j.Rho != nil {
			p.Bars = append(p.Bars, j.Name)
			p.Series[0].Points = append(p.Series[0].Points, [2]float64{0, *j.Overlap})
			p.Series[1].Points = append(p.Series[1].Points, [2]float64{0, max(0, *j.Rho)})
		}
	}
	if len(p.Bars) > 0 {
		n.Plots = append(n.Plots, p)
	}
	n.Tables = append(n.Tables, t)
	return nil
}

// speedUps shows what systems gain over independent loaders by the number of jobs, where results of policy differ in that alone: the same
// family of demand, as many samples, the same cache.
func speedUps(results []Named) []Named {
	type run struct {
		jobs int
		p    *Policy
	}
	groups, order := map[string][]run{}, []string{}
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
		if !slices.ContainsFunc(groups[key], func(r run) bool { return r.jobs == len(p.Jobs) }) {
			groups[key] = append(groups[key], run{len(p.Jobs), &p})
		}
	}
	var out []Named
	for _, key := range order {
		g := groups[key]
		if len(g) < 2 {
			continue
		}
		slices.SortFunc(g, func(a, b run) int { return a.jobs - b.jobs })
		cache := g[0].p.Systems[len(g[0].p.Systems)-1].Cache
		find := func(p *Policy, system string) float64 {
			for _, r := range p.Systems {
				if r.System == system && r.Cache == cache && r.Unsupported == "" {
					return r.Makespan
				}
			}
			return 0
		}
		plot := Plot{Number: 5, Title: fmt.Sprintf("Speed-up over independent loaders, %s, cache %d", key, cache), X: "jobs", Y: "times"}
		for _, row := range g[0].p.Systems {
			if row.Cache != cache || row.System == "independent" {
				continue
			}
			s := Series{Name: row.System}
			for _, r := range g {
				if alone, own := find(r.p, "independent"), find(r.p, row.System); alone > 0 && own > 0 {
					s.Points = append(s.Points, [2]float64{float64(r.jobs), alone / own})
				}
			}
			plot.Series = append(plot.Series, s)
		}
		n := Named{Name: "speed-up: " + key}
		n.Title, n.Kind, n.Plots = "Systems by the number of jobs", "systems", []Plot{plot}
		n.Text = []string{"Virtual time until all jobs are done, of independent loaders over that of each system, from the results above."}
		out = append(out, n)
	}
	return out
}
