package source

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	pq "github.com/parquet-go/parquet-go"
	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/testenv/lane"
)

func parquetOf[T any](t *testing.T, rows ...T) string {
	t.Helper()
	var b bytes.Buffer
	must(t, pq.Write(&b, rows))
	return b.String()
}

func mdsSet(shards ...string) map[string]string {
	files, list := map[string]string{}, make([]string, len(shards))
	for i, b := range shards {
		name := fmt.Sprintf("shard.%05d.mds", i)
		files[name] = b
		samples := 0
		if len(b) >= 4 {
			samples = int(binary.LittleEndian.Uint32([]byte(b)))
		}
		list[i] = fmt.Sprintf(`{"format":"mds","compression":null,"samples":%d,"raw_data":{"basename":%q,"bytes":%d}}`,
			samples, name, len(b))
	}
	files["index.json"] = `{"version":2,"shards":[` + strings.Join(list, ",") + `]}`
	return files
}

// TestShardsOfUnlikeColumns: two files of one dataset that do not fit each other are refused; the error names the file
// and the column that differs. The order of the columns of a CSV does not count.
func TestShardsOfUnlikeColumns(t *testing.T) {
	type number struct {
		X int64
		S string
	}
	type text struct{ X, S string }
	type other struct {
		X int64
		Z string
	}
	two := func(ext, a, b string) map[string]string { return map[string]string{"a" + ext: a, "b" + ext: b} }
	one := mdsFile(t, "one")
	for name, x := range map[string]struct {
		uri   string
		files map[string]string
		says  []string
	}{
		"parquet, type": {"parquet:%s", two(".parquet", parquetOf(t, number{1, "x"}), parquetOf(t, text{"1", "x"})),
			[]string{"b.parquet", `"X" (text`, `"X" (scalar int64`}},
		"parquet, name": {"parquet:%s", two(".parquet", parquetOf(t, number{1, "x"}), parquetOf(t, other{1, "x"})),
			[]string{"b.parquet", `"Z" (text`, `"S" (text`}},
		"mds, name": {"mds:%s?fields=text", mdsSet(one, strings.Replace(one, `"text"`, `"tost"`, 1)),
			[]string{"shard.00001.mds", `it has no column "text", as other shards have`}},
		"mds, type": {"mds:%s?fields=text", mdsSet(one, strings.Replace(one, `"str"`, `"int"`, 1)),
			[]string{"shard.00001.mds", `column "text" of encoding int`}},
		"npy, shape": {"npy:%s", two(".npy", npyFile(3), strings.Replace(npyFile(3), "(3, 4)", "(6, 2)", 1)),
			[]string{"/b.npy have the shape [2] of uint8", "/a.npy the shape [4] of uint8"}},
		"npy, dtype": {"npy:%s", two(".npy", npyFile(3), strings.Replace(npyFile(3), "|u1", "|i1", 1)),
			[]string{"/b.npy have the shape [4] of int8", "/a.npy the shape [4] of uint8"}},
		"npz, array": {"npz:%s", two(".npz", zipOf(t, zip.Store, "x.npy", npyFile(3)),
			zipOf(t, zip.Store, "y.npy", npyFile(3))),
			[]string{"/b.npz have other names, dtypes or rows than those of", "/a.npz"}},
		"tokens, dtype": {"tokens:%s?seq_len=2", two(".npy", ids("<u2", 6), ids("<i4", 6)),
			[]string{"/b.npy", "int32", "uint16"}},
		"tokens, dimensions": {"tokens:%s?seq_len=2", two(".npy", ids("<u2", 6), npyFile(3)),
			[]string{"/b.npy", "ids are whole numbers in one dimension"}},
		"jsonl, missing": {"jsonl:%s", two(".jsonl", `{"x": 1, "y": 2}`, `{"x": 1}`),
			[]string{"/b.jsonl: its lines have no \"y\", and those of the files before do"}},
		"jsonl, more": {"jsonl:%s", two(".jsonl", `{"x": 1}`, `{"x": 1, "y": 2}`),
			[]string{"/b.jsonl: its lines have a \"y\", and those of the files before have none"}},
		"jsonl, type": {"jsonl:%s", two(".jsonl", `{"x": 1}`, `{"x": "t"}`),
			[]string{"/b.jsonl: \"x\" is text there, and whole numbers in the files before"}},
		"csv, name": {"csv:%s", two(".csv", "x,y\n1,2\n", "x,z\n1,2\n"),
			[]string{"/b.csv: its lines have no \"y\", and those of the files before do"}},
		"csv, type": {"csv:%s", two(".csv", "x,y\n1,2\n", "x,y\n1,t\n"),
			[]string{"/b.csv: \"y\" is text there, and whole numbers in the files before"}},
		"csv, order": {"csv:%s", two(".csv", "x,y\n1,2\n", "y,x\n3,4\n"), nil},
	} { // order-free: each by itself
		root := t.TempDir()
		for n, c := range x.files { // order-free
			write(t, root, n, c)
		}
		c, _ := open(t, "")
		d, err := c.Add(t.Context(), "", fmt.Sprintf(x.uri, root))
		if x.says == nil {
			if err != nil || d.Len() != 2 {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if got := fieldOf(t, c, d, 1, "x"); got[0] != 4 {
				t.Errorf("%s: x of the second file is % x, not 4", name, got)
			}
			continue
		}
		if !errs.Is(err, errs.DatasetUnread) {
			t.Errorf("%s: %v", name, err)
		}
		for _, part := range x.says {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v does not say %q", name, err, part)
			}
		}
	}
}

