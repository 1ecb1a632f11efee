package packed

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	pq "github.com/parquet-go/parquet-go"

	"larder/internal/record"
	"larder/internal/testenv/lane"
)

const (
	// damages is at how many places a file is cut, and at how many others a bit of it is flipped.
	damages = 200
	// leastDamaged is the least size of a file that is damaged, so that the places are distinct.
	leastDamaged = 1 << 10
	// leastOfCorpus is that of the files that the tests make.
	leastOfCorpus = 2 << 10
	// mostForDamaged is the most that may be allocated, all in all, to find the schema of a damaged file and read it.
	mostForDamaged = 32 << 20
)

// every is of how many of these places one is taken: make nightly takes all. The race detector has nothing to find in
// what one goroutine reads, and makes that take ten times as long. How many flips are found at least is compared where
// all are tried.
func every() int {
	if testing.Short() {
		return 8
	}
	return lane.Times(5, 1)
}

// misfit is an error about what a reader gave. It is a fault of the reader, and no way to refuse a file.
type misfit struct{ error }

// rule is what may become of damaged files of a format. Where it says nothing, every cut is refused, and flips may give
// other values, as of a format without checksums.
type rule struct {
	// prefix: a cut may be a whole file, as at the end of a line. What is read of it is the beginning of what was there;
	// with part, the last sample may be one that is cut.
	prefix, part bool
	// cuts is how many cuts are refused at least; 0 is all of them.
	cuts int
	// empty: a file of no bytes is one of no samples.
	empty bool
	// sums: the format has checksums, and what is read of a flipped file is what was there.
	sums bool
	// pages: the same of its values, but not of what describes them: where the schema is what it was, so are they.
	pages bool
	// local is how many samples, one beside the other, a flip may change from byte localFrom on; 0 is any.
	local, localFrom int
	// flips is how many flips are found at least: the file is refused, or a sample.
	flips int
	// from is the byte at which the damage begins.
	from int
}

// contents are the samples of a file: of each its key and its record, which is "" where it cannot be read.
type contents struct {
	schema        record.Schema
	keys, records []string
	bad           int
}

// read finds the schema of a dataset and reads all of it, but no more than most samples.
func (d dataset) read(s fileSet, most int) (c contents, err error) {
	if d.schema, err = d.format.Schema(context.Background(), d.Address, d.files, s.open); err != nil {
		return c, err
	}
	if err := d.schema.Check(); err != nil {
		return c, err
	}
	c.schema = d.schema
	return c, d.each(s, func(x Sample, blob []byte, bad error) error {
		if len(c.keys) == most {
			return io.ErrShortBuffer
		}
		if bad != nil {
			blob = nil
			c.bad++
		}
		c.keys, c.records = append(c.keys, x.Key), append(c.records, string(blob))
		return nil
	})
}

// damaged is what became of the damaged files.
type damaged struct {
	refused, bad, same, changed int
	memory                      uint64 // the most for one
}

