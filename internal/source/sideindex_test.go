package source

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"larder/internal/errs"
	"larder/internal/ident"
)

// faiOf says of sequences what samtools faidx does: each is an id, letters, their place, letters and bytes of a line.
func faiOf(rows ...[5]any) string {
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, "%v\t%v\t%v\t%v\t%v\n", r[0], r[1], r[2], r[3], r[4])
	}
	return b.String()
}

// An index beside a FASTA file counts where the file proves that it is of this version: else it is an error with words,
// and never the sequences of another version.
func TestIndexesOfOtherVersionsOfFASTA(t *testing.T) {
	const file = ">a first\nACGT\nAC\n>b\nMKV\n>empty\n>c x\nGG\nGG\n\n"
	good := [][5]any{{"a", 6, 9, 4, 5}, {"b", 3, 20, 3, 4}, {"empty", 0, 31, 0, 0}, {"c", 4, 36, 2, 3}}
	for name, x := range map[string]struct {
		file string
		fai  [][5]any
		says string // "" = it is good
	}{
		"as it is":          {file, good, ""},
		"another order":     {file, [][5]any{good[3], good[0], good[2], good[1]}, ""},
		"no line end":       {strings.TrimRight(file, "\n"), good, ""},
		"one appended":      {file + ">d\nAAAA\n", good, `the file has ">d`},
		"letters appended":  {strings.TrimRight(file, "\n") + "\nTTTT\n", good, "the file has"},
		"ids renamed":       {strings.ReplaceAll(file, ">b", ">z"), good, `is "z", and "b" in the index`},
		"first id renamed":  {strings.ReplaceAll(file, ">a", ">z"), good, `is "z", and "a" in the index`},
		"longer id":         {strings.ReplaceAll(file, ">a first", ">a1first"), good, `is "a1first", and "a" in the index`},
		"description only":  {strings.ReplaceAll(file, ">a first", ">a other"), good, ""},
		"one put before":    {">n\nA\n" + file, good, "another version of the file"},
		"one put between":   {strings.Replace(file, ">b", ">n\nA\n>b", 1), good, "another version of the file"},
		"one left out":      {file, [][5]any{good[0], good[2], good[3]}, "another version of the file"},
		"last left out":     {file, good[:3], `the file has ">c x`},
		"first left out":    {file, good[1:], "another version of the file"},
		"cut":               {file[:25], good, "no sequence of"},
		"a sequence shrank": {strings.Replace(file, "MKV", "M", 1), good, "another version of the file"},
		"twice":             {file, append(good[:4:4], good[1]), "another version of the file"},
	} {
		for _, ext := range []string{".fa", ".fa.gz"} {
			root := t.TempDir()
			content := x.file
			if ext == ".fa.gz" {
				content = bgzipped(t, x.file)
			}
			write(t, root, "a"+ext, content)
			write(t, root, "a"+ext+".fai", faiOf(x.fai...))
			c, _ := open(t, "")
			d, err := c.Add(t.Context(), "", "fasta:"+root)
			if x.says != "" {
				if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), x.says) ||
					!strings.Contains(err.Error(), "samtools faidx") {
					t.Errorf("%s%s: %v; want %q", name, ext, err, x.says)
				}
				continue
			}
			must(t, err)
			got := map[string]string{}
			for s := range ident.SampleID(d.Len()) {
				got[string(fieldOf(t, c, d, s, "id"))] = string(fieldOf(t, c, d, s, "sequence"))
			}
			if fmt.Sprint(got) != "map[a:ACGTAC b:MKV c:GGGG]" {
				t.Errorf("%s%s: %v", name, ext, got)
			}
		}
	}
}

// A FASTA file that grows after its index was made is an error of the next index of the dataset, and read when its own
// index is made again or gone.
func TestAFASTAThatGrows(t *testing.T) {
	root, index := t.TempDir(), t.TempDir()
	write(t, root, "a.fa", ">a\nACGT\n")
	write(t, root, "a.fa.fai", faiOf([5]any{"a", 4, 3, 4, 5}))
	c, _ := open(t, index)
	_, err := c.Add(t.Context(), "", "fasta:"+root)
	must(t, err)
	write(t, root, "a.fa", ">a\nACGT\n>b\nGG\n")
	must(t, os.Chtimes(filepath.Join(root, "a.fa"), time.Time{}, time.Unix(1_700_000_000, 0)))
	if _, err := c.Reindex(t.Context(), "fasta:"+root); !errs.Is(err, errs.DatasetUnread) {
		t.Errorf("%v", err)
	}
	must(t, os.Remove(filepath.Join(root, "a.fa.fai")))
	d, err := c.Reindex(t.Context(), "fasta:"+root)
	must(t, err)
	if got := keys(d); strings.Join(got, " ") != "a.fa/a a.fa/b" {
		t.Errorf("%q", got)
	}
}

// A shard of MDS that has not the bytes that index.json says is of another version.
func TestAnIndexOfOtherShards(t *testing.T) {
	root := t.TempDir()
	for name, text := range mdsLabelled(t, "str", 0, textsOf("7", "10")...) { // order-free
		write(t, root, name, text)
	}
	c, _ := open(t, "")
	_, err := c.Add(t.Context(), "", "mds:"+root)
	must(t, err)
	more := mdsLabelled(t, "str", 0, textsOf("7", "10", "3")...)
	write(t, root, "shard.00000.mds", more["shard.00000.mds"])
	if _, err := c.Reindex(t.Context(), "mds:"+root); !errs.Is(err, errs.DatasetUnread) ||
		!strings.Contains(err.Error(), "index.json says") {
		t.Errorf("%v", err)
	}
	write(t, root, "index.json", more["index.json"])
	d, err := c.Reindex(t.Context(), "mds:"+root)
	must(t, err)
	if d.Len() != 3 || d.Label(2) != 3 {
		t.Errorf("%q", labelled(d))
	}
}
