package report

import (
	"bytes"
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
)

// look is what a browser found on a page.
type look struct {
	Pictures int      `json:"pictures"`
	Numbers  []int    `json:"numbers"` // of the fourteen, in order
	Empty    []string `json:"empty"`   // pictures without a size, or without a mark
	Outside  []string `json:"outside"` // text that leaves its picture
	Overlap  []string `json:"overlap"` // text on text
	Faint    []string `json:"faint"`   // text that can hardly be told from the page
	Wider    bool     `json:"wider"`   // the page scrolls sideways
	Saved    bool     `json:"saved"`   // the raw data can be saved
}

const probe = `<script>addEventListener("load", () => {
 const r = {pictures: 0, numbers: [], empty: [], outside: [], overlap: [], faint: [], wider: document.documentElement.scrollWidth > innerWidth, saved: document.getElementById("save").href.length > 1000};
 const light = c => { const [a, b, d] = c.match(/[0-9.]+/g).map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * a + .7152 * b + .0722 * d };
 const paper = light(getComputedStyle(document.body).backgroundColor);
 const contrast = c => { const l = light(c); return (Math.max(l, paper) + .05) / (Math.min(l, paper) + .05) };
 for (const h of document.querySelectorAll("figure h3")) { const m = h.textContent.match(/^([0-9]+)\. /); if (m && !r.numbers.includes(+m[1])) r.numbers.push(+m[1]) }
 r.numbers.sort((a, b) => a - b);
 for (const svg of document.querySelectorAll("svg")) {
  r.pictures++;
  const name = svg.getAttribute("aria-label"), box = svg.viewBox.baseVal;
  if (svg.getBoundingClientRect().height < 60 || !svg.querySelector("polyline,rect,circle") || svg.innerHTML.includes("NaN")) r.empty.push(name);
  const at = [...svg.querySelectorAll("text")].map(e => ({e, b: e.getBBox()})).filter(t => t.b.width > 0);
  for (const {e, b} of at) {
   if (b.x < -1 || b.y < -1 || b.x + b.width > box.width + 1 || b.y + b.height > box.height + 1) r.outside.push(name + ": " + e.textContent);
   if (!e.classList.contains("mid") && contrast(getComputedStyle(e).fill) < 4) r.faint.push(name + ": " + e.textContent);
  }
  const free = at.filter(t => !t.e.classList.contains("mid"));
  for (let i = 0; i < free.length; i++) for (let k = i + 1; k < free.length; k++) {
   const a = free[i].b, b = free[k].b;
   const w = Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x), h = Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y);
   if (w > 2 && h > 5) r.overlap.push(name + ": " + free[i].e.textContent + " / " + free[k].e.textContent);
  }
 }
 document.title = JSON.stringify(r);
})</script></body>`

// browser is Chromium. In CI there must be one; elsewhere the test is skipped and says what it needs.
func browser(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-headless-shell", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatal("there is no Chromium: internal/tools/setup.sh installs it")
	}
	t.Skip("there is no Chromium to look at the report with (Debian: apt-get install chromium-headless-shell)")
	return ""
}

// show opens a page and tells what it looks like, and what the console said.
func show(t *testing.T, page string, dark bool) (look, string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "report.html")
	if err := os.WriteFile(path, []byte(strings.Replace(page, "</body>", probe, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions", "--no-first-run", "--window-size=1280,900", "--user-data-dir=" + filepath.Join(dir, "profile"),
		"--enable-logging=stderr", "--v=0", "--dump-dom"}
	if dark {
		args = append(args, "--blink-settings=preferredColorScheme=0")
	}
	cmd := exec.CommandContext(t.Context(), browser(t), append(args, "file://"+path)...)
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if os.Getenv("CI") != "" {
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
	for name, bad := range map[string][]string{"are empty": l.Empty, "leave their picture": l.Outside, "lie on each other": l.Overlap, "can hardly be read": l.Faint} {
		if len(bad) > 0 {
			t.Errorf("%s: %d %s: %q", what, len(bad), name, bad[:min(len(bad), 8)])
		}
	}
	if l.Wider || !l.Saved {
		t.Errorf("%s: it scrolls sideways: %v, its data can be saved: %v", what, l.Wider, l.Saved)
	}
}

// A real browser shows the report, light and dark: every picture has a size, its text can be read, and the console stays silent.
func TestReportInBrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
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
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	browser(t)
	bad := strings.Replace(string(page(t)), `<h2>Raw data</h2>`, `<img src="http://127.0.0.1:9/x.png"><div style="width:3000px">x</div><svg viewBox="0 0 100 70" aria-label="faulty" style="height:70px"><text x="90" y="20" fill="#fff">far outside</text><text x="10" y="40">one</text><text x="12" y="42">two</text></svg><h2>Raw data</h2>`, 1)
	l, console := show(t, bad, false)
	if len(l.Empty) != 1 || len(l.Outside) != 1 || len(l.Overlap) != 1 || !l.Wider || !strings.Contains(console, "127.0.0.1") {
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
	for _, w := range []string{"In short", "Policies: aligned", "Policies: staggered", "Policies: zipf", "Sampler: ", "Joader: what a late job costs", "seed of the trace", "xxhash64 of the scenario", "processor"} {
		if !bytes.Contains(raw, []byte(w)) {
			t.Errorf("%q is missing", w)
		}
	}
}
