package demo

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"larder/internal/errs"
	"larder/internal/xrand"
)

// made returns a result as a demo of n jobs could have found it.
func made(n, epochs int) *Result {
	r := &Result{
		Version: "v0 <test>", Command: "larder demo --jobs 4", Started: time.Unix(1.8e9, 0), Epochs: epochs, Share: "none",
		Seconds:     41,
		MemoryBytes: 512 << 20, Unique: 2000, Machine: Machine{"linux/amd64", "A & B processor", 2, "libjpeg-turbo"},
		Dataset: Dataset{Samples: 2000, Classes: 10, Bytes: 96 << 20, MinBytes: 30100, MaxBytes: 119000, Decoded: 900 << 20},
	}
	rnd := xrand.New(1)
	for i, run := range []*RunStats{&r.Unshared, &r.Shared} {
		run.Daemons = []int{n, 1}[i]
		for j, plan := range Plan(n, 2000) {
			job := JobRun{Name: plan.Name, Subset: plan.Subset, Samples: 1000 + 50*j, Batch: plan.Batch,
				StepMillis: float64(plan.Step / time.Millisecond)}
			t, rows := 0.0, int64(0)
			for range epochs {
				begin := t
				for d := 0; d < job.Samples; d += plan.Batch {
					t += float64(plan.Batch) / (rnd.Uniform(180, 260) * float64(1+2*i))
					rows += int64(plan.Batch)
					job.Points = append(job.Points, Point{t, rows})
				}
				job.Epochs = append(job.Epochs, EpochRun{begin, t})
			}
			job.Seconds, job.WaitSeconds = t, t*rnd.Uniform(.2, .8)
			run.Seconds = max(run.Seconds, t)
			run.Jobs = append(run.Jobs, job)
			r.Deliveries += i * job.Samples * epochs
		}
		run.SourceReads, run.SourceBytes = uint64(8000-5900*i), uint64(300<<20)>>i
		run.Decodes, run.Augments, run.Delivered = uint64(8800-6500*i), 9400, 9400
		run.CPUSeconds, run.PeakRSS = 28-float64(17*i), 600<<20
		for t := 0.0; t < run.Seconds; t += .25 {
			run.Counters = append(run.Counters, Counted{t, 0, uint64(float64(run.Decodes) * math.Sqrt(t/run.Seconds))})
		}
	}
	r.Audit = Audit{JobEpochs: 2 * n * epochs, Good: 2 * n * epochs, Pictures: 18800}
	r.judge()
	return r
}

// The report must open anywhere, at any time: nothing from outside, no script, well-formed pictures.
func TestReportIsSelfContained(t *testing.T) {
	for _, n := range []int{2, 4, 16} {
		b, err := renderReport(made(n, 2))
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"http:", "https:", "src=", "href=", "@import", "url(", "<script", "ZgotmplZ", "NaN",
			"Inf", "<no value>"} {
			if i := bytes.Index(b, []byte(bad)); i >= 0 {
				t.Errorf("%d jobs: the report has %q: …%s…", n, bad, b[max(0, i-60):min(len(b), i+60)])
			}
		}
		pictures := regexp.MustCompile(`(?s)<svg viewBox="0 0 860.*?</svg>`).FindAll(b, -1)
		if len(pictures) != 5 {
			t.Errorf("%d jobs: %d plots, want 5", n, len(pictures))
		}
		for _, p := range pictures {
			d := xml.NewDecoder(bytes.NewReader(p))
			for {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%d jobs: a plot is not well-formed: %v", n, err)
				}
			}
		}
		for _, want := range []string{"A &amp; B processor", "v0 &lt;test&gt;", "prefers-color-scheme: dark", "label &lt; 6",
			"3.8x"} {
			if !bytes.Contains(b, []byte(want)) {
				t.Errorf("%d jobs: the report lacks %q", n, want)
			}
		}
	}
}

// A demo in which nothing went well must still give a report, and must not call it good.
func TestReportOfABadRun(t *testing.T) {
	r := made(4, 1)
	r.Unshared, r.Shared = RunStats{Jobs: make([]JobRun, 4)}, RunStats{Jobs: make([]JobRun, 4)}
	r.Shared.Jobs[0].Name = `<b>"x"</b>`
	r.Unique, r.Deliveries = 0, 0
	r.Audit = Audit{JobEpochs: 8, Problems: []string{"shared, <lr>, epoch 1: 3 samples never came"}}
	r.Verdict = nil
	r.judge()
	if r.OK || r.Saved {
		t.Error("a run that saved nothing is called good")
	}
	b, err := renderReport(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"NaN", "Inf", "<b>\"x\"", "<lr>"} {
		if bytes.Contains(b, []byte(bad)) {
			t.Errorf("the report has %q", bad)
		}
	}
	if !bytes.Contains(b, []byte("NO, 0 of 8 job-epochs")) {
		t.Error("the report hides that samples were lost")
	}
}

