package reproductions

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"larder/internal/fault"
)

// What each reproduction printed is what it prints now. The slow ones run with LARDER_REPRODUCTIONS=all; go run larder/bench/reproductions/run
// -write makes the files anew.
func TestExpected(t *testing.T) {
	slow := map[string]bool{"joader-tables": true, "closed-forms": true, "seneca-hits": true, "seneca-makespan": true, "seneca-table6": true, "joader-late": true}
	for _, r := range All() {
		t.Run(r.Name, func(t *testing.T) {
			if slow[r.Name] && os.Getenv("LARDER_REPRODUCTIONS") != "all" {
				t.Skip("slow: LARDER_REPRODUCTIONS=all runs it")
			}
			t.Parallel()
			got, err := Run(r.Name)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := got.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(filepath.Join(r.Name, "expected.json"))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(raw, want) {
				t.Errorf("it prints\n%s\nand not what expected.json has", raw)
			}
		})
	}
}

// The page is made of what is expected, every row has a verdict that says why, and every folder has its script.
func TestPage(t *testing.T) {
	results := map[string]*Result{}
	for _, r := range All() {
		raw, err := os.ReadFile(filepath.Join(r.Name, "expected.json"))
		if err != nil {
			t.Fatal(err)
		}
		var res Result
		if err := json.Unmarshal(raw, &res); err != nil {
			t.Fatal(err)
		}
		results[r.Name] = &res
		for _, row := range res.Rows {
			because := strings.HasPrefix(row.Verdict, differs) && len(row.Verdict) > len(differs)+9 || strings.HasPrefix(row.Verdict, unknown) && len(row.Verdict) > len(unknown)+10
			if row.Verdict != reproduced && row.Verdict != none && !because {
				t.Errorf("%s: %s: verdict %q", r.Name, row.What, row.Verdict)
			}
			if strings.Contains(row.Verdict, "an error here") {
				t.Errorf("%s: %s: %+v", r.Name, row.What, row)
			}
		}
		if info, err := os.Stat(filepath.Join(r.Name, "run.sh")); err != nil || info.Mode()&0o100 == 0 {
			t.Errorf("%s has no script that runs", r.Name)
		}
	}
	page, err := os.ReadFile("../../docs/reproductions.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != Page(results) {
		t.Error("docs/reproductions.md is not made of expected.json: go run larder/bench/reproductions/run -write")
	}
	if _, err := Run("joader-table"); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "did you mean joader-tables") {
		t.Errorf("%v", err)
	}
}
