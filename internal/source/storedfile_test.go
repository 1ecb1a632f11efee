package source

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pq "github.com/parquet-go/parquet-go"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/spool"
	"larder/internal/store"
	"larder/internal/testenv"
	"larder/tiers/disk"
)

// npyFile is rows of four uint8, as numpy.save writes them.
func npyFile(rows int) string {
	head := fmt.Sprintf("{'descr': '|u1', 'fortran_order': False, 'shape': (%d, 4), }", rows)
	head += strings.Repeat(" ", 117-len(head)) + "\n"
	var b strings.Builder
	b.WriteString("\x93NUMPY\x01\x00\x76\x00" + head)
	for i := range 4 * rows {
		b.WriteByte(byte(i))
	}
	return b.String()
}

func tarOfTexts(t *testing.T, n int) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range n {
		text := fmt.Sprint("text of ", i)
		must(t, w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%d.txt", i), Size: int64(len(text)), Mode: 0o644}))
		_, err := io.WriteString(w, text)
		must(t, err)
	}
	must(t, w.Close())
	return b.String()
}

func mdsFile(t *testing.T, texts ...string) string {
	t.Helper()
	head, err := json.Marshal(map[string]any{"column_names": []string{"text"}, "column_encodings": []string{"str"},
		"column_sizes": []any{nil}, "format": "mds", "version": 2})
	must(t, err)
	at := 4 + 4*(len(texts)+1) + len(head)
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(texts)))
	var data []byte
	for _, s := range texts {
		b = binary.LittleEndian.AppendUint32(b, uint32(at+len(data)))
		data = append(binary.LittleEndian.AppendUint32(data, uint32(len(s))), s...)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(at+len(data)))
	return string(b) + string(head) + string(data)
}

func zipOf(t *testing.T, method uint16, name, content string) string {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: method})
	must(t, err)
	_, err = io.WriteString(w, content)
	must(t, errors.Join(err, z.Close()))
	return b.String()
}

func parquetFile(t *testing.T, rows int) string {
	t.Helper()
	type row struct{ Text string }
	all := make([]row, rows)
	for i := range all {
		all[i].Text = fmt.Sprint("row ", i)
	}
	var b bytes.Buffer
	must(t, pq.Write(&b, all, pq.MaxRowsPerRowGroup(3)))
	return b.String()
}

// recordSets are a small dataset of each way to read records: what follows the place in its uri, and its files.
func recordSets(t *testing.T) map[string]map[string]string {
	t.Helper()
	data := func(name string) string {
		b, err := os.ReadFile(filepath.Join("packed", "testdata", name))
		must(t, err)
		return string(b)
	}
	fai := "a\t4\t3\t4\t5\nb\t3\t11\t3\t4\n"
	text := "one\ntwo\nthree\n"
	mds, bin := mdsFile(t, "a", "bc", "def"), strings.Repeat("\x01\x00\x02\x00", 8)
	index := fmt.Sprintf(`{"version":2,"shards":[{"format":"mds","compression":null,"samples":3,"raw_data":`+
		`{"basename":"shard.00000.mds","bytes":%d}}]}`, len(mds))
	return map[string]map[string]string{
		"wds:%s/s.tar?fields=txt":                    {"s.tar": tarOfTexts(t, 7)},
		"wds:%s/z.tar.gz?fields=txt":                 {"z.tar.gz": string(gzipOf(t, []byte(tarOfTexts(t, 7))))},
		"wds:%s/i.tar.gz":                            {"i.tar.gz": string(gzipOf(t, []byte(shard(t, "a=1", "b=2"))))},
		"mds:%s?fields=text":                         {"index.json": index, "shard.00000.mds": mds},
		"npy:%s/a.npy":                               {"a.npy": npyFile(9)},
		"npz:%s/stored.npz":                          {"stored.npz": zipOf(t, zip.Store, "x.npy", npyFile(5))},
		"npz:%s/deflated.npz":                        {"deflated.npz": zipOf(t, zip.Deflate, "x.npy", npyFile(5))},
		"tokens:%s/t.bin?seq_len=3&stride=4&doc=idx": {"t.bin": bin, "t.idx": megatronIndex(4, 12)},
		"jsonl:%s/l.jsonl":                           {"l.jsonl": `{"x": 1}` + "\n" + `{"x": 2}` + "\n"},
		"csv:%s/c.csv":                               {"c.csv": "x,y\n1,2\n3,4\n"},
		"text:%s/z.txt.gz":                           {"z.txt.gz": string(gzipOf(t, []byte(text)))},
		"fasta:%s/f.fa":                              {"f.fa": ">a\nACGT\n>b\nMKV\n", "f.fa.fai": fai},
		"lmdb:%s/data.mdb":                           {"data.mdb": data("data.mdb")},
		"hf:%s/rows.arrow":                           {"rows.arrow": data("rows.arrow")},
		"parquet:%s/p.parquet":                       {"p.parquet": parquetFile(t, 10)},
		"tfrecord:%s/x.tfrecord":                     {"x.tfrecord": data("examples.tfrecord")},
		"tfrecord:%s/z.tfrecord":                     {"z.tfrecord": string(gzipOf(t, []byte(data("examples.tfrecord"))))},
		"beton:%s/x.beton?fields=label,blob,x,a":     {"x.beton": data("five.beton")},
	}
}

