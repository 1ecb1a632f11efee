package nearest

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestWord(t *testing.T) {
	words := []string{"id", "label", "RandomResizedCrop", "Resize", "stratified", "strict", "bilinear"}
	for typed, want := range map[string]string{
		"lable": "label", "LABEL": "label", "labels": "label", "RandomResizeCrop": "RandomResizedCrop", "Rezise": "Resize",
		"strat": "stratified", "stric": "strict", "i": "id", "di": "id", "bilinaer": "bilinear", "": "", "blur": "",
		"st": "", "\xff\x00": "", strings.Repeat("label", 1<<20): "",
	} {
		if got := Word(typed, words); got != want {
			t.Errorf("Word(%.20q) = %q, want %q", typed, got, want)
		}
	}
	if got := DidYouMean("lable", words); got != "did you mean label?" {
		t.Error(got)
	}
	if got := DidYouMean("zebra", words[:2]); got != "use one of id, label" {
		t.Error(got)
	}
}

// Distance against its definition: a word that k edits made is at most k away, and it is a symmetric measure.
func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"kitten", "sitting", 3}, {"ca", "abc",
			3}, {"abcdef", "abdcfe", 2},
	} {
		if got := Distance(c.a, c.b); got != c.want || Distance(c.b, c.a) != got {
			t.Errorf("Distance(%q, %q) = %d, backwards %d, want %d", c.a, c.b, got, Distance(c.b, c.a), c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab]{0,8}`).Draw(t, "word")
		b := []byte(word)
		edits := rapid.IntRange(0, 3).Draw(t, "edits")
		for range edits {
			at := rapid.IntRange(0, len(b)).Draw(t, "at")
			switch c := rapid.SampledFrom([]byte("abc")).Draw(t, "byte"); {
			case rapid.Bool().Draw(t, "insert"):
				b = slices.Insert(b, at, c)
			case at == len(b):
			case rapid.Bool().Draw(t, "delete"):
				b = slices.Delete(b, at, at+1)
			default:
				b[at] = c
			}
		}
		d := Distance(word, string(b))
		if d > edits || (d == 0) != (word == string(b)) || d < max(len(word)-len(b), len(b)-len(word)) {
			t.Fatalf("Distance(%q, %q) = %d after %d edits", word, b, d, edits)
		}
	})
}