// ids is a .npy of n ids, all zero.
func ids(dtype string, n int) string {
	width := int(dtype[2] - '0')
	head := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }", dtype, n)
	head += strings.Repeat(" ", 117-len(head)) + "\n"
	return "\x93NUMPY\x01\x00\x76\x00" + head + strings.Repeat("\x00", n*width)
}

// TestUnknownSchemes: a scheme that is near to no other one is answered with all there are, whatever follows it.
func TestUnknownSchemes(t *testing.T) {
	c, _ := open(t, "")
	all := "Schemes are " + strings.Join(schemes(), ", ")
	for uri, says := range map[string]string{
		"zzz:x/y":                "did you mean imagefolder:x/y? " + all,
		"zzz:/x/y":               "did you mean imagefolder:/x/y? " + all,
		"zzz:./x":                "did you mean imagefolder:./x? " + all,
		"zzz://host/x":           all,
		"zzz:":                   all,
		":/x":                    all,
		"":                       all,
		"nothing":                all,
		"data/train.tar":         "did you mean wds:data/train.tar? " + all,
		"zzz:x/y.csv.gz":         "did you mean csv:x/y.csv.gz? " + all,
		"file:///d/x.parquet":    "did you mean parquet:///d/x.parquet?",
		"s3://bucket/a.TGZ":      "did you mean wds:s3://bucket/a.TGZ? " + all,
		"s3://buckets/y.npy":     "did you mean npy:s3://buckets/y.npy? " + all,
		"s3://x/y.npy":           `"x" is no name of a bucket`,
		"data/x.json.zst":        "did you mean jsonl:data/x.json.zst? " + all,
		"data/x.faa.bgz":         "did you mean fasta:data/x.faa.bgz? " + all,
		"data/t-00001-of-00002":  "did you mean tfrecord:data/t-00001-of-00002? " + all,
		"data/ids.bin":           "did you mean tokens:data/ids.bin? " + all,
		"data/train":             "did you mean imagefolder:data/train? " + all,
		"webdataset:x/{0..9}":    "write wds:DIR",
		"WebDataset://h/{0..9}":  "write wds:DIR",
		"huggingface:/x":         "write hf:DIR",
		"ffcv:/x.beton":          "write beton:FILE.beton",
		"tokenz:rel.bin":         "did you mean tokens:rel.bin?",
		"jsnol:rel/l.jsonl":      "did you mean jsonl:rel/l.jsonl?",
		"PARQUET:/x":             "did you mean parquet:/x?",
		strings.Repeat("z", 400): all,
	} { // order-free: each by itself
		_, err := c.Add(t.Context(), "", uri)
		if !errs.Is(err, errs.Invalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v; want %q", uri, err, says)
		}
	}
	for name, scheme := range alsoCalled { // order-free: each by itself
		if packedHint[scheme] == "" {
			t.Errorf("%s stands for %s, which has no hint", name, scheme)
		}
	}
}

