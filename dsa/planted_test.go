//go:build !planted

package dsa

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"larder/internal/testenv/lane"
)

// patched says that this is the copy of the package into which bugs were planted. This file is not part of it.
const patched = false

// plant switches bugs on, which only the patched copy can.
func plant(_ *Sampler, b planted) {
	if b != (planted{}) {
		panic("this package has no planted bugs: the test must return early unless patched")
	}
}

// patches plants the bugs of testdata/planted/bugs.go, each behind its switch. Every old text occurs once in its file.
var patches = []struct{ file, old, new string }{
	{"sampler.go", "\tforgetting bool", "\tbugs *bugs\n\tforgetting bool"},
	{"sampler.go", "\treturn s\n}", "\tb := new(bugs)\n\ts.bugs, s.pool.bugs, s.draws.bugs, s.tapes.bugs = b, b, b, b\n" +
		"\ts.follows.bugs, s.strict.bugs, s.layouts.bugs = b, b, b\n\treturn s\n}"},
	{"pool.go", "type pool struct {", "type pool struct {\n\tbugs *bugs"},
	{"draw.go", "type draws struct {", "type draws struct {\n\tbugs *bugs"},
	{"tape.go", "type tapes struct {", "type tapes struct {\n\tbugs *bugs"},
	{"follow.go", "type follows struct {", "type follows struct {\n\tbugs *bugs"},
	{"strict.go", "type strictDraws struct {", "type strictDraws struct {\n\tbugs *bugs"},
	{"layout.go", "type layouts struct {", "type layouts struct {\n\tbugs *bugs"},

	{"layout.go", "g.whole = n == 1;", "g.whole = n == 1 || ly.bugs.oneCell;"},
	{"tape.go", "\tnamed, left := ts.count(j)\n",
		"\tif ts.bugs.oneCell {\n\t\treturn nil\n\t}\n\tnamed, left := ts.count(j)\n"},
	{"lists.go", "\tif len(g.lists[listAugmented]) > 0 {",
		"\tif d.bugs.tiesByID || d.bugs.firstBit {\n\t\treturn d.lowest(j, g)\n\t}\n\tif len(g.lists[listAugmented]) > 0 {"},
	{"draw.go", "\tfor range patience {",
		"\tif d.bugs.tiesByID || d.bugs.firstBit {\n\t\treturn d.drawLowest(j, r, tile)\n\t}\n\tfor range patience {"},
	{"smallcell.go", "\t\tcase k > class:\n", "\t\tcase k > class:\n\t\tcase d.bugs.tiesByID:\n\t\t\tx = min(x, y)\n"},
	{"layout.go", "\tj.tape.begin(j)\n",
		"\tif ly.bugs.keepTape && j.tape.started {\n\t\treturn\n\t}\n\tj.tape.begin(j)\n"},
	{"tape.go", "\tts.invalidate(j)\n",
		"\tts.invalidate(j)\n\tif ts.bugs.keepTape && j.tape.started {\n\t\treturn\n\t}\n"},
	{"sampler.go", "\tcell, number := s.tapes.next(j)\n",
		"\tcell, number := s.tapes.next(j)\n\tif s.bugs.keepTape {\n\t\tcell = s.anyCell(j, cell)\n\t}\n"},
	{"pool.go", "l == augmented || slot", "l == augmented || p.bugs.preferAll || slot"},
	{"pool.go", "\tif m&r.slow == 0 {", "\tif m&r.slow == 0 || p.bugs.countSlow {"},
	{"prefer.go", "k.pace.faster.Has(j.slot) {", "k.pace.faster.Has(j.slot) && !p.bugs.countSlow {"},
	{"sampler.go", "\t\ts.pool.makeNeutral(x)\n", "\t\tif !s.bugs.seqVisible {\n\t\t\ts.pool.makeNeutral(x)\n\t\t}\n"},
	{"tape.go", "slices.Contains(j.orders.used[1], k.tape.order.name) {",
		"slices.Contains(j.orders.used[1], k.tape.order.name) && !ts.bugs.ownOrder {"},
	{"follow.go", "own >= theirs || f.rng", "own >= theirs || f.bugs.biased || f.rng"},
	{"follow.go", "(b <= a || f.rng", "(b <= a || f.bugs.biased || f.rng"},
	{"strict.go", "y != x && !p.mayDraw(y) {", "y != x && !p.mayDraw(y) || t.bugs.biased {"},
	{"follow.go", "k.follower.last.turn == f.turn && k", "(k.follower.last.turn == f.turn || f.bugs.followPrevious) && k"},
}

// TestPlantedBugs runs the tests that plant bugs, in a patched copy of this package.
func TestPlantedBugs(t *testing.T) {
	t.Parallel()
	lane.OnlyNightly(t, "the same tests without the planted bugs: this builds a copy of the package")
	command, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command: ", err)
	}
	here, err := os.Getwd()
	must(t, err)
	overlay := struct{ Replace map[string]string }{map[string]string{
		filepath.Join(here, "bugs.go"): filepath.Join(here, "testdata/planted/bugs.go"),
	}}
	text := map[string]string{}
	for _, p := range patches {
		if text[p.file] == "" {
			b, err := os.ReadFile(p.file)
			must(t, err)
			text[p.file] = string(b)
		}
		if n := strings.Count(text[p.file], p.old); n != 1 {
			t.Fatalf("%s has %q %d times, not once: bring patches up to date", p.file, p.old, n)
		}
		text[p.file] = strings.Replace(text[p.file], p.old, p.new, 1)
	}
	dir := t.TempDir()
	for name, s := range text {
		overlay.Replace[filepath.Join(here, name)] = filepath.Join(dir, name)
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(s), 0o600))
	}
	b, err := json.Marshal(overlay)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), b, 0o600))
	run := exec.Command(command, "test", "-tags", "planted", "-overlay", filepath.Join(dir, "overlay.json"),
		"-run", plantedTests, "-timeout", "30m", ".")
	out, err := run.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}

// plantedTests are the tests that plant bugs. Outside of the patched copy they test without them, or not at all.
const plantedTests = "^(TestPlanted|TestOwnOrderRepeats|TestFollowersKeepTheLawOfCells|TestLongRunFindsBugs|" +
	"TestStrictIsUniform)"
