package source

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"larder/internal/errs"
)

// notesOf is the only file of notes in a folder of indexes.
func notesOf(t *testing.T, index string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(index, "*"+notesSuffix))
	must(t, err)
	if len(all) != 1 {
		t.Fatalf("notes %q", all)
	}
	return all[0]
}

// gets counts the reads of files from now on; questions, and what is asked of folders, do not count.
func (b *bucketOf) gets() *atomic.Int64 {
	n := &atomic.Int64{}
	count := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && filepath.Ext(r.URL.Path) != "" {
			n.Add(1)
		}
		b.next.ServeHTTP(w, r)
	})
	b.before.Store(&count)
	return n
}

// TestOnlyNewFilesAreLookedAt: of a dataset whose fields follow from all lines of all files, a file that was added or
// has grown costs a look and a scan of it alone, in this process and in the next.
func TestOnlyNewFilesAreLookedAt(t *testing.T) {
	const n = 20
	for scheme, body := range map[string]func(i int) string{
		"jsonl": func(i int) string { return fmt.Sprintf("{\"x\": %d, \"y\": [%d, 2], \"z\": \"t\"}\n", i, i) },
		"csv":   func(i int) string { return fmt.Sprintf("x,y\n%d,%d.5\n", i, i) },
	} { // order-free: each by itself
		b, root, index := newBucket(t), t.TempDir(), t.TempDir()
		put := func(name, content string) {
			b.put(t, "s/"+name, content)
			write(t, root, name, content)
		}
		for i := range n {
			put(fmt.Sprintf("%02d.%s", i, scheme), body(i))
		}
		uri := scheme + ":s3://data/s"
		c := b.open(t, index)
		_, err := c.Add(t.Context(), "", uri)
		must(t, err)
		for step, change := range []func(){
			func() { put("05."+scheme, body(5)+strings.TrimPrefix(body(50), "x,y\n")) },
			func() { put("zz."+scheme, body(60)) },
			func() {
				put("05."+scheme, body(5))
				c = b.open(t, index)
				_, err := c.Add(t.Context(), "", uri)
				must(t, err)
			},
		} {
			change()
			reads := b.gets()
			d := lookForChanges(t, c, uri)
			if r := reads.Load(); r != 2 {
				t.Errorf("%s: %d reads for one new file in step %d", scheme, r, step)
			}
			local, err := b.open(t, "").Add(t.Context(), "", scheme+":"+root)
			must(t, err)
			got, want := liveRecords(t, c, d), liveRecords(t, local.cat, local)
			if len(got) != []int{n + 1, n + 2, n + 1}[step] || !slices.Equal(got, want) {
				t.Errorf("%s: step %d: %q, not %q", scheme, step, got, want)
			}
		}
		// A value of another type in one file changes the fields of all, which are scanned again, and are not looked at.
		if scheme == "csv" {
			put("07.csv", "x,y\n1.5,2\n")
		} else {
			put("07.jsonl", "{\"x\": 1.5, \"y\": [1], \"z\": \"t\"}\n")
		}
		reads := b.gets()
		d := lookForChanges(t, c, uri)
		if r := reads.Load(); r != 1+n+1 {
			t.Errorf("%s: %d reads where the fields changed", scheme, r)
		}
		fresh, err := b.open(t, "").Add(t.Context(), "", uri)
		must(t, err)
		if got, want := d.Schema(), fresh.Schema(); !got.Equal(want) {
			t.Errorf("%s: %v, not %v", scheme, got, want)
		}
	}
}

// lookForChanges indexes a dataset as after a read that found a file changed.
func lookForChanges(t *testing.T, c *Catalog, uri string) *Dataset {
	t.Helper()
	d, ok := c.Get(uri)
	if !ok {
		t.Fatalf("%s is not known", uri)
	}
	d.rs.stale.Store(true)
	d, err := c.Add(t.Context(), "", uri)
	must(t, err)
	return d
}

// liveRecords are the samples that there are, sorted.
func liveRecords(t *testing.T, c *Catalog, d *Dataset) (out []string) {
	t.Helper()
	for s := range sampleID(d.Len()) {
		if d.Live(s) {
			b, err := c.Read(t.Context(), d.Object(s), nil)
			must(t, err)
			out = append(out, string(b))
		}
	}
	slices.Sort(out)
	return out
}

// TestLooksGoOn: where some files are damaged, the next try looks at these alone.
func TestLooksGoOn(t *testing.T) {
	b, index := newBucket(t), t.TempDir()
	for i := range 12 {
		b.put(t, fmt.Sprintf("s/%02d.jsonl", i), fmt.Sprintf("{\"x\": %d}\n", i))
	}
	b.put(t, "s/05.jsonl", "{\"x\": }\n")
	if _, err := b.open(t, index).Add(t.Context(), "", "jsonl:s3://data/s"); !errs.Is(err, errs.DatasetUnread) {
		t.Fatal(err)
	}
	b.put(t, "s/05.jsonl", "{\"x\": 5}\n")
	reads := b.gets()
	d, err := b.open(t, index).Add(t.Context(), "", "jsonl:s3://data/s")
	must(t, err)
	if r := reads.Load(); r != 1+12 || d.LiveCount() != 12 {
		t.Errorf("%d reads, %d samples", r, d.LiveCount())
	}
}

// TestNotesThatAreDamaged: whatever is cut off or flipped, files are looked at again, and the fields are what they are.
func TestNotesThatAreDamaged(t *testing.T) {
	root, index := t.TempDir(), t.TempDir()
	for i := range 3 {
		write(t, root, fmt.Sprintf("%d.jsonl", i), fmt.Sprintf("{\"x\": %d}\n", i))
	}
	uri := "jsonl:" + root
	c, _ := open(t, index)
	d, err := c.Add(t.Context(), "", uri)
	must(t, err)
	path := notesOf(t, index)
	whole, err := os.ReadFile(path)
	must(t, err)
	rows, err := decodeNotes(whole, uri)
	if err != nil || len(rows) != 3 || rows[0].note == "" || rows[0].note != rows[2].note {
		t.Fatalf("%+v, %v", rows, err)
	}
	for i := range whole {
		if _, err := decodeNotes(whole[:i], uri); err == nil {
			t.Fatalf("cut at %d: no error", i)
		}
		b := bytes.Clone(whole)
		b[i] ^= 0x20
		if _, err := decodeNotes(b, uri); err == nil {
			t.Fatalf("flipped at %d: no error", i)
		}
	}
	if _, err := decodeNotes(whole, uri+"/other"); err == nil {
		t.Error("notes of another dataset were taken")
	}
	must(t, os.WriteFile(path, whole[:len(whole)/2], 0o600))
	write(t, root, "3.jsonl", "{\"x\": 3}\n")
	again, err := c.Add(t.Context(), "", uri)
	if err != nil || again.LiveCount() != 4 || !again.Schema().Equal(d.Schema()) {
		t.Errorf("%v", err)
	}
	if rows, err := decodeNotes(must2(os.ReadFile(path)), uri); err != nil || len(rows) != 4 {
		t.Errorf("%d notes, %v", len(rows), err)
	}
	_, size, err := c.Remove(t.Context(), again)
	must(t, err)
	if _, err := os.Stat(path); err == nil || size == 0 {
		t.Errorf("the notes are left: %v", err)
	}
}

func must2(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}