// TestManyShards lists, looks at and indexes many files, reads some, and checks all again: with few files open at once,
// with memory of the order of the index, and, where nothing has changed, without opening any.
func TestManyShards(t *testing.T) {
	n := lane.Times(2000, 20_000)
	if testing.Short() {
		n = 2000
	}
	if s := os.Getenv("LARDER_SHARDS"); s != "" {
		v, err := strconv.Atoi(s)
		must(t, err)
		n = v
	}
	one, other := shard(t, "1=2"), shard(t, "1=2", "2=0")
	line := func(i int) string { return fmt.Sprintf("{\"x\": %d}\n", i) }
	manyShards(t, n, many{uri: fmt.Sprintf("wds:%%s/{000000..%06d}.tar", n-1), ext: ".tar",
		body: func(int) string { return one }, changed: other, opened: 1})
	manyShards(t, n, many{uri: "jsonl:%s", ext: ".jsonl", body: line, changed: line(1) + line(2),
		opened: n + 1}) // the types are those of all lines
}

// many is a dataset of many files.
type many struct {
	uri, ext string
	body     func(i int) string
	changed  string // what one of them is changed to, with a second sample
	opened   int    // files, when that is indexed
}

func manyShards(t *testing.T, n int, x many) {
	root, index := inMemory(t, int64(n)*4096), t.TempDir()
	name := func(i int) string { return filepath.Join(root, fmt.Sprintf("%06d%s", i, x.ext)) }
	for i := range n {
		must(t, os.WriteFile(name(i), []byte(x.body(i)), 0o644))
	}
	uri := fmt.Sprintf(x.uri, root)
	limitFiles(t, 100)
	began, used := time.Now(), memory()
	c, _ := open(t, index)
	d, err := c.Add(t.Context(), "", uri)
	must(t, err)
	took := time.Since(began)
	if last := ident.SampleID(n - 1); d.Len() != n || !strings.HasPrefix(d.Key(last), fmt.Sprintf("%06d", n-1)) {
		t.Fatalf("%s: %d samples", uri, d.Len())
	}
	made, kept := used()
	if made/n > 64<<10 || kept/n > 2<<10 {
		t.Errorf("%s: %d bytes of memory for each file, and %d of them kept", x.ext, made/n, kept/n)
	}
	for i := 0; i < n; i += n / 300 {
		_, err := c.Read(t.Context(), d.Object(ident.SampleID(i)), nil)
		must(t, err)
	}

	opened := watchOpens(t, root)
	began = time.Now()
	again, _ := open(t, index)
	d2, err := again.Add(t.Context(), "", uri)
	must(t, err)
	checked := time.Since(began)
	if k := opened(); k != 0 || d2.Fingerprint() != d.Fingerprint() {
		t.Errorf("%s: %d files were opened where none had changed", x.ext, k)
	}
	must(t, os.WriteFile(name(n/2), []byte(x.changed), 0o644))
	opened()
	d2, err = again.Add(t.Context(), "", uri)
	must(t, err)
	k := opened()
	if k < 1 || k > x.opened || d2.Len() != n+1 && d2.Len() != n+2 { // a line that moved is another sample
		t.Errorf("%s: %d files were opened where one had changed, and there are %d samples", x.ext, k, d2.Len())
	}
	t.Logf("nightly: %d files of %s: indexed in %.2f s, checked again in %.2f s, %d bytes of memory each while "+
		"indexed, %d kept", n, x.ext, took.Seconds(), checked.Seconds(), made/n, kept/n)
}

