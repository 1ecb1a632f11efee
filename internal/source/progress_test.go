package source

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestProgressCountsWhatIsIndexed: every sample of a first index is reported, and none of one that is there.
func TestProgressCountsWhatIsIndexed(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a/1.jpg", "a/2.jpg", "a/note.txt", "b/3.png"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := OpenCatalog(CatalogConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := NewProgress(nil)
	ctx := WithProgress(t.Context(), p)
	d, err := c.Open(ctx, "imagefolder:"+dir)
	if now := p.Now(); err != nil || now != (Indexed{Samples: 3}) || d.LiveCount() != 3 {
		t.Fatalf("%+v was reported of 3 samples: %v", now, err)
	}
	if _, err := c.Reindex(ctx, "imagefolder:"+dir); err != nil || p.Now().Samples != 6 {
		t.Errorf("a second index reported %d, %v", p.Now().Samples-3, err)
	}
}

// TestProgressInsideFiles: of every format, how far a scan is grows to the whole, never falls, and is told about inside
// a large file, too.
func TestProgressInsideFiles(t *testing.T) {
	const n = 20000
	line := strings.Repeat("word ", 40)
	var jsonl, csv, text, fasta strings.Builder
	csv.WriteString("label,text\n")
	members := make([]string, 0, n/4)
	for i := range n {
		fmt.Fprintf(&jsonl, `{"label": %d, "text": %q}`+"\n", i%10, line)
		fmt.Fprintf(&csv, "%d,%s\n", i%10, line)
		fmt.Fprintln(&text, line)
		fmt.Fprintf(&fasta, ">s%d\n%s\n", i, strings.Repeat("ACGT", 50))
		if i < n/4 {
			members = append(members, fmt.Sprintf("%0200d=%d", i, i%10))
		}
	}
	for _, c := range []struct {
		scheme, file, content string
		samples               int64
		looked                bool  // every byte is read for the fields
		header                int64 // bytes that are read for it besides
	}{
		{"jsonl", "a.jsonl", jsonl.String(), n, true, 0},
		{"csv", "a.csv", csv.String(), n, true, 16 << 10},
		{"text", "a.txt", text.String(), n, false, 0},
		{"fasta", "a.fasta", fasta.String(), n, false, 0},
		{"wds", "a.tar", shard(t, members...), n / 4, false, 0},
	} {
		t.Run(c.scheme, func(t *testing.T) {
			root := t.TempDir()
			write(t, root, c.file, c.content)
			size := int64(len(c.content))
			cat, _ := open(t, "")
			var mu sync.Mutex
			var last Indexed
			inside, listed := 0, 0
			p := NewProgress(nil)
			p.report = func() {
				mu.Lock()
				defer mu.Unlock()
				now := p.Now()
				if now.Bytes < last.Bytes || now.Samples < last.Samples || now.Bytes > size || now.AllBytes > size {
					t.Errorf("%+v after %+v", now, last)
				}
				if now.Bytes > 0 && now.Bytes < size && now.Files == 0 {
					inside++
				}
				if x := cat.Indexing(); len(x) == 1 && x[0].URI == c.scheme+":"+root+"/"+c.file && x[0].Samples >= last.Samples {
					listed++
				}
				last = now
			}
			if _, err := cat.Add(WithProgress(t.Context(), p), "", c.scheme+":"+root+"/"+c.file); err != nil {
				t.Fatal(err)
			}
			want := Indexed{Samples: c.samples, Files: 1, AllFiles: 1, Bytes: size, AllBytes: size, Looked: last.Looked}
			if last != want || inside < 2 || listed < 2 ||
				c.looked && (last.Looked < size || last.Looked > size+c.header) {
				t.Errorf("%+v, not %+v; %d reports from inside of the file, %d of them listed", last, want, inside, listed)
			}
			if x := cat.Indexing(); len(x) != 0 {
				t.Errorf("%+v is still under way", x)
			}
		})
	}
}
