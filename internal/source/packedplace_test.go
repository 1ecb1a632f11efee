package source

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/store"
)

// A set of tars in a folder, in a bucket and on a web server is the same dataset, however it is written.
func TestPackedFilesOfAnyPlace(t *testing.T) {
	b, root := newBucket(t), t.TempDir()
	for i := range 6 {
		content := shard(t, fmt.Sprintf("%d-a=%d", i, i%3), fmt.Sprintf("x/%d ü=1", i))
		write(t, root, fmt.Sprintf("set/train-%03d.tar", i), content)
		b.put(t, fmt.Sprintf("set/train-%03d.tar", i), content)
	}
	b.put(t, "set/readme.md", "no tar")
	b.put(t, "set-other/train-000.tar", "another one")
	web := httptest.NewServer(http.FileServer(http.Dir(root)))
	defer web.Close()
	c := b.open(t, "")
	local, err := c.Add(t.Context(), "", "wds:"+root+"/set")
	must(t, err)
	want := listing(t, c, local)
	if len(want) != 12 {
		t.Fatalf("%d samples", len(want))
	}
	for i, uri := range []string{
		"wds:s3://data/set/train-{000..005}.tar", "wds:s3://data/set/", "wds:s3://data/set",
		"wds:s3://data/set/train-{000..001}.tar::s3://data/set/train-{002..005}.tar",
		"wds:" + web.URL + "/set/train-{000..005}.tar",
	} {
		lists, reads := b.lists.Load(), b.reads.Load()
		d, err := c.Add(t.Context(), "", uri)
		must(t, err)
		lists, reads = b.lists.Load()-lists, b.reads.Load()-reads
		// A small file is one read, and the first says what the samples are; the third uri is the second one.
		if i < 2 && (lists != 1 || reads != 6+1) || i == 2 && lists+reads != 0 {
			t.Errorf("%s: indexed with %d lists and %d reads", uri, lists, reads)
		}
		got := listing(t, c, d)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, not %q", uri, got, want)
		}
		if i > 0 && i < 4 { // the same objects under another uri
			if other, ok := c.Get("wds:s3://data/set/train-{000..005}.tar"); !ok || other.Object(7) != d.Object(7) {
				t.Errorf("%s has objects of its own", uri)
			}
		}
		if path, off := c.ObjectPath(d.Object(3)); !strings.HasSuffix(path, "/set/train-001.tar") || off == 0 ||
			!store.IsRemote(path) {
			t.Errorf("sample 3 lies at byte %d of %s", off, path)
		}
	}
}

// The index of a stored dataset is saved; a refresh scans what changed, and a read of an object that was written again
// is an error.
func TestPackedFilesOfAStoreChange(t *testing.T) {
	b, index := newBucket(t), t.TempDir()
	for i := range 3 {
		b.put(t, fmt.Sprintf("%d.tar", i), shard(t, fmt.Sprintf("%d=1", i), fmt.Sprintf("%d-=0", i)))
	}
	const uri = "wds:s3://data/{0..2}.tar"
	c := b.open(t, index)
	d, err := c.Add(t.Context(), "", uri)
	must(t, err)
	want := listing(t, c, d)

	again := b.open(t, index)
	reads, lists := b.reads.Load(), b.lists.Load()
	d2, err := again.Add(t.Context(), "", uri)
	must(t, err)
	if r, l := b.reads.Load()-reads, b.lists.Load()-lists; r != 0 || l != 0 {
		t.Errorf("a saved index took %d reads and %d lists", r, l)
	}
	if got := listing(t, again, d2); !slices.Equal(got, want) {
		t.Errorf("after a restart: %q", got)
	}
	b.put(t, "1.tar", shard(t, "1=1", "1-=2", "new=0")) // longer
	content := shard(t, "2=1", "2-=0")
	b.put(t, "2.tar", strings.Replace(content, "image of 2", "IMAGE OF 2", 1)) // of equal length
	for _, s := range []ident.SampleID{2, 3, 4, 5} {
		if got, err := again.Read(t.Context(), d2.Object(s), nil); !errs.Is(err, errs.DatasetUnread) || got != nil {
			t.Errorf("sample %d: %q, %v", s, got, err)
		}
	}
	reads = b.reads.Load()
	d2, err = again.Reindex(t.Context(), uri)
	must(t, err)
	// Each is asked for and, because it was demanded, scanned; the first also for its fields.
	if r := b.reads.Load() - reads; r != 3+3+1 {
		t.Errorf("a refresh took %d reads", r)
	}
	if got := listing(t, again, d2); len(got) != 7 || !strings.Contains(strings.Join(got, "\n"), "IMAGE OF 2") {
		t.Errorf("after a refresh: %q", got)
	}
}

