package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/internal/xrand"
)

func TestCompare(t *testing.T) {
	before := `{"kind":"x","seed":1,"rows":[{"policy":"lru","hits":100,"loads":50,"seconds":[10,11,10.5,10.2,10.4]},
{"policy":"need","hits":7,"note":3,"job_hit_ratios":[0.5,0.5]}],"gone":1}`
	after := `{"kind":"x","seed":2,"rows":[{"policy":"need","hits":7,"note":4,"job_hit_ratios":[0.5,0.25]},
{"policy":"lru","hits":90,"loads":51,"seconds":[7,7.1,7.2,7.05,7.3]}],"new":[1,2]}`
	c, err := Compare(Output{"a", []byte(before)}, Output{"b", []byte(after)}, .05, 1)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"rows[lru]/hits": "worse", "rows[lru]/loads": "higher", "rows[lru]/seconds": "better", "rows[need]/hits": "same",
		"rows[need]/note":              "higher",
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
		if _, err := Compare(Output{"a", []byte(before)}, Output{"b", []byte(bad)}, .05, 1); !errs.Is(err, errs.Invalid) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
	_, err = Compare(Output{"a", []byte(before)}, Output{"b", []byte(after)}, math.NaN(), 1)
	if !errs.Is(err, errs.Invalid) {
		t.Errorf("NaN: %v", err)
	}
}

// Runs of live results, of make bench and of sweeps, and passes are compared as repeats; what they say of themselves is
// not compared again.
func TestCompareRepeats(t *testing.T) {
	run := func(source, label string, reads int, p99 float64) string {
		return fmt.Sprintf(
			`{"source":%q,"label":%q,"counts":{"source_reads":%d},"wall_seconds":%v,"jobs":[{"name":"a","wait":{"p99":%v,
"histogram_of_powers_of_2_us":[1,2]}}]}`, source, label, reads, p99*7, p99)
	}
	doc := func(f float64) string {
		runs := []string{run("simulated", "", 100, 3)}
		for i := range 8 {
			runs = append(runs, run("measured", fmt.Sprintf("repeat %d", i+1), 100+i%3, (3+.1*float64(i%4))*f))
		}
		return `{"kind":"live","facts":{"processor":"P","larder":"` + fmt.Sprint(f) + `"},"runs":[` + strings.Join(runs,
			",") + `],"errors":[{"what":"x","error":1}]}`
	}
	c, err := Compare(Output{"a", []byte(doc(1))}, Output{"b", []byte(doc(.5))}, .05, 1)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range c.Metrics {
		got[m.Path] = fmt.Sprintf("%s of %d", m.Verdict, m.N[1])
	}
	want := map[string]string{"runs[simulated]/counts/source_reads": "same of 1",
		"runs[simulated]/jobs[a]/wait/p99": "same of 1", "runs[measured]/counts/source_reads": "same of 8",
		"runs[measured]/jobs[a]/wait/p99": "better of 8"}
	if !maps.Equal(got, want) || fmt.Sprint(c.Notes) != "[larder: 1 before, 0.5 after]" {
		t.Errorf("%v, notes %v", got, c.Notes)
	}
	for _, name := range []string{"bars", "prep", "tiers"} {
		raw, err := os.ReadFile("testdata/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		c, err := Compare(Output{"a", raw}, Output{"b", raw}, .05, 1)
		if err != nil || c.Same != len(c.Metrics) {
			t.Errorf("%s: %+v %v", name, c, err)
			continue
		}
		several := 0
		for _, m := range c.Metrics {
			if m.N[0] == 3 {
				several++
			}
		}
		if several < 2 {
			t.Errorf("%s: only %d of %d metrics have repeats", name, several, len(c.Metrics))
		}
	}
	live, prep := Output{"a", []byte(`{"kind":"live","x":1}`)}, Output{"b", []byte(`{"kind":"prep","x":1}`)}
	if _, err := Compare(live, prep, .05, 1); !errs.Is(err, errs.Invalid) || !strings.Contains(err.Error(), `"prep"`) {
		t.Errorf("two kinds: %v", err)
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
		c, err := Compare(Output{"a", a}, Output{"b", b}, .05, 1)
		if err != nil {
			if errs.From(err).Reason == errs.Internal {
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