// inMemory is a folder in memory, where there is room for so many bytes, else on disk: many small files are slow there.
func inMemory(t *testing.T, bytes int64) string {
	t.Helper()
	const memory = "/dev/shm"
	var st unix.Statfs_t
	if unix.Statfs(memory, &st) != nil || int64(st.Bavail)*st.Bsize < 2*bytes {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(memory, "larder-test-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// memory counts what is allocated from now on, and what of it is kept.
func memory() func() (made, kept int) {
	var before, after, kept runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	return func() (int, int) {
		runtime.ReadMemStats(&after)
		runtime.GC()
		runtime.ReadMemStats(&kept)
		return int(after.TotalAlloc - before.TotalAlloc), max(0, int(kept.HeapAlloc)-int(before.HeapAlloc))
	}
}

// limitFiles lets this process have so many more files open than it has now, until the test ends.
func limitFiles(t *testing.T, more int) {
	t.Helper()
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(fds) + more), Max: was.Max}))
	t.Cleanup(func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) })
}

// watchOpens counts how often files directly in a folder were opened since it was asked last.
func watchOpens(t *testing.T, dir string) func() int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	t.Cleanup(func() { must(t, unix.Close(fd)) })
	_, err = unix.InotifyAddWatch(fd, dir, unix.IN_OPEN)
	must(t, err)
	buf := make([]byte, 64<<10)
	return func() (count int) {
		for {
			n, err := unix.Read(fd, buf)
			if err != nil {
				return count
			}
			for at := 0; at+unix.SizeofInotifyEvent <= n; {
				mask := binary.NativeEndian.Uint32(buf[at+4:])
				length := binary.NativeEndian.Uint32(buf[at+12:])
				if mask&unix.IN_OPEN != 0 && mask&unix.IN_ISDIR == 0 {
					count++
				}
				at += unix.SizeofInotifyEvent + int(length)
			}
		}
	}
}

