package source

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"larder/internal/ident"
	"larder/internal/record"
	"larder/internal/spool"
)

// fieldOf reads a sample as a record and returns one of its fields, as bytes.
func fieldOf(t *testing.T, c *Catalog, d *Dataset, s ident.SampleID, name string) []byte {
	t.Helper()
	b, err := c.Read(t.Context(), d.Object(s), nil)
	must(t, err)
	v, err := record.Open(b)
	must(t, err)
	for i, x := range v.All {
		if d.Schema().Fields[i].Name == name {
			return bytes.Clone(x.Data)
		}
	}
	t.Fatalf("no field %q", name)
	return nil
}

// One compressed file is lines to text: and rows to csv:, which may be longer than a line; each has what it made.
func TestLinesAndRowsOfOneFileAreNotMixedUp(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write([]byte("name,n\n\"one\nand a half\",1\ntwo,2\nthree,3\n"))
	must(t, errors.Join(err, z.Close()))
	root := t.TempDir()
	write(t, root, "t.txt.gz", packed.String())
	c, err := OpenCatalog(CatalogConfig{Spool: spool.NewMemory(1 << 20)})
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	text, err := c.Add(t.Context(), "", "text:"+root+"/t.txt.gz")
	must(t, err)
	csv, err := c.Add(t.Context(), "", "csv:"+root+"/t.txt.gz")
	must(t, err)
	for _, x := range []struct {
		d     *Dataset
		s     ident.SampleID
		field string
		want  string
	}{
		{text, 1, "text", `"one`}, {text, 3, "text", "two,2"},
		{csv, 0, "name", "one\nand a half"}, {csv, 2, "name", "three"},
	} {
		if got := fieldOf(t, c, x.d, x.s, x.field); string(got) != x.want {
			t.Errorf("%s: sample %d has %q, not %q", x.d.URI(), x.s, got, x.want)
		}
	}
}

// A job keeps the fields that it began with. What needs those of an older version is not made with a newer one's.
func TestRecordsOfAnOlderVersionAreNotMadeWithNewFields(t *testing.T) {
	root := t.TempDir()
	write(t, root, "b.jsonl", `{"x": 1, "y": 2}`+"\n")
	c, _ := open(t, "")
	uri := "jsonl:" + root
	d, err := c.Add(t.Context(), "", uri)
	must(t, err)
	old := d.Object(0)
	if got := binary.LittleEndian.Uint64(fieldOf(t, c, d, 0, "x")); got != 1 {
		t.Fatalf("x is %d", got)
	}
	write(t, root, "a.jsonl", `{"y": 20, "x": 10}`+"\n")
	d2, err := c.Reindex(t.Context(), uri)
	must(t, err)
	if b, err := c.Read(t.Context(), old, nil); err == nil {
		t.Errorf("an object of the older version was read as %q", b)
	}
	for s, want := range map[ident.SampleID]uint64{0: 1, 1: 10} {
		if got := binary.LittleEndian.Uint64(fieldOf(t, c, d2, s, "x")); got != want {
			t.Errorf("sample %d has x %d, not %d", s, got, want)
		}
	}
}

// megatronIndex is a .idx of Megatron for documents of so many uint16.
func megatronIndex(sizes ...int32) string {
	b := append([]byte("MMIDIDX\x00\x00"), 1, 0, 0, 0, 0, 0, 0, 0, 8)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(sizes)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(sizes))+1)
	for _, n := range sizes {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	at := int64(0)
	for _, n := range sizes {
		b = binary.LittleEndian.AppendUint64(b, uint64(at))
		at += 2 * int64(n)
	}
	for i := range len(sizes) + 1 {
		b = binary.LittleEndian.AppendUint64(b, uint64(i))
	}
	return string(b)
}

// Records may depend on a file beside theirs: when that changes, they are other objects.
func TestRecordsFollowTheFilesBesideThem(t *testing.T) {
	root := t.TempDir()
	var ids []byte
	for i := range 8 {
		ids = binary.LittleEndian.AppendUint16(ids, uint16(i))
	}
	write(t, root, "t.bin", string(ids))
	index := func(sizes ...int32) {
		must(t, os.WriteFile(filepath.Join(root, "t.idx"), []byte(megatronIndex(sizes...)), 0o600))
	}
	index(4, 4)
	c, _ := open(t, "")
	uri := "tokens:" + root + "/t.bin?seq_len=3&stride=4&doc=idx"
	d, err := c.Add(t.Context(), "", uri)
	must(t, err)
	first, object := fieldOf(t, c, d, 0, "doc"), d.Object(0)
	index(2, 6)
	d, err = c.Reindex(t.Context(), uri)
	must(t, err)
	if d.Object(0) == object {
		t.Error("the sample is the same object, and its documents have changed")
	}
	if again := fieldOf(t, c, d, 0, "doc"); bytes.Equal(first, again) {
		t.Errorf("the documents are still %v", again)
	}
}