func TestWriteReportReplacesWholeFilesOnly(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.html")
	for range 2 {
		if err := writeReport(path, made(4, 2)); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Fatalf("%v is left, %v", left, err)
	}
	if keep := os.Getenv("LARDER_KEEP_REPORT"); keep != "" { // for people who change the template
		if err := writeReport(keep, made(4, 2)); err != nil {
			t.Fatal(err)
		}
	}
	err = writeReport(filepath.Join(dir, "none", "r.html"), made(4, 2))
	if f := errs.From(err); err == nil || !strings.Contains(f.Hint, "--report") {
		t.Fatalf("got %v", err)
	}
	if err := writable(filepath.Join(dir, "none", "r.html")); err == nil {
		t.Error("a report that cannot be written is found out too late")
	}
	if err := writable(path); err != nil {
		t.Error(err)
	}
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name      string
		change    func(*Result)
		ok, saved bool
		say       string
	}{
		{"good", func(*Result) {}, true, true, "Sharing did the same job"},
		{"not faster", func(r *Result) { r.Shared.Seconds = r.Unshared.Seconds * .99 }, true, true,
			"did not make the jobs faster"},
		{"slower", func(r *Result) { r.Shared.Seconds = r.Unshared.Seconds * 1.2 }, true, true, "made the jobs slower"},
		{"no fewer decodes", func(r *Result) { r.Shared.Decodes = r.Unshared.Decodes }, false, false,
			"Sharing saved nothing"},
		{"no fewer reads", func(r *Result) { r.Shared.SourceReads = r.Unshared.SourceReads }, false, false,
			"Sharing saved nothing"},
		{"a lost sample", func(r *Result) { r.Audit.Good-- }, false, true, "Sharing did the same job"},
		{"nothing was checked", func(r *Result) { r.Audit = Audit{} }, false, true, "Sharing did the same job"},
		{"a busy machine", func(r *Result) { r.Unshared.OthersCPU = .4 }, true, true, "up to 40% of the machine's"},
		{"repeats", func(r *Result) { r.Audit.Repeats = 7 }, true, true, "7 of 18,800 pictures"},
	} {
		r := made(4, 2)
		c.change(r)
		r.Verdict = nil
		r.judge()
		if r.OK != c.ok || r.Saved != c.saved {
			t.Errorf("%s: OK %v, saved %v", c.name, r.OK, r.Saved)
		}
		if got := strings.Join(r.Verdict, " "); !strings.Contains(got, c.say) {
			t.Errorf("%s: says %q, want %q in it", c.name, got, c.say)
		}
		var text strings.Builder
		if err := r.WriteText(&text); err != nil {
			t.Fatal(err)
		}
		if want := map[bool]string{true: "epoch: yes, ", false: "epoch: NO, "}[r.Audit.OK()]; !strings.Contains(text.String(),
			want) {
			t.Errorf("%s: the table lacks %q:\n%s", c.name, want, text.String())
		}
	}
}

// The area under a throughput line is the number of samples: the plot may smooth but not invent.
func TestRatesKeepTheSamples(t *testing.T) {
	rnd := xrand.New(9)
	for range 200 {
		var points []Point
		var at float64
		var rows int64
		for range 1 + rnd.IntN(60) {
			at += rnd.Uniform(0, .7)
			rows += int64(rnd.IntN(64))
			points = append(points, Point{at, rows})
		}
		window := rnd.Uniform(.1, 2)
		line := rates(points, at+rnd.Float64(), window)
		var area float64
		for i, p := range line {
			if p[1] < 0 {
				t.Fatalf("a rate of %f", p[1])
			}
			w := window
			if i == len(line)-1 {
				w = min(window, at-float64(i)*window)
			}
			area += p[1] * w
		}
		// A last sliver of less than a quarter of a window may be left out.
		var sliver float64
		for i := range points {
			if points[i].Seconds > at-window/4 {
				sliver = max(sliver, float64(rows))
				if i > 0 {
					sliver = float64(rows - points[i-1].Rows)
				}
				break
			}
		}
		if area > float64(rows)+1e-6 || area < float64(rows)-sliver-1e-6 {
			t.Fatalf("the line says %.2f samples, %d came (last sliver %.0f)", area, rows, sliver)
		}
	}
}

func TestParseStat(t *testing.T) {
	busy, total := parseStat("cpu  100 20 30 400 50 6 7 8 9 10\ncpu0 1 2 3")
	if busy != 1710*time.Millisecond || total != 6210*time.Millisecond {
		t.Errorf("busy %v of %v", busy, total)
	}
	for _, bad := range []string{"", "cpu", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8 9"} {
		if busy, total := parseStat(bad); busy != 0 || total != 0 {
			t.Errorf("%q: %v of %v", bad, busy, total)
		}
	}
	if got := (others{}).share(1 << 62); got != 0 {
		t.Errorf("children busier than the machine: %f", got)
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0", 12: "12", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1234: "-1,234",
		-123: "-123"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %s", n, got)
		}
	}
}