// TestFilesWithoutAByte: a file of no bytes is an error that names it, in formats with a header or an end. Files of
// lines and of ids hold nothing then, and need another one.
func TestFilesWithoutAByte(t *testing.T) {
	lines := "its files hold no sample"
	for uri, says := range map[string]string{
		"wds:%s/a.tar":              "/a.tar: it has 0 bytes and is cut",
		"wds:%s/a.tar.gz":           "/a.tar.gz: it is no gzip file: EOF",
		"npy:%s/a.npy":              "/a.npy: 0 bytes are no .npy file",
		"npz:%s/a.npz":              "/a.npz: it is no archive of numpy.savez",
		"tokens:%s/a.npy?seq_len=2": "/a.npy: 0 bytes are no .npy file",
		"tokens:%s/a.bin?seq_len=2": "none of the 1 files",
		"jsonl:%s/a.jsonl":          lines,
		"jsonl:%s/a.jsonl.gz":       "/a.jsonl.gz: line 1, at byte 0: it has no bytes, and gzip of nothing has: it is cut",
		"jsonl:%s/a.jsonl.zst":      lines,
		"csv:%s/a.csv":              lines,
		"text:%s/a.txt":             "none of the 1 files",
		"imagefiles:%s/a.csv":       "none of the 1 files",
		"parquet:%s/a.parquet":      "a.parquet: 0 bytes are no Parquet file",
		"hf:%s/a.arrow":             "a.arrow: message 0, at byte 0: it is cut",
		"tfrecord:%s/a.tfrecord":    "its files have no records",
		"lmdb:%s/a.mdb":             "a.mdb: neither meta page is one of LMDB 0.9: 0 bytes are too few",
		"fasta:%s/a.fa":             "/a.fa: it has no sequence",
		"beton:%s/a.beton":          "/a.beton: its header: unexpected EOF",
		"mds:%s/":                   "index.json is no index of MosaicML's streaming: unexpected end",
		"idx:%s/":                   "/train-images-idx3-ubyte: it has 0 bytes, fewer than its header",
		"cifar10:%s/":               ".bin: it has 0 bytes, which are no whole rows of 3073 bytes",
	} { // order-free: each by itself
		root := t.TempDir()
		names := []string{strings.TrimPrefix(strings.Split(uri, "?")[0], strings.Split(uri, "/")[0]+"/")}
		switch uri {
		case "mds:%s/":
			names = []string{"index.json"}
		case "idx:%s/":
			names = []string{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"}
		case "cifar10:%s/":
			names = []string{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"}
		}
		for _, n := range names {
			write(t, root, n, "")
		}
		c, _ := open(t, "")
		_, err := c.Add(t.Context(), "", fmt.Sprintf(uri, root))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want %q", uri, err, says)
		}
	}
	for uri, x := range map[string]struct {
		ext, body string
		n         int // samples; 0 = it is refused
	}{
		"wds:%s":              {".tar", shard(t, "1=2"), 0},
		"npy:%s":              {".npy", npyFile(3), 0},
		"parquet:%s":          {".parquet", parquetFile(t, 4), 0},
		"jsonl:%s":            {".jsonl", "{\"x\": 1}\n", 1},
		"csv:%s":              {".csv", "x\n1\n", 1},
		"text:%s":             {".txt", "a\n\n", 2},
		"tokens:%s?seq_len=2": {".bin", strings.Repeat("\x01\x00", 9), 4},
	} { // order-free: each by itself
		root := t.TempDir()
		write(t, root, "a"+x.ext, x.body)
		write(t, root, "b"+x.ext, "")
		c, _ := open(t, "")
		d, err := c.Add(t.Context(), "", fmt.Sprintf(uri, root))
		switch {
		case x.n == 0 && (err == nil || !strings.Contains(err.Error(), "b"+x.ext)):
			t.Errorf("%s with a file of no bytes: %v", uri, err)
		case x.n > 0 && (err != nil || len(recordsOf(t, c, d)) != x.n):
			t.Errorf("%s with a file of no bytes: %v, %v", uri, d, err)
		}
	}
}

// TestKeysThatComeTwice: what names a sample or a field may be there once.
func TestKeysThatComeTwice(t *testing.T) {
	for name, x := range map[string]struct {
		uri, file, body, says string
	}{
		"a key in a tar":     {"wds:%s", "a.tar", shard(t, "1=2", "2=1", "1=3"), `key "1" comes twice, the second`},
		"one of a gzipped":   {"wds:%s", "a.tar.gz", string(gzipOf(t, []byte(shard(t, "1=2", "2=1", "1=3")))), "comes twice"},
		"an id of FASTA":     {"fasta:%s", "a.fa", ">a\nAC\n>b\nGT\n>a\nAA\n", `id "a" comes twice, the second time at`},
		"a key of a line":    {"jsonl:%s", "a.jsonl", `{"x": 1, "x": 2}`, `line 1, at byte 0: it has "x" twice`},
		"a column of a CSV":  {"csv:%s", "a.csv", "x,x\n1,2\n", "each needs one of its own"},
		"an image of a list": {"imagefiles:%s", "a.csv", "path,label\nx.png,1\nx.png,2\n", "x.png"},
	} { // order-free: each by itself
		root := t.TempDir()
		write(t, root, x.file, x.body)
		write(t, root, "x.png", "x")
		c, _ := open(t, "")
		_, err := c.Add(t.Context(), "", fmt.Sprintf(x.uri, root))
		if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), x.says) ||
			!strings.Contains(err.Error(), x.file) {
			t.Errorf("%s: %v; want %q", name, err, x.says)
		}
	}
	root := t.TempDir() // in two files they are two samples
	write(t, root, "a.tar", shard(t, "1=2"))
	write(t, root, "b.tar", shard(t, "1=0"))
	c, _ := open(t, "")
	d, err := c.Add(t.Context(), "", "wds:"+root)
	must(t, err)
	if got := listing(t, c, d); !slices.Equal(got, []string{"0 a.tar/1 2 2 image of 1", "1 b.tar/1 0 0 image of 1"}) {
		t.Errorf("the same key in two files: %q", got)
	}
	if _, err := c.Add(t.Context(), "", "wds:"+root+"/a.tar::"+root+"/{a,b}.tar"); err == nil ||
		!strings.Contains(err.Error(), `a.tar" is named twice`) {
		t.Errorf("a file that is named twice: %v", err)
	}
}

