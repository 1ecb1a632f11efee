package report

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"larder/internal/testenv/lane"
)

// look is what a browser found on a page.
type look struct {
	Pictures int      `json:"pictures"`
	Numbers  []int    `json:"numbers"` // of the fourteen, in order
	Empty    []string `json:"empty"`   // pictures without a size, or without a mark
	Outside  []string `json:"outside"` // text that leaves its picture
	Overlap  []string `json:"overlap"` // text on text
	Faint    []string `json:"faint"`   // text that hardly stands out from the page
	Wider    bool     `json:"wider"`   // the page scrolls sideways
	Saved    bool     `json:"saved"`   // the raw data can be saved
}

//go:embed testdata/probe.js
var probe string

// browser is Chromium. Without one the test is skipped and says what it needs, or fails with LARDER_REQUIRE_BROWSER=1.
func browser(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-headless-shell", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	const missing = "there is no Chromium to look at the report with: on Debian make setup-nightly installs " +
		"chromium-headless-shell"
	if os.Getenv("LARDER_REQUIRE_BROWSER") != "" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// show opens a page and returns what it looks like, and what the console printed.
func show(t *testing.T, page string, dark bool) (look, string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "report.html")
	probed := strings.Replace(page, "</body>", "<script>"+probe+"</script></body>", 1)
	if err := os.WriteFile(path, []byte(probed), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
		"--no-first-run", "--window-size=1280,900", "--user-data-dir=" + filepath.Join(dir, "profile"),
		"--enable-logging=stderr", "--v=0", "--dump-dom"}
	if dark {
		args = append(args, "--blink-settings=preferredColorScheme=0")
	}
	cmd := exec.CommandContext(t.Context(), browser(t), append(args, "file://"+path)...)
	cmd.WaitDelay = time.Minute
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if os.Getenv("LARDER_REQUIRE_BROWSER") != "" {
			t.Fatalf("Chromium: %v\n%s", err, errs.String())
		}
		t.Skipf("Chromium cannot run here: %v\n%s", err, errs.String())
	}
	m := regexp.MustCompile(`(?s)<title>(.*?)</title>`).FindStringSubmatch(out.String())
	var l look
	if m == nil || json.Unmarshal([]byte(html.UnescapeString(m[1])), &l) != nil {
		t.Fatalf("the page's own script did not run: %.400s\n%s", out.String(), errs.String())
	}
	console := ""
	if i := strings.Index(errs.String(), "CONSOLE"); i >= 0 {
		console = errs.String()[i:]
	}
	return l, console
}

func (l *look) check(t *testing.T, what string) {
	t.Helper()
	for name, bad := range map[string][]string{"are empty": l.Empty, "leave their picture": l.Outside,
		"lie on each other": l.Overlap, "can hardly be read": l.Faint} {
		if len(bad) > 0 {
			t.Errorf("%s: %d %s: %q", what, len(bad), name, bad[:min(len(bad), 8)])
		}
	}
	if l.Wider || !l.Saved {
		t.Errorf("%s: it scrolls sideways: %v, its data can be saved: %v", what, l.Wider, l.Saved)
	}
}

// A real browser shows the report, light and dark: every picture has a size, its text can be read, and the console
// stays silent.
func TestReportInBrowser(t *testing.T) {
	lane.OnlyNightly(t, "TestReportIsOneFile and TestOneCacheSizeIsDrawnAsBars")
	browser(t)
	text := string(page(t))
	for _, dark := range []bool{false, true} {
		l, console := show(t, text, dark)
		what := map[bool]string{false: "light", true: "dark"}[dark]
		l.check(t, what)
		if l.Pictures != pictures || !slices.Equal(l.Numbers, []int{1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14}) {
			t.Errorf("%s: %d pictures, of the fourteen %v", what, l.Pictures, l.Numbers)
		}
		if console != "" {
			t.Errorf("%s: console: %s", what, console)
		}
	}
}

// The look itself sees what is wrong.
func TestBrowserSeesFaults(t *testing.T) {
	lane.OnlyNightly(t, "TestReportIsOneFile and TestOneCacheSizeIsDrawnAsBars")
	browser(t)
	bad := strings.Replace(string(page(t)), `<h2>Raw data</h2>`,
		`<img src="http://127.0.0.1:9/x.png"><div style="width:3000px">x</div>`+
			`<svg viewBox="0 0 100 70" aria-label="faulty" style="height:70px">`+
			`<text x="90" y="20" fill="#fff">far outside</text>`+
			`<text x="10" y="40">one</text><text x="12" y="42">two</text></svg><h2>Raw data</h2>`, 1)
	l, console := show(t, bad, false)
	if len(l.Empty) != 1 || len(l.Outside) != 1 || len(l.Overlap) != 1 || !l.Wider ||
		!strings.Contains(console, "127.0.0.1") {
		t.Errorf("%+v, console %q", l, console)
	}
}

// What make bench-smoke wrote (LARDER_REPORT names the file) has its pictures and sections.
func TestSmokeReport(t *testing.T) {
	path := os.Getenv("LARDER_REPORT")
	if path == "" {
		t.Skip("LARDER_REPORT names no report: make test-report makes one and looks at it")
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	l, console := show(t, string(raw), false)
	l.check(t, path)
	if console != "" {
		t.Errorf("console: %s", console)
	}
	want := []int{3, 5, 6, 11, 12} // those of policies, systems and samplers
	if bytes.Contains(raw, []byte(">Run: ")) {
		want = append(want, 1, 2, 7, 8, 9) // those of simulated runs
	}
	for _, n := range want {
		if !slices.Contains(l.Numbers, n) {
			t.Errorf("picture %d, %s, is missing", n, Wanted[n-1].Title)
		}
	}
	if l.Pictures < 40 {
		t.Errorf("%d pictures", l.Pictures)
	}
	for _, w := range []string{"In short", "Policies: aligned", "Policies: staggered", "Policies: zipf", "Sampler: ",
		"Joader: what a late job costs", "seed of the trace", "xxhash64 of the scenario", "processor"} {
		if !bytes.Contains(raw, []byte(w)) {
			t.Errorf("%q is missing", w)
		}
	}
}