// A file says how many rows it has. Rows without a byte are bounded by nothing else.
func TestRowsWithoutAByteAreBounded(t *testing.T) {
	head := "{'descr': '<f4', 'fortran_order': False, 'shape': (2000000, 0), }"
	head += strings.Repeat(" ", 117-len(head)) + "\n"
	root := t.TempDir()
	write(t, root, "t.npy", "\x93NUMPY\x01\x00\x76\x00"+head)
	c, _ := open(t, "")
	_, err := c.Add(t.Context(), "", "npy:"+root+"/t.npy")
	if err == nil || !strings.Contains(err.Error(), "2000000 rows") {
		t.Errorf("it says %v", err)
	}
}

// An index of a FASTA file that was made for an older one is refused: sequences would end in their middle.
func TestAnOldIndexOfSequencesIsRefused(t *testing.T) {
	for _, x := range []struct{ file, index, want string }{
		{">a\nACGT\n>b\nMKV\n", "a\t4\t3\t4\t5\nb\t3\t11\t3\t4\n", ""},
		{">a\nACGT\n\n>b\nMKV", "a\t4\t3\t4\t5\nb\t3\t12\t3\t4\n", ""},
		{">a\nACGT\n>b\nMKVAA\n", "a\t4\t3\t4\t5\nb\t3\t11\t3\t4\n", "another version"},
		{">a\nACGT\n>b\nMKV\nAA\n", "a\t4\t3\t4\t5\nb\t3\t11\t3\t4\n", "another version"},
		{">a\nACGTTTTT\n", "a\t4\t3\t4\t5\n", "another version"},
	} {
		root := t.TempDir()
		write(t, root, "s.fa", x.file)
		write(t, root, "s.fa.fai", x.index)
		c, _ := open(t, "")
		_, err := c.Add(t.Context(), "", "fasta:"+root+"/s.fa")
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%q: %v", x.file, err)
		}
	}
}

// The same while the daemon runs, and has the old file open.
func TestRecordsOfAReplacedFileAreTheNewOnes(t *testing.T) {
	root := t.TempDir()
	path, stamp := filepath.Join(root, "a.jsonl"), time.Unix(1_600_000_000, 0)
	c, _ := open(t, "")
	for _, n := range []byte{1, 7} {
		write(t, root, "next", fmt.Sprintf("{\"a\": %d}\n", n))
		must(t, os.Chtimes(filepath.Join(root, "next"), stamp, stamp))
		must(t, os.Rename(filepath.Join(root, "next"), path))
		d, err := c.Add(t.Context(), "", "jsonl:"+path)
		must(t, err)
		if got := fieldOf(t, c, d, ident.SampleID(d.Len()-1), "a"); got[0] != n {
			t.Errorf("%d was read, the file has %d", got[0], n)
		}
	}
}

// A file that takes the place of another one may have its size and its time: what was unpacked of it is another's.
func TestUnpackedRecordsAreOfTheirFile(t *testing.T) {
	root, kept := t.TempDir(), spool.NewMemory(1<<20)
	path, stamp := filepath.Join(root, "t.txt.gz"), time.Unix(1_600_000_000, 0)
	for _, text := range []string{"one\n", "two\n"} {
		next := filepath.Join(root, "next")
		write(t, root, "next", string(gzipOf(t, []byte(text))))
		must(t, os.Chtimes(next, stamp, stamp))
		must(t, os.Rename(next, path))
		c, err := OpenCatalog(CatalogConfig{Spool: kept})
		must(t, err)
		d, err := c.Add(t.Context(), "", "text:"+path)
		must(t, err)
		if got := fieldOf(t, c, d, 0, "text"); string(got)+"\n" != text {
			t.Errorf("%q was read of %q", got, text)
		}
		must(t, c.Close())
	}
}