// damage cuts and flips a file of a dataset: each time it is refused, or samples of it are, or what is read is as r
// says; never with a misfit, never in more memory than mostForDamaged.
func damage(t *testing.T, whole dataset, s fileSet, path string, r rule) {
	t.Helper()
	good, err := whole.read(s, -1)
	if err != nil || good.bad > 0 || len(good.keys) == 0 {
		t.Fatalf("%d samples, %d bad: %v", len(good.keys), good.bad, err)
	}
	b, ok := s[path]
	if !ok {
		if b, err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	if len(b) < leastDamaged || len(b)-r.from < damages {
		t.Errorf("%s has %d bytes, too few for %d places", path, len(b)-r.from, damages)
	}
	cuts := attempt(t, whole, s, path, good, func(i int) ([]byte, int) {
		at := r.from + i*(len(b)-r.from)/damages
		return b[:at:at], at
	}, r.cut)
	flips := attempt(t, whole, s, path, good, func(i int) ([]byte, int) {
		at := r.from + i*(len(b)-r.from)/damages
		other := bytes.Clone(b)
		other[at] ^= 1 << (i % 8)
		return other, at
	}, r.flip)
	t.Logf("%s: of %d bytes, cuts %+v, flips %+v", path, len(b), cuts, flips)
	least := r.cuts
	if least == 0 {
		if least = damages; r.empty {
			least--
		}
	}
	if missed := cuts.bad + cuts.changed; missed > damages-least {
		t.Errorf("%d of %d cuts were read, and %d are the most", missed, damages/every(), damages-least)
	}
	if missed := flips.same + flips.changed; every() == 1 && missed > damages-r.flips {
		t.Errorf("%d of %d flips were not found, and %d are the most", missed, damages/every(), damages-r.flips)
	}
}

// attempt reads a file with each of its damages; allowed says what is wrong with what was read, or "".
func attempt(
	t *testing.T, whole dataset, s fileSet, path string, good contents, spoil func(i int) ([]byte, int),
	allowed func(good, got contents, at int) string,
) (d damaged) {
	t.Helper()
	var before, after runtime.MemStats
	for i := 0; i < damages; i += every() {
		other := fileSet{}
		maps.Copy(other, s)
		var at int
		other[path], at = spoil(i)
		runtime.ReadMemStats(&before)
		got, err := whole.read(other, 2*len(good.keys)+10)
		runtime.ReadMemStats(&after)
		n := after.TotalAlloc - before.TotalAlloc
		if d.memory = max(d.memory, n); n > mostForDamaged {
			t.Errorf("damage at byte %d: %d bytes were allocated, and %d are the most", at, n, mostForDamaged)
		}
		if fault, ok := errors.AsType[misfit](err); ok {
			t.Errorf("damage at byte %d: %v", at, fault)
		}
		switch {
		case errors.Is(err, io.ErrShortBuffer):
			t.Errorf("damage at byte %d: more than %d samples, of %d", at, len(got.keys), len(good.keys))
		case err != nil && err.Error() == "":
			t.Errorf("damage at byte %d: an error without words", at)
		case err != nil:
			d.refused++
			continue
		case got.bad > 0:
			d.bad++
		case slices.Equal(got.records, good.records) && slices.Equal(got.keys, good.keys):
			d.same++
		default:
			d.changed++
		}
		if what := allowed(good, got, at); what != "" {
			t.Errorf("damage at byte %d was read: %s", at, what)
		}
	}
	return d
}

// cut says what is wrong with what was read of a file that is cut.
func (r rule) cut(good, got contents, at int) string {
	switch {
	case r.empty && at == 0, slices.Equal(got.records, good.records): // the zeros at the end of a tar may be missing
		return ""
	case !r.prefix:
		return "every cut must be refused"
	case len(got.keys) > len(good.keys):
		return "more samples than there were"
	case !got.schema.Equal(&good.schema): // other types were found in fewer rows
		return ""
	}
	for i, x := range got.records {
		if x == good.records[i] {
			continue
		}
		if !r.part || i < len(got.records)-1 || !begins([]byte(x), []byte(good.records[i])) {
			return "sample " + got.keys[i] + " is not what it was"
		}
	}
	return ""
}

// flip says what is wrong with what was read of a file of which a bit is flipped.
func (r rule) flip(good, got contents, at int) string {
	if r.sums {
		for i, x := range got.records {
			if k := slices.Index(good.keys, got.keys[i]); x != "" && (k < 0 || good.records[k] != x) {
				return "sample " + got.keys[i] + " is not what it was"
			}
		}
		if len(got.keys) != len(good.keys) {
			return "samples are missing"
		}
	}
	if r.pages && got.schema.Equal(&good.schema) {
		for i, x := range got.records[:min(len(got.records), len(good.records))] {
			if x != "" && x != good.records[i] {
				return "sample " + got.keys[i] + " is not what it was"
			}
		}
	}
	if r.local > 0 && at >= r.localFrom && got.schema.Equal(&good.schema) &&
		differing(good.records, got.records) > r.local {
		return "a flip changed many samples"
	}
	return ""
}

// begins reports whether every value of a record begins that of another; a cut between the two characters that end a
// line leaves the first.
func begins(part, whole []byte) bool {
	p, err := record.Open(part)
	if err != nil {
		return false
	}
	w, err := record.Open(whole)
	if err != nil || p.Len() != w.Len() {
		return false
	}
	var values [][]byte
	for _, x := range w.All {
		values = append(values, x.Data)
	}
	for i, x := range p.All {
		if !bytes.HasPrefix(values[i], bytes.TrimSuffix(x.Data, []byte{'\r'})) {
			return false
		}
	}
	return true
}

// differing is how many samples differ: one by one where there are as many, and else the longer one of what is left of
// a and b without their common beginning and end.
func differing(a, b []string) (n int) {
	if len(a) == len(b) {
		for i := range a {
			if a[i] != b[i] {
				n++
			}
		}
		return n
	}
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return max(len(a), len(b))
}

// recordRule is the rule of a file of a format of records, by its name in corpus or the uri that record_files.py tells.
func recordRule(name, path string) rule {
	scheme, _, _ := strings.Cut(name, ":")
	ids := scheme == "tokens" && !strings.Contains(name, "doc=idx") && !strings.HasSuffix(path, ".npy")
	switch {
	case hasSuffix(path, []string{".gz", ".zst", ".bz2"}), name == "npz:deflated", name == "npz:packed.npz":
		return rule{sums: true, flips: 185}
	case strings.HasSuffix(path, ".idx"):
		return rule{flips: 195}
	case scheme == "tfrecord": // a cut may be behind a record
		return rule{sums: true, prefix: true, cuts: 195, flips: 195}
	case scheme == "jsonl": // a cut may be at the end of a line
		return rule{prefix: true, cuts: 195, flips: 100}
	case scheme == "csv": // at the end of a row or in its last cell
		return rule{prefix: true, part: true, cuts: 80, flips: 30}
	case scheme == "text": // anywhere but in a character; a line may become two, or two one
		return rule{prefix: true, part: true, cuts: 1, local: 2, flips: 15}
	case strings.HasSuffix(path, "llm.bin"): // without a byte, it is a file of no ids
		return rule{empty: true, local: 2}
	case ids && strings.Contains(name, "borders="): // as below; the last window may be shorter
		return rule{prefix: true, part: true, cuts: 90}
	case ids: // nothing says how many there are, but half of one is none
		return rule{prefix: true, cuts: 90, local: 2}
	case scheme == "tokens":
		return rule{local: 2}
	case scheme == "npy", name == "npz:":
		return rule{local: 1, flips: 4}
	case name == "npz:bools": // of a bool all bits but one are found
		return rule{local: 1, flips: 20}
	case scheme == "wds":
		return rule{flips: 70}
	}
	return rule{flips: 3} // the values of MDS have no checksums, and FFCV's only places to check
}

// TestRecordsOfDamagedFiles damages every file of the corpus.
func TestRecordsOfDamagedFiles(t *testing.T) {
	for name, d := range corpus(t) { // order-free: each by itself
		f, a := address(t, name)
		for path := range d { // order-free: each by itself
			t.Run(name+filepath.Ext(path), func(t *testing.T) {
				if len(d[path]) < leastOfCorpus {
					t.Errorf("a file of %d bytes, and %d are the least", len(d[path]), leastOfCorpus)
				}
				damage(t, dataset{Address: a, format: f, files: []string{d.main()}}, fileSet(d), path, recordRule(name, path))
			})
		}
	}
}

// TestDamagedFilesOfOtherWriters damages files of records that their formats' own writers made.
func TestDamagedFilesOfOtherWriters(t *testing.T) {
	lane.OnlyNightly(t, "the golden files of python/tests, and the corpus")
	out := filepath.Join(t.TempDir(), "out")
	python := formatsPython(t)
	script := filepath.Join(root, "python", "tests", "record_files.py")
	if text, err := exec.Command(python, "-W", "ignore", script, out, "3").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	const mdsFields = "id,u,f,text,meta,raw,loose,typed,fixed,digits,png,jpeg"
	uris := []string{"npy:npy", "npz:some.npz", "npz:packed.npz", "tokens:nano.bin?seq_len=64",
		"tokens:llm.bin?seq_len=64",
		"tokens:ids.npy?seq_len=64", "tokens:nano.bin?seq_len=64&doc=0&borders=stop", "jsonl:a.jsonl", "jsonl:b.jsonl.gz",
		"csv:a.csv", "csv:b.csv.gz", "text:a.txt", "wds:wds?fields=jpg,txt,cls,json,npy,wav,bin",
		"wds:wds-gz?fields=jpg,txt,cls,json,npy,wav,bin", "mds:mds?fields=" + mdsFields}
	for _, codec := range []string{"zstd", "gz", "bz2", "br", "snappy"} {
		uris = append(uris, "mds:mds-"+codec+"?fields="+mdsFields)
	}
	for _, dtype := range []string{"uint16", "int32"} { // of megatron-core
		if _, err := os.Stat(filepath.Join(out, "indexed-"+dtype+".bin")); err == nil {
			uris = append(uris, "tokens:indexed-"+dtype+".bin?seq_len=64&doc=idx")
		}
	}
	for _, uri := range uris {
		scheme, rest, _ := strings.Cut(uri, ":")
		d, err := describe(scheme+":"+out+"/"+rest, nil)
		if err != nil {
			t.Errorf("%s: %v", uri, err)
			continue
		}
		d.files = d.files[:1]
		paths := []string{d.files[0]}
		if beside := strings.TrimSuffix(paths[0], ".bin") + ".idx"; strings.Contains(uri, "doc=idx") {
			paths = append(paths, beside)
		}
		for _, path := range paths {
			t.Run(uri+filepath.Ext(path), func(t *testing.T) { damage(t, d, nil, path, recordRule(uri, path)) })
		}
	}
}

// TestDamagedParquetWithChecksums: a page with a checksum is compared with it, so that no flip in a value gets through.
func TestDamagedParquetWithChecksums(t *testing.T) {
	type row struct {
		Number int64
		Text   string
		Many   []float64
	}
	var b bytes.Buffer // the writer makes checksums
	w := pq.NewGenericWriter[row](&b, pq.MaxRowsPerRowGroup(40))
	for i := range 120 {
		if _, err := w.Write([]row{{int64(i * i), strings.Repeat("text ", i%5), make([]float64, i%4)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f, a := address(t, "parquet:")
	d := disk{"/d/a.parquet": b.Bytes()}
	damage(t, dataset{Address: a, format: f, files: []string{"/d/a.parquet"}}, fileSet(d), "/d/a.parquet",
		rule{pages: true, flips: 120})
}

// TestDamagedFileOfFFCV damages a file of FFCV's own writer: all of it, of which most is room of the fields, and what
// is behind the fields.
func TestDamagedFileOfFFCV(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "five.beton"))
	if err != nil {
		t.Fatal(err)
	}
	const fields = 6
	a, err := ParseAddress("beton", "/d/a.beton?fields=image,label,blob,meta,x,a")
	if err != nil {
		t.Fatal(err)
	}
	d := dataset{Address: a, format: beton{}, files: []string{"/d/a.beton"}}
	for from, found := range map[int]int{0: 10, betonHead + fields*betonField: 40} { // order-free: each by itself
		damage(t, d, fileSet{"/d/a.beton": b}, "/d/a.beton", rule{from: from, flips: found})
	}
}

// foundFlips is how many flips are found at least in files without checksums: those in what says where values lie and
// what they are, and those in values that have a form of their own, as UTF-8 and frames of FLAC. It is about three
// quarters of what was found.
var foundFlips = map[string]int{
	"columns": 45, "columns_arrow": 60, "columns_stream1": 95, "pixels_arrow": 75, "pixels_parquet": 40,
	"hf": 2, "hf_indices": 120, "parquet": 6, "parquet_hf": 5, "sounds_hf": 80, "sounds_parquet": 40, "mds_sounds": 75,
	"mds_soundszstd": 75, "lmdb": 2, "lmdb_bytes": 14, "lmdb_msgpack": 2, "lmdb_sounds": 32, "lmdb_text": 20,
}

// tableRule is the rule of a dataset that table_files.py wrote.
func tableRule(name string) rule {
	switch {
	case strings.HasPrefix(name, "tfrecord"): // an empty file is one of no records
		return rule{empty: true, sums: true, flips: 195}
	case name == "fasta_bgzip":
		return rule{sums: true, flips: 195}
	case name == "fasta": // half a file is one
		return rule{prefix: true, part: true, cuts: 1, flips: 40}
	case name == "fasta_fai": // its length and the places of its records are beside it
		return rule{flips: 40}
	case strings.HasPrefix(name, "lmdb"): // behind the two meta pages a key or a value is one sample; the rest is checked
		return rule{local: 1, localFrom: 2 * 4096, flips: foundFlips[name]}
	case name == "mds_sounds": // an offset is the end of one sample and the beginning of the next
		return rule{local: 2, flips: foundFlips[name]}
	}
	return rule{flips: foundFlips[name]} // pages and batches of tables are mostly values, and a dictionary is of many rows
}