// recordsOf reads every sample.
func recordsOf(t *testing.T, c *Catalog, d *Dataset) (out []string) {
	t.Helper()
	for s := range ident.SampleID(d.Len()) {
		b, err := c.Read(t.Context(), d.Object(s), nil)
		if err != nil {
			t.Fatalf("%s: sample %d: %v", d.URI(), s, err)
		}
		out = append(out, string(b))
	}
	return out
}

// With a disk tier that holds them, records of any format in a store are fetched once: not in the second epoch, and not
// after a restart. They are those of the same files in a folder.
func TestRecordsOfAStoreAreKept(t *testing.T) {
	for uri, files := range recordSets(t) { // order-free: each by itself
		b, root, tierDir, indexDir := newBucket(t), t.TempDir(), t.TempDir(), t.TempDir()
		for name, content := range files { // order-free: files of one folder
			b.put(t, "set/"+name, content)
			write(t, root, name, content)
		}
		local, _ := open(t, "")
		d, err := local.Add(t.Context(), "", fmt.Sprintf(uri, root))
		must(t, err)
		want := recordsOf(t, local, d)
		for start := range 2 {
			tier, err := disk.Open(disk.Config{Dir: tierDir, Size: 64 << 20})
			must(t, err)
			c, err := OpenCatalog(CatalogConfig{IndexDir: indexDir, Stores: b.stores, Kept: tier, Spool: tier,
				Logger: slog.New(slog.DiscardHandler)})
			must(t, err)
			d, err := c.Add(t.Context(), "", fmt.Sprintf(uri, "s3://data/set"))
			must(t, err)
			for epoch := range 2 {
				before := b.reads.Load()
				got := recordsOf(t, c, d)
				tier.Flush()
				if strings.Join(got, "|") != strings.Join(want, "|") {
					t.Errorf("%s: %q, not %q", uri, got, want)
				}
				if n := b.reads.Load() - before; start+epoch > 0 && n != 0 {
					t.Errorf("%s: %d requests in epoch %d after start %d", uri, n, epoch, start)
				}
			}
			must(t, errors.Join(c.Close(), tier.Close()))
		}
	}
}