// TestSamplesWithoutLabel have the label -1 and no class, beside labels of numbers and of words; as records they are
// left out, and counted.
func TestSamplesWithoutLabel(t *testing.T) {
	for labels, want := range map[string][]string{
		"2  0":    {"0 a.tar/1 2 2 image of 1", "1 a.tar/2 -1  image of 2", "2 a.tar/3 0 0 image of 3"},
		"b  word": {"0 a.tar/1 0 b image of 1", "1 a.tar/2 -1  image of 2", "2 a.tar/3 1 word image of 3"},
		"  ":      {"0 a.tar/1 -1  image of 1", "1 a.tar/2 -1  image of 2", "2 a.tar/3 -1  image of 3"},
	} { // order-free: each by itself
		l := strings.Split(labels, " ")
		root := t.TempDir()
		write(t, root, "a.tar", shard(t, "1="+l[0], "2="+l[1], "3="+l[2]))
		c, _ := open(t, "")
		d, err := c.Add(t.Context(), "", "wds:"+root)
		must(t, err)
		if got := listing(t, c, d); !slices.Equal(got, want) {
			t.Errorf("labels %q: %q", labels, got)
		}
		if ids, err := d.Select("label == -1"); err == nil && len(ids) != strings.Count(strings.Join(want, ""), " -1 ") {
			t.Errorf("labels %q: label == -1 selects %v", labels, ids)
		}
		d, err = c.Add(t.Context(), "", "wds:"+root+"?fields=jpg,cls")
		if labels == "  " {
			if err == nil || !strings.Contains(err.Error(), `names "cls"`) {
				t.Errorf("records without any label: %v", err)
			}
			continue
		}
		must(t, err)
		if got := recordsOf(t, c, d); len(got) != 2 || len(d.Notes()) != 1 ||
			!strings.Contains(d.Notes()[0], "1 sample has not all fields of ?fields= and is left out") {
			t.Errorf("labels %q: %d records, notes %q", labels, len(got), d.Notes())
		}
	}
}

// TestLinksToPackedFiles: a symbolic link stands for its file, wherever that is; a link to nothing, to itself or to a
// folder is an error that names the link.
func TestLinksToPackedFiles(t *testing.T) {
	out := t.TempDir()
	write(t, out, "x.tar", shard(t, "1=2"))
	write(t, out, "x.jsonl", "{\"x\": 1}\n")
	for uri, x := range map[string]struct{ link, to, key, says string }{
		"wds:%s":               {"a.tar", out + "/x.tar", "a.tar/1", ""},
		"wds:%s/a.tar":         {"a.tar", out + "/x.tar", "a.tar/1", ""},
		"wds:%s/l/{x..y}.tar":  {"l", out, "", "is no range of numbers"},
		"wds:%s/l/x.tar":       {"l", out, "x.tar/1", ""},
		"jsonl:%s":             {"a.jsonl", out + "/x.jsonl", "a.jsonl/00000000", ""},
		"jsonl:%s/{a,b}.jsonl": {"a.jsonl", out + "/x.jsonl", "", `b.jsonl": no such file`},
		"wds:%s/":              {"a.tar", out + "/none", "", `a.tar": no such file`},
		"jsonl:%s/":            {"a.jsonl", "a.jsonl", "", `a.jsonl": too many levels of symbolic links`},
		"npy:%s":               {"a.npy", out, "", `a.npy": it is not a regular file`},
	} { // order-free: each by itself
		root := t.TempDir()
		must(t, os.Symlink(x.to, filepath.Join(root, x.link)))
		c, _ := open(t, "")
		d, err := c.Add(t.Context(), "", fmt.Sprintf(uri, root))
		if x.says != "" {
			if err == nil || !strings.Contains(err.Error(), x.says) {
				t.Errorf("%s: %v; want %q", uri, err, x.says)
			}
			continue
		}
		must(t, err)
		if got := keys(d); !slices.Equal(got, []string{x.key}) || len(recordsOf(t, c, d)) != 1 {
			t.Errorf("%s: %q", uri, got)
		}
	}
}
