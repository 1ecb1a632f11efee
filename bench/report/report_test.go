package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"larder/bench/policysim"
	"larder/bench/trace"
	"larder/internal/errs"
	"larder/internal/plot"
)

// pictures is how many page has.
const pictures = 38

// result is a real result of larder bench policy.
func result(t testing.TB, name string) Named {
	t.Helper()
	a, err := trace.Generate(trace.Spec{Family: "crossed", Samples: 300, Jobs: 3, Epochs: 2, Seed: 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	a.Name = name
	r, err := policysim.Run(a, policysim.Config{Caches: []int64{10, 100, 200}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(Policy{Kind: "policy", Report: *r,
		Systems: []SystemRow{{System: "coordl", Cache: 10, Loads: 4, Makespan: 2, SlowDown: []float64{1, 2}},
			{System: "quiver", Cache: 10, Unsupported: "overlap"}}})
	if err != nil {
		t.Fatal(err)
	}
	n, err := Parse("policy.json", raw)
	if err != nil {
		t.Fatal(err)
	}
	return *n
}

const hostile = `</script><script>alert(1)</script><img src=x onerror=alert(2)>`

// page is a report of everything that a report can show.
func page(t testing.TB) []byte {
	t.Helper()
	results := []Named{result(t, "crossed "+hostile)}
	parse := func(name, text string) {
		n, err := Parse(name, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, *n)
	}
	parse("sampler.json",
		`{"policy":"need","loads":5,"loads_lower_bound":5,"loads_lower_bound_windows":4,"ratio":1,"exactly_once":true,
"jobs":[{"name":"a<b","order":"epoch","loads":5,"epoch_overlap_q1":0.25,"spearman_rho":-0.01,
"sd_of_mean_positions":0.03,"sd_by_chance":0.02,"lag_correlations":[{"lag":1,"correlation":0.25,"sd":0.01},
{"lag":2,"correlation":-0.125,"sd":0.01}],"cells":[{"size":4,"mean_position":0.51,"sd_of_mean":0.01},
{"size":1,"mean_position":0.5,"sd_of_mean":0}]},{"name":"b","order":"epoch","loads":0}]}`)
	parse("own.json", `{"kind":"other","title":"Own","facts":{"seed":"3"},
"text":["with `+"`code`"+` and < and an odd `+"`"+`"],"plots":[{"number":13,"title":"Recovery","x":"s","y":"1/s",
"marks":[{"x":1,"text":"killed"}],"series":[{"name":"a","points":[[0,1],[1,2],[2,0]],"low":[0.5,1,0],
"high":[1.5,2.5,0]}]},{"title":"logarithmic","log":true,"series":[{"name":"a","points":[[0.001,0.1],[0.1,0.9]]},
{"name":"none","points":[]}]}],"tables":[{"head":["x"],"rows":[["1"]]}]}`)
	for _, name := range []string{"live", "tiers", "bars", "prep", "recovery", "accuracy"} {
		raw, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		parse(name+".json", string(raw))
	}
	var b bytes.Buffer
	if err := Write(&b, "Report "+hostile, results, map[string]string{"cores": "2"}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// One file, nothing fetched, every picture there, the raw data intact, and no name that becomes markup.
func TestReportIsOneFile(t *testing.T) {
	p := string(page(t))
	if n := strings.Count(p, "<svg "); n != pictures {
		t.Errorf("%d pictures, want %d", n, pictures)
	}
	if strings.Contains(p, "<script>alert") || strings.Contains(p, "<img") {
		t.Error("a name became markup")
	}
	if m := regexp.MustCompile(`(?:src|href)="(?:https?:)?//[^"]*"|url\(|@import`).FindString(p); m != "" {
		t.Errorf("it fetches %s", m)
	}
	raw := regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`).FindStringSubmatch(p)
	var data map[string]json.RawMessage
	if raw == nil || json.Unmarshal([]byte(raw[1]), &data) != nil || len(data) != 9 {
		t.Fatal("the raw data is not there")
	}
	var back Policy
	if err := json.Unmarshal(data["policy.json"], &back); err != nil || !strings.HasSuffix(back.Trace, hostile) ||
		len(back.Rows) == 0 {
		t.Errorf("the raw data is not what went in: %v", err)
	}
	for _, w := range []string{"3. hits, loads and throughput against cache size", `<a href="#s0">below</a>`,
		"5. speed-up against the number of jobs</td><td>not in these results: larder bench policy --systems",
		"unsupported: overlap",
		"13. Recovery", "with <code>code</code> and &lt; and an odd `",
		"Fewest loads among policies that a daemon can have", "the split that larder chose",
		"TOO FAR", "1 counts of the simulator are further", "larder is, times as fast",
		"repeat 2 (not as fast again)", "13. Throughput around the death of the daemon, measured, repeat 1",
		"its successor is ready", "was not training", "2 in 4 epochs", "14. Validation accuracy by epoch",
		"no difference shown", "-50.0 to -35.0 %",
		"1 of 3 bars are met", "does not count: 92 % busy", "Not there: TensorSocket (no network)", "position KS (limit)",
		"bound, simulated",
		`<th class="n">sd of mean positions ÷ chance</th>`, `<td class="n">1.50</td><td class="">1: 0.250, 2: -0.125</td>`,
		`<td class="n">0.75</td><td class="">1: -0.375, 5: 0.062</td>`} {
		if !strings.Contains(p, w) {
			t.Errorf("%q is missing", w)
		}
	}
	for n := range Wanted {
		if !strings.Contains(p, fmt.Sprintf("<h3>%d. ", n+1)) && n+1 != 5 { // 5 takes several numbers of jobs
			t.Errorf("there is no picture %d", n+1)
		}
	}
}

// Results that differ in the number of jobs alone make the picture of speed-ups.
func TestSpeedUps(t *testing.T) {
	var results []Named
	for jobs, makespan := range map[int][2]float64{1: {10, 10}, 4: {40, 10}} {
		p := Policy{Kind: "policy", Report: policysim.Report{Trace: fmt.Sprintf("aligned, 5 samples, %d jobs", jobs),
			Unique: 5, Jobs: make([]string, jobs)},
			Systems: []SystemRow{{System: "independent", Cache: 2, Makespan: makespan[0], ExactlyOnce: true},
				{System: "larder", Cache: 2, Makespan: makespan[1], ExactlyOnce: true},
				{System: "window", Cache: 2, Makespan: makespan[1]}, {System: "quiver", Cache: 2, Unsupported: "no"}}}
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		n, err := Parse(fmt.Sprint(jobs), raw)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, *n)
	}
	got := speedUps(results)
	want := []plot.Series{{Name: "larder", Points: [][2]float64{{1, 1}, {4, 4}}},
		{Name: "window †", Points: [][2]float64{{1, 1}, {4, 4}}}, {Name: "quiver"}}
	if len(got) != 1 || !reflect.DeepEqual(got[0].Plots[0].Series, want) {
		t.Errorf("%+v", got)
	}
	if len(speedUps(results[:1])) != 0 {
		t.Error("one number of jobs is no curve")
	}
}

// One cache size makes bars of what would be lines of one point each; nothing is left out.
func TestOneCacheSizeIsDrawnAsBars(t *testing.T) {
	raw := `{"kind":"policy","trace":"t","jobs":["a"],"unique":10,"requests":40,"counted":40,"prescribed":true,
"unit_size":true,"rows":[
		{"policy":"independent","cache":2,"cache_share":0.2,"loads":40,"loads_per_unique":4,"loads_over_bound":2},
{"policy":"need","cache":2,"cache_share":0.2,"loads":30,"hit_ratio":0.25,"loads_per_unique":3,"loads_over_bound":1.5},
		{"policy":"lower-bound","cache":2,"cache_share":0.2,"loads":20,"hit_ratio":0.5,"loads_per_unique":2,
"loads_over_bound":1,"bound":true}],
		"systems":[{"system":"larder","cache":2,"delivered":40,"makespan_seconds":4,"exactly_once":true,"slow_downs":[1]},
{"system":"shade","cache":2,"delivered":40,"makespan_seconds":2,"slow_downs":[1]}]}`
	n := &Named{Name: "one", Raw: []byte(raw)}
	if err := n.policy(); err != nil {
		t.Fatal(err)
	}
	for title, want := range map[string]string{
		"Loads per unique sample, by policy: a cache of 20 %": "[lower-bound (bound) need independent] [[0 2] [0 3] [0 4]]",
		"Hits, by policy: a cache of 20 %":                    "[need] [[0 0.25]]",
		"Throughput, by system: cache of 2 samples":           "[larder shade †] [[0 10] [0 20]]",
	} {
		i := slices.IndexFunc(n.Plots, func(p plot.Plot) bool { return p.Title == title })
		if i < 0 {
			t.Errorf("no picture %q", title)
			continue
		}
		p := &n.Plots[i]
		if got := fmt.Sprint(p.Bars, p.Series[0].Points); got != want || len(p.Series) != 1 {
			t.Errorf("%s: %s, want %s", title, got, want)
		}
		if svg := string(p.SVG(styles)); strings.Count(svg, "<rect") != len(p.Bars) || strings.Contains(svg, "<polyline") {
			t.Errorf("%s: %s", title, svg)
		}
	}
}

// Throughput over time adds up to the samples of the job.
func TestThroughputOverTime(t *testing.T) {
	var j liveJob
	if err := json.Unmarshal(
		[]byte(`{"began_seconds":10,"first_batch_seconds":2,"throughput_over_time":[{"at_seconds":12,"samples_per_second":5},
{"at_seconds":13,"samples_per_second":100},{"at_seconds":40,"samples_per_second":10}]}`), &j); err != nil {
		t.Fatal(err)
	}
	got := j.overTime(48)
	sum := 0.0
	for _, p := range got {
		sum += p[1] // intervals of one second
	}
	if math.Abs(sum-(2*5+100+27*10)) > 1e-9 || got[0] != [2]float64{10, 5} || got[2] != [2]float64{12, 100} ||
		got[len(got)-1] != [2]float64{41, 0} {
		t.Errorf("%v, sum %v", got, sum)
	}
	if j.overTime(0) != nil {
		t.Error("a run without a length")
	}
}

func TestReadDir(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := ReadDir(filepath.Join(dir, "none")); !errs.Is(err, errs.NotFound) {
		t.Errorf("no folder: %v", err)
	}
	if _, _, err := ReadDir(dir); !errs.Is(err, errs.NotFound) {
		t.Errorf("an empty folder: %v", err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.json", `{"kind":"prep","title":"x"}`)
	write("b.json", `{"name":"package"}`)
	write("c.txt", `no`)

	got, skipped, err := ReadDir(dir)
	if err != nil || len(got) != 1 || fmt.Sprint(skipped) != "[b.json]" {
		t.Errorf("%d results, skipped %v, %v", len(got), skipped, err)
	}
	for _, bad := range []string{`{"kind":"prep"`, `{"kind":"prep"} {}`, `{"kind":"policy","rows":3}`, ``, `[]`} {
		write("d.json", bad)
		if _, _, err := ReadDir(dir); !errs.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "d.json") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