// Files of a store stay open, so that a header is read once, also of many files in any order, and without a disk tier.
func TestManyFilesOfAStoreStayOpen(t *testing.T) {
	b := newBucket(t)
	const files = 200
	for i := range files {
		b.put(t, fmt.Sprintf("n/%03d.npy", i), npyFile(2))
	}
	c := b.open(t, "")
	d, err := c.Add(t.Context(), "", "npy:s3://data/n")
	must(t, err)
	recordsOf(t, c, d)
	before := b.stores.Counters()[0]
	for i := range 2 * files { // now one row of each file, then the other
		_, err := c.Read(t.Context(), d.Object(ident.SampleID(i%files*2+i/files)), nil)
		must(t, err)
	}
	after := b.stores.Counters()[0]
	if n := after.Reads - before.Reads; n != 2*files {
		t.Errorf("%d requests for %d samples of %d files", n, 2*files, files)
	}
	if n := c.files.bytes; n > maxIdle || n < files*ofStored {
		t.Errorf("files that are open count as %d bytes", n)
	}
}

// Bytes of blocks are not kept beside their records.
func TestBlocksOfAStoreAreKeptOnce(t *testing.T) {
	b := newBucket(t)
	b.put(t, "p.parquet", parquetFile(t, 30))
	tier, err := disk.Open(disk.Config{Dir: t.TempDir(), Size: 64 << 20})
	must(t, err)
	c, err := OpenCatalog(CatalogConfig{Stores: b.stores, Kept: tier, Spool: tier})
	must(t, err)
	d, err := c.Add(t.Context(), "", "parquet:s3://data/p.parquet")
	must(t, err)
	recordsOf(t, c, d)
	tier.Flush()
	if s := tier.Stats(); s.Blocks != 10 || s.Entries > 4 { // the parts of the footer
		t.Errorf("%d blocks and %d entries", s.Blocks, s.Entries)
	}
	must(t, errors.Join(c.Close(), tier.Close()))
}

// Reads of records from a store wait for the storage limit.
func TestRecordsOfAStoreWaitForTheLimit(t *testing.T) {
	b := newBucket(t)
	b.put(t, "a.npy", npyFile(9))
	c := b.open(t, "")
	d, err := c.Add(t.Context(), "", "npy:s3://data/a.npy")
	must(t, err)
	recordsOf(t, c, d)
	c.SetStorageLimit(1, 0)
	next := func() time.Time {
		c.limit.mu.Lock()
		defer c.limit.mu.Unlock()
		return c.limit.bytes.next
	}
	c.limit.mu.Lock()
	c.limit.bytes.take(time.Now(), 3600) // four bytes come after an hour
	c.limit.mu.Unlock()
	full, before := next(), b.reads.Load()
	ctx, read := testenv.NewDeadline(t.Context()), make(chan error, 1)
	go func() {
		_, err := c.Read(ctx, d.Object(3), nil)
		read <- err
	}()
	testenv.Eventually(t, "the read waits for the limit", func() bool { return next().After(full) })
	ctx.Pass()
	if err := <-read; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if n := b.reads.Load() - before; n != 0 {
		t.Errorf("%d requests were made before their time", n)
	}
}

// A read of a record ends with its context, whatever the store does: while its file is opened, by this read or by
// another one, and while it is read. The file is then as good as before for others.
func TestReadsOfRecordsInAStoreEndWithTheirContext(t *testing.T) {
	for uri, files := range recordSets(t) { // order-free: each by itself
		b := newBucket(t)
		b.patience = time.Hour
		for name, content := range files { // order-free: files of one folder
			b.put(t, "set/"+name, content)
		}
		c, err := OpenCatalog(CatalogConfig{Stores: b.stores, Spool: spool.NewMemory(1 << 20),
			Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		d, err := c.Add(t.Context(), "", fmt.Sprintf(uri, "s3://data/set"))
		must(t, err)
		for when := range 2 { // not open yet, open
			came, over := make(chan struct{}, 100), make(chan struct{})
			hang := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				came <- struct{}{}
				<-over
			})
			b.before.Store(&hang)
			last := ident.SampleID(d.Len() - 1)
			first, stopFirst := context.WithCancel(t.Context())
			second, stopSecond := context.WithCancel(t.Context())
			ends := make(chan error, 2)
			read := func(ctx context.Context) {
				_, err := c.Read(ctx, d.Object(last), nil)
				ends <- err
			}
			go read(first)
			select {
			case <-came:
			case err := <-ends: // from the spool, which has all of the file
				must(t, err)
				stopFirst()
				stopSecond()
				continue
			}
			go read(second)
			stopSecond()
			stopFirst()
			for range 2 {
				wantCanceled(t, uri, ends)
			}
			b.before.Store(nil)
			close(over) // also after an error: the server waits for it
			if when == 0 {
				_, err := c.Read(t.Context(), d.Object(0), nil)
				must(t, err)
				continue
			}
			recordsOf(t, c, d)
		}
		must(t, c.Close())
	}
}