// A scan is incremental: files whose version is known are not read again.
func TestOnlyChangedFilesOfAStoreAreScanned(t *testing.T) {
	b := newBucket(t)
	for i := range 4 {
		b.put(t, fmt.Sprintf("s/%d.tar", i), shard(t, fmt.Sprintf("%d=1", i)))
	}
	c := b.open(t, "")
	d, err := c.Add(t.Context(), "", "wds:s3://data/s")
	must(t, err)
	b.put(t, "s/2.tar", shard(t, "2=1", "two=1"))
	b.put(t, "s/4.tar", shard(t, "4=1"))
	if _, err := c.Read(t.Context(), d.Object(2), nil); err == nil {
		t.Fatal("a changed object was read")
	}
	reads, lists := b.reads.Load(), b.lists.Load()
	d, err = c.Add(t.Context(), "", "wds:s3://data/s")
	must(t, err)
	if r, l := b.reads.Load()-reads, b.lists.Load()-lists; r != 2 || l != 1 {
		t.Errorf("%d reads and %d lists for one changed and one new file", r, l)
	}
	if got := listing(t, c, d); len(got) != 6 {
		t.Errorf("%q", got)
	}
}

// Formats that make a header of their own, and files beside others, work from a store as from a folder.
func TestRawImagesOfAStore(t *testing.T) {
	b, root := newBucket(t), t.TempDir()
	put := func(name, content string) {
		write(t, root, name, content)
		b.put(t, "sets/"+name, content)
	}
	images := "\x00\x00\x08\x03\x00\x00\x00\x03\x00\x00\x00\x04\x00\x00\x00\x04" + strings.Repeat("abcdefgh", 6)
	put("train-images-idx3-ubyte", images)
	put("train-labels-idx1-ubyte", "\x00\x00\x08\x01\x00\x00\x00\x03\x02\x00\x01")
	var rows strings.Builder
	for i := range 5 {
		rows.WriteString(string(rune(i)) + strings.Repeat(string(rune('a'+i)), 3072))
	}
	put("cifar-10-batches-bin/test_batch.bin", rows.String())
	put("cifar-10-batches-bin/batches.meta.txt", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n")
	c := b.open(t, "")
	for _, uri := range []string{"idx:%s", "cifar10:%s?split=test"} {
		local, err := c.Add(t.Context(), "", fmt.Sprintf(uri, root))
		must(t, err)
		stored, err := c.Add(t.Context(), "", fmt.Sprintf(uri, "s3://data/sets"))
		must(t, err)
		if got, want := listing(t, c, stored), listing(t, c, local); len(got) == 0 || !slices.Equal(got, want) {
			t.Errorf("%s: %q, not %q", stored.URI(), got, want)
		}
		p, err := c.Probe(t.Context(), stored.Object(1))
		if want, lerr := c.Probe(t.Context(), local.Object(1)); err != nil || lerr != nil || p != want {
			t.Errorf("%s: %+v, %v", stored.URI(), p, err)
		}
	}
}

// Reads of samples ask for the bytes of the samples and for nothing else.
func TestSamplesOfAStoreAreOneReadEach(t *testing.T) {
	b := newBucket(t)
	var samples []string
	for i := range 50 {
		samples = append(samples, fmt.Sprintf("%s%d=1", strings.Repeat("k", 40), i))
	}
	b.put(t, "0.tar", shard(t, samples...))
	c := b.open(t, "")
	d, err := c.Add(t.Context(), "", "wds:s3://data/0.tar")
	must(t, err)
	before, total := b.stores.Counters()[0], int64(0)
	listing(t, c, d)
	for s := range ident.SampleID(d.Len()) {
		total += d.Bytes(s)
	}
	after := b.stores.Counters()[0]
	first := after.Reads - before.Reads - (after.Hedges - before.Hedges) // without second requests
	if first != 50 || int64(after.Bytes-before.Bytes) != total {
		t.Errorf("%d requests and %d bytes for 50 samples of %d bytes", first,
			after.Bytes-before.Bytes, total)
	}
}

// What cannot be read is refused with the cause and a fix, and without secrets.
func TestBadAddressesOfPackedFilesInStores(t *testing.T) {
	b := newBucket(t)
	b.put(t, "set/0.tar", shard(t, "1=1"))
	b.put(t, "set/1.tar", strings.Repeat("noise", 1000))
	b.put(t, "set/2.tar.xz", "zipped")
	b.put(t, "old/index.json", `{"version": 2, "shards": [{"format": "mds", "compression": "zstd",
		"raw_data": {"basename": "shard.0.mds"}}]}`)
	c := b.open(t, "")
	for uri, want := range map[string]string{
		"wds:s3://data/set/0.tar::s3://other/set/0.tar": "from one place",
		"wds:s3://data/set/0.tar::/set/0.tar":           "is in the file system",
		"wds:s3://data/a//b.tar":                        "no name of a folder",
		"wds:s3://data/set/{0..5}.tar":                  `s3://data/set/4.tar`,
		"wds:s3://data/set/2.tar.xz":                    "is compressed",
		"wds:s3://data/none":                            `"s3://data/none" has no .tar`,
		"wds:s3://data/set/1.tar":                       "after byte 0",
		"mds:s3://data/old":                             "is compressed (zstd)",
		"mds:s3://data/set":                             "index.json",
		"wds:s3://data/set/0.tar?split=test":            "knows no ?split=",
		"wds:ftp://host/x.tar":                          "the scheme ftp is not built",
		"wds:s3://user:geheim@data/0.tar":               "holds a user name or a secret",
		"wds:s3://data/0.tar::https://u:geheim@h/1.tar": "holds a user name or a secret",
		"wds:https://h/0.tar?X-Amz-Signature=geheim":    "knows no ?X-Amz-Signature=",
	} {
		_, err := c.Add(t.Context(), "", uri)
		e := errs.From(err)
		if err == nil || !strings.Contains(err.Error(), want) || e.Hint == "" ||
			strings.Contains(err.Error()+e.Hint, "geheim") {
			t.Errorf("%s: %v", uri, err)
		}
	}
}

// An index with the uri of a web address keeps its name through a restart, also where the path has odd characters.
func TestWebAddressesOfPackedFilesStayThemselves(t *testing.T) {
	root, index := t.TempDir(), t.TempDir()
	write(t, root, "a b%20 ?#.tar", shard(t, "1=1"))
	web := httptest.NewServer(http.FileServer(http.Dir(root)))
	defer web.Close()
	uri := "wds:" + web.URL + "/a%20b%2520%20%3F%23.tar"
	for range 2 {
		stores := store.New(store.Config{Log: slog.New(slog.DiscardHandler), Settings: func(string, string) store.Settings {
			s := store.Default()
			s.RetryFor = time.Second
			return s
		}})
		c, err := OpenCatalog(CatalogConfig{IndexDir: index, Stores: stores, Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		d, err := c.Add(t.Context(), "", uri)
		must(t, err)
		same, err := c.Add(t.Context(), "", d.URI())
		must(t, err)
		if same != d {
			t.Errorf("%s and %s are two datasets", d.URI(), same.URI())
		}
		if got := listing(t, c, d); len(got) != 1 || !strings.HasSuffix(got[0], "image of 1") {
			t.Errorf("%q", got)
		}
		must(t, c.Close())
		stores.Close()
	}
}

// TestAFolderThatCannotBeListed: the error is the store's, not that there is no such folder.
func TestAFolderThatCannotBeListed(t *testing.T) {
	b := newBucket(t)
	b.put(t, "rows/1.jsonl", "{\"x\": 1}\n")
	all := b.next
	b.next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("list-type") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		all.ServeHTTP(w, r)
	})
	_, err := b.open(t, "").Add(t.Context(), "", "jsonl:s3://data/rows")
	if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), "access is denied") {
		t.Errorf("%v", err)
	}
	d, err := b.open(t, "").Add(t.Context(), "", "jsonl:s3://data/rows/{1..1}.jsonl") // needs no list
	if err != nil || d.LiveCount() != 1 {
		t.Errorf("%v", err)
	}
}
