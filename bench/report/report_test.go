package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"larder/bench/policysim"
	"larder/bench/trace"
	"larder/internal/fault"
	"larder/internal/xrand"
)

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
	raw, err := json.Marshal(Policy{Kind: "policy", Report: *r, Systems: []SystemRow{{System: "coordl", Cache: 10, Loads: 4, Makespan: 2, SlowDown: []float64{1, 2}}, {System: "quiver", Cache: 10, Unsupported: "overlap"}}})
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

func page(t testing.TB) []byte {
	t.Helper()
	sampler, err := Parse("sampler.json", []byte(`{"policy":"need","loads":5,"loads_lower_bound":5,"loads_lower_bound_windows":4,"ratio":1,"exactly_once":true,"jobs":[{"name":"a<b","order":"epoch","loads":5,"epoch_overlap_q1":0.25,"spearman_rho":-0.01},{"name":"b","order":"epoch","loads":0}]}`))
	if err != nil {
		t.Fatal(err)
	}
	live, err := Parse("live.json", []byte(`{"kind":"live","title":"Live","facts":{"seed":"3"},"plots":[{"number":1,"title":"Throughput","x":"s","y":"1/s","series":[{"name":"a","points":[[0,1],[1,2],[2,0]]}]},{"number":8,"title":"CDF","log":true,"series":[{"name":"a","points":[[0.001,0.1],[0.1,0.9]]},{"name":"none","points":[]}]}],"tables":[{"head":["x"],"rows":[["1"]]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Write(&b, "Report "+hostile, []Named{result(t, "crossed "+hostile), *sampler, *live}, map[string]string{"cores": "2"}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// One file, nothing fetched, every picture there, the raw data intact, and no name that becomes markup.
func TestReportIsOneFile(t *testing.T) {
	p := string(page(t))
	if n := strings.Count(p, "<svg "); n != 7 {
		t.Errorf("%d pictures, want 7", n)
	}
	if strings.Contains(p, "<script>alert") || strings.Contains(p, "<img") {
		t.Error("a name became markup")
	}
	if m := regexp.MustCompile(`(?:src|href)="(?:https?:)?//[^"]*"|url\(|@import`).FindString(p); m != "" {
		t.Errorf("it fetches %s", m)
	}
	raw := regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`).FindStringSubmatch(p)
	var data map[string]json.RawMessage
	if raw == nil || json.Unmarshal([]byte(raw[1]), &data) != nil || len(data) != 3 {
		t.Fatal("the raw data is not there")
	}
	var back Policy
	if err := json.Unmarshal(data["policy.json"], &back); err != nil || !strings.HasSuffix(back.Trace, hostile) || len(back.Rows) == 0 {
		t.Errorf("the raw data is not what went in: %v", err)
	}
	for _, w := range []string{"3. loads against cache size", `<a href="#s0">below</a>`, "not in these results; larder bench live", "unsupported: overlap"} {
		if !strings.Contains(p, w) {
			t.Errorf("%q is missing", w)
		}
	}
}

// Results that differ in the number of jobs alone make the picture of speed-ups.
func TestSpeedUps(t *testing.T) {
	var results []Named
	for jobs, makespan := range map[int][2]float64{1: {10, 10}, 4: {40, 10}} {
		p := Policy{Kind: "policy", Report: policysim.Report{Trace: fmt.Sprintf("aligned, 5 samples, %d jobs", jobs), Unique: 5, Jobs: make([]string, jobs)},
			Systems: []SystemRow{{System: "independent", Cache: 2, Makespan: makespan[0]}, {System: "larder", Cache: 2, Makespan: makespan[1]}}}
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
	if len(got) != 1 || fmt.Sprint(got[0].Plots[0].Series) != "[{larder false [[1 1] [4 4]]}]" {
		t.Errorf("%+v", got)
	}
	if len(speedUps(results[:1])) != 0 {
		t.Error("one number of jobs is no curve")
	}
}

// A real browser shows it: no console error, and every picture has a size.
func TestReportInBrowser(t *testing.T) {
	var browser string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
		}
	}
	if browser == "" || testing.Short() {
		t.Skip("no Chromium, or -short")
	}
	dir := t.TempDir()
	probe := `<script>window.addEventListener("load",()=>{let s=[...document.querySelectorAll("svg")];let bad=s.filter(e=>e.getBoundingClientRect().height<100||e.querySelectorAll("polyline,rect").length==0).length;
let outside=[...document.querySelectorAll("svg polyline")].filter(e=>(e.getAttribute("points")||"").includes("NaN")).length;document.title="shown "+s.length+" bad "+bad+" nan "+outside+" save "+(document.getElementById("save").href.length>1000)})</script></body>`
	raw := strings.Replace(string(page(t)), "</body>", probe, 1)
	path := filepath.Join(dir, "report.html")
	if err := os.WriteFile(path, []byte(raw), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir="+filepath.Join(dir, "profile"), "--enable-logging=stderr", "--v=0", "--dump-dom", "file://"+path)
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Skipf("Chromium cannot run here: %v\n%s", err, errs.String())
	}
	if !strings.Contains(out.String(), "<title>shown 7 bad 0 nan 0 save true</title>") {
		t.Errorf("the page is shown as %s", regexp.MustCompile(`<title>.*</title>`).FindString(out.String()))
	}
	if i := strings.Index(errs.String(), "CONSOLE"); i >= 0 {
		t.Errorf("console: %s", errs.String()[i:])
	}
}

func TestReadDir(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := ReadDir(filepath.Join(dir, "none")); !fault.Is(err, fault.NotFound) {
		t.Errorf("no folder: %v", err)
	}
	if _, _, err := ReadDir(dir); !fault.Is(err, fault.NotFound) {
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
		if _, _, err := ReadDir(dir); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "d.json") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestCompare(t *testing.T) {
	before := `{"kind":"x","seed":1,"rows":[{"policy":"lru","hits":100,"loads":50,"seconds":[10,11,10.5,10.2,10.4]},{"policy":"need","hits":7,"note":3,"job_hit_ratios":[0.5,0.5]}],"gone":1}`
	after := `{"kind":"x","seed":2,"rows":[{"policy":"need","hits":7,"note":4,"job_hit_ratios":[0.5,0.25]},{"policy":"lru","hits":90,"loads":51,"seconds":[7,7.1,7.2,7.05,7.3]}],"new":[1,2]}`
	c, err := Compare("a", []byte(before), "b", []byte(after), .05, 1)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"rows[lru]/hits": "worse", "rows[lru]/loads": "higher", "rows[lru]/seconds": "better", "rows[need]/hits": "same", "rows[need]/note": "higher",
		"rows[need]/job_hit_ratios[0]": "same", "rows[need]/job_hit_ratios[1]": "lower",
	}
	for _, m := range c.Metrics {
		if want[m.Path] != m.Verdict {
			t.Errorf("%s: %s, want %q", m.Path, m.Verdict, want[m.Path])
		}
		delete(want, m.Path)
		if m.Path == "rows[lru]/seconds" && (m.Low > m.Ratio || m.High < m.Ratio || m.High >= 1 || m.Low < .5) {
			t.Errorf("interval %v to %v of %v", m.Low, m.High, m.Ratio)
		}
	}
	if len(want) > 0 || len(c.Only) != 2 || c.Better != 1 || c.Worse != 1 || c.Same != 2 || c.Changed != 3 {
		t.Errorf("missing %v; %+v", want, c)
	}
	for _, bad := range []string{"", "{", `{"a":"b"}`, strings.Repeat("[", 200) + strings.Repeat("]", 200)} {
		if _, err := Compare("a", []byte(before), "b", []byte(bad), .05, 1); !fault.Is(err, fault.Invalid) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
	if _, err := Compare("a", []byte(before), "b", []byte(after), math.NaN(), 1); !fault.Is(err, fault.Invalid) {
		t.Errorf("NaN: %v", err)
	}
}

// The interval holds the true ratio about as often as it says: 95 %, with samples of 15.
func TestBootstrapCovers(t *testing.T) {
	r := xrand.New(9)
	draw := func(mid float64) []float64 {
		v := make([]float64, 15)
		for i := range v {
			v[i] = mid * r.LogUniform(.8, 1.25)
		}
		return v
	}
	held, wrong := 0, 0
	const runs = 150
	for range runs {
		if low, high := interval(draw(10), draw(12), r); low <= 1.2 && 1.2 <= high {
			held++
		}
		if compare("seconds", draw(10), draw(10), .05, r).Verdict != "unclear" {
			wrong++
		}
	}
	if held < runs*88/100 {
		t.Errorf("the interval held the truth in %d of %d runs", held, runs)
	}
	if wrong > runs*10/100 {
		t.Errorf("a difference was claimed in %d of %d runs of equals", wrong, runs)
	}
}

func FuzzCompare(f *testing.F) {
	f.Add([]byte(`{"a":[1,2,3]}`), []byte(`{"a":[2,2,2]}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		c, err := Compare("a", a, "b", b, .05, 1)
		if err != nil {
			if fault.From(err).Reason == fault.Internal {
				t.Fatal(err)
			}
			return
		}
		for _, m := range c.Metrics {
			if math.IsNaN(m.Ratio) {
				t.Fatalf("%+v", m)
			}
		}
		if _, err := json.Marshal(c); err != nil {
			t.Fatal(err)
		}
		_, _ = Parse("a", a)
	})
}