func wantCanceled(t *testing.T, uri string, ends chan error) {
	t.Helper()
	select {
	case err := <-ends:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", uri, err)
		}
	case <-time.After(5 * time.Minute):
		t.Errorf("%s: a read goes on without its context", uri)
	}
}

// A store that fails says nothing about samples.
func TestAFailingStoreIsNoBadSample(t *testing.T) {
	for uri, files := range recordSets(t) { // order-free: each by itself
		b := newBucket(t)
		for name, content := range files { // order-free: files of one folder
			b.put(t, "set/"+name, content)
		}
		c := b.open(t, "")
		d, err := c.Add(t.Context(), "", fmt.Sprintf(uri, "s3://data/set"))
		must(t, err)
		b.patience = time.Millisecond
		fail := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
		for range 2 { // not open yet, open
			b.before.Store(&fail)
			before := b.reads.Load()
			_, err := c.Read(t.Context(), d.Object(0), nil)
			if asked := b.reads.Load() > before; asked && !errs.Is(err, errs.DatasetUnread) || !asked && err != nil {
				t.Errorf("%s: %v", uri, err)
			}
			b.before.Store(nil)
			_, err = c.Read(t.Context(), d.Object(ident.SampleID(d.Len()-1)), nil)
			must(t, err)
		}
	}
}

// Files beside those of samples are read as they were indexed, or not at all.
func TestFilesBesideOthersAreOfTheIndexedVersion(t *testing.T) {
	b, root, index := newBucket(t), t.TempDir(), t.TempDir()
	put := func(sizes ...int32) {
		bin := strings.Repeat("\x01\x00", 8)
		b.put(t, "t.bin", bin)
		b.put(t, "t.idx", megatronIndex(sizes...))
		if len(sizes) == 2 && sizes[0] == 4 {
			write(t, root, "t.bin", bin)
		}
		write(t, root, "t.idx", megatronIndex(sizes...))
	}
	put(4, 4)
	for _, place := range []string{root, "s3://data"} {
		c := b.open(t, index)
		_, err := c.Add(t.Context(), "", "tokens:"+place+"/t.bin?seq_len=3&stride=4&doc=idx")
		must(t, err)
	}
	c := b.open(t, index)
	d, err := c.Add(t.Context(), "", "tokens:s3://data/t.bin?seq_len=3&stride=4&doc=idx")
	must(t, err)
	here, err := c.Add(t.Context(), "", "tokens:"+root+"/t.bin?seq_len=3&stride=4&doc=idx")
	must(t, err)
	put(2, 6)
	for _, x := range []struct {
		d    *Dataset
		want error
	}{{d, store.ErrChanged}, {here, nil}} {
		_, err := c.Read(t.Context(), x.d.Object(0), nil)
		if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), "t.idx") ||
			!strings.Contains(err.Error(), "changed") || x.want != nil && !errors.Is(err, x.want) {
			t.Errorf("%s: %v", x.d.URI(), err)
		}
		again, err := c.Reindex(t.Context(), x.d.URI())
		must(t, err)
		if got := fieldOf(t, c, again, 0, "doc"); len(got) == 0 {
			t.Error("no documents")
		}
	}
}
