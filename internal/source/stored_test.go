package source

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/png"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"larder/internal/errs"
	"larder/internal/store"
)

// bucketOf serves a bucket "data" in this process.
type bucketOf struct {
	mem      *s3mem.Backend
	next     http.Handler // that answers
	stores   *store.Stores
	lists    atomic.Int64
	reads    atomic.Int64
	status   atomic.Int64                     // not 0: what every request is answered with
	before   atomic.Pointer[http.HandlerFunc] // what sees a read first, and may keep it; nil = nothing
	patience time.Duration
}

func newBucket(t *testing.T) *bucketOf {
	t.Helper()
	b := &bucketOf{mem: s3mem.New(), patience: time.Second}
	must(t, b.mem.CreateBucket("data"))
	b.next = gofakes3.New(b.mem).Server()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := b.status.Load(); status != 0 {
			w.WriteHeader(int(status))
			return
		}
		if r.URL.Query().Has("list-type") {
			b.lists.Add(1)
		} else {
			b.reads.Add(1)
			if f := b.before.Load(); f != nil {
				(*f)(w, r)
				return
			}
		}
		b.next.ServeHTTP(w, r)
	}))
	b.stores = store.New(store.Config{Log: slog.New(slog.DiscardHandler), Settings: func(string, string) store.Settings {
		s := store.Default()
		s.Endpoint, s.Region, s.Anonymous, s.RetryFor = srv.URL, "us-east-1", true, b.patience
		s.Hedge = 0 // requests are counted, and a second one may come late
		return s
	}})
	t.Cleanup(func() {
		b.stores.Close()
		srv.Close()
	})
	return b
}

func (b *bucketOf) put(t *testing.T, key, content string) {
	t.Helper()
	meta := map[string]string{"Last-Modified": "Mon, 02 Jan 2023 15:04:05 GMT"}
	_, err := b.mem.PutObject("data", key, meta, strings.NewReader(content), int64(len(content)), nil)
	must(t, err)
}

func (b *bucketOf) open(t *testing.T, index string) *Catalog {
	t.Helper()
	c, err := OpenCatalog(CatalogConfig{IndexDir: index, Stores: b.stores, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// A folder and a bucket with the same content are the same dataset: ids, labels, classes, bytes, subsets, notes.
func TestABucketIsReadAsAFolder(t *testing.T) {
	b := newBucket(t)
	root := t.TempDir()
	for _, rel := range []string{"b/2.jpg", "b/10.jpg", "a-x/é ü.png", "a/1.JPG", "a/deep/er/0.webp", "a/deep/1.png",
		"a/notes.txt", "a.b/x.jpg", "top.jpg", "readme.md", "a/%20+&?#.jpg", "Z/1.jpg"} {
		write(t, root, rel, "content of "+rel)
		b.put(t, "sets/train/"+rel, "content of "+rel)
	}
	b.put(t, "sets/train-other/c/1.jpg", "of another dataset")
	b.put(t, "sets/train/a/", "") // as a console makes folders
	c := b.open(t, "")
	folder, err := c.Add(t.Context(), "", "imagefolder:"+root)
	must(t, err)
	stored, err := c.Add(t.Context(), "", "imagefolder:s3://data/sets/train/")
	must(t, err)
	if stored.URI() != "imagefolder:s3://data/sets/train" || stored.Len() != folder.Len() ||
		!slices.Equal(keys(stored), keys(folder)) || !slices.Equal(stored.Classes(), folder.Classes()) ||
		stored.TotalBytes() != folder.TotalBytes() {
		t.Fatalf("%q %q\n%q %q", stored.Classes(), keys(stored), folder.Classes(), keys(folder))
	}
	if got, want := stored.Notes(), folder.Notes(); !slices.Equal(got, want) {
		t.Errorf("notes %q, want %q", got, want)
	}
	for s := range sampleID(stored.Len()) {
		got, err := c.Read(t.Context(), stored.Object(s), nil)
		if err != nil || string(got) != "content of "+stored.Key(s) || stored.Label(s) != folder.Label(s) {
			t.Errorf("%s: %q, %v", stored.Key(s), got, err)
		}
		if path, _ := c.ObjectPath(stored.Object(s)); path != "s3://data/sets/train/"+stored.Key(s) {
			t.Errorf("path %q", path)
		}
	}
	again, err := c.Add(t.Context(), "", "imagefolder:s3://data/sets/train")
	if err != nil || again != stored {
		t.Errorf("%v, %v", again, err)
	}
	upper, err := c.Add(t.Context(), "up", "imagefolder:s3://data/sets") // of the same objects
	must(t, err)
	if n := c.SharedSamples(upper); n != stored.LiveCount() {
		t.Errorf("%d of %d samples are shared", n, stored.LiveCount())
	}
}

func keysOf(d *Dataset) (out []string) {
	for s := range sampleID(d.Len()) {
		if d.Live(s) {
			out = append(out, d.Key(s))
		}
	}
	return out
}

// A saved index is taken without a look; what was written again is an error when it is read, and new from then on.
func TestABucketThatChanges(t *testing.T) {
	b, index := newBucket(t), t.TempDir()
	for _, rel := range []string{"a/0.jpg", "a/1.jpg", "b/0.jpg"} {
		b.put(t, "t/"+rel, "content of "+rel)
	}
	const uri = "imagefolder:s3://data/t"
	c := b.open(t, index)
	d, err := c.Add(t.Context(), "", uri)
	must(t, err)
	if b.lists.Load() != 3 { // of the folder, of a, of b
		t.Fatalf("%d lists", b.lists.Load())
	}
	c = b.open(t, index)
	d2, err := c.Add(t.Context(), "", uri)
	must(t, err)
	if b.lists.Load() != 3 || d2.Fingerprint() != d.Fingerprint() || !slices.Equal(keysOf(d2), keysOf(d)) {
		t.Fatalf("%d lists, %q", b.lists.Load(), keysOf(d2))
	}
	d = d2
	b.put(t, "t/a/1.jpg", "CONTENT of a/1.jpg") // as long as before
	b.put(t, "t/b/new.jpg", "content of b/new.jpg")
	before := d.Object(1)
	for range 2 {
		if _, err := c.Read(t.Context(), before, nil); !errors.Is(err, store.ErrChanged) ||
			!errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), "larder dataset refresh") {
			t.Fatalf("%v", err)
		}
	}
	_, err = c.Add(t.Context(), "", uri)
	must(t, err)
	want := []string{"a/0.jpg", "a/1.jpg", "b/0.jpg", "b/new.jpg"}
	if got := keysOf(d); !slices.Equal(got, want) || b.lists.Load() != 6 {
		t.Errorf("%d lists, %q", b.lists.Load(), got)
	}
	if d.Object(1) == before {
		t.Error("a new version has the old object")
	}
	if got, err := c.Read(t.Context(), d.Object(1), nil); err != nil || string(got) != "CONTENT of a/1.jpg" {
		t.Errorf("%q, %v", got, err)
	}
	_, err = b.mem.DeleteObject("data", "t/a/0.jpg")
	must(t, err)
	if _, err := c.Read(t.Context(), d.Object(0), nil); !errors.Is(err, store.ErrNotExist) {
		t.Errorf("removed: %v", err)
	}
	b.put(t, "t/c/1.jpg", "another class")
	d3, err := c.Reindex(t.Context(), uri)
	must(t, err)
	if got := keysOf(d3); !slices.Equal(got, []string{"a/1.jpg", "b/0.jpg", "b/new.jpg", "c/1.jpg"}) {
		t.Errorf("%q", got)
	}
}

func TestBucketsThatCannotBeRead(t *testing.T) {
	b := newBucket(t)
	b.put(t, "rootonly/1.jpg", "x")
	b.put(t, "empty/c/readme.txt", "x")
	b.put(t, "some/a/1.jpg", "x")
	b.put(t, "some/b/", "")
	b.put(t, "odd/a/1.jpg", "x")
	b.put(t, "odd/a//2.jpg", "x")
	c := b.open(t, t.TempDir())
	for uri, x := range map[string]struct {
		reason errs.Reason
		says   string
	}{
		"s3://nosuch/train":  {errs.DatasetUnread, "no such bucket"},
		"s3://data/nosuch":   {errs.DatasetEmpty, "has no class folders"},
		"s3://data/rootonly": {errs.DatasetEmpty, "1 images of its own"},
		"s3://data/empty":    {errs.DatasetEmpty, "holds an image"},
		"s3://data/some":     {errs.DatasetEmpty, `class folder "b"`},
		"s3://data/odd":      {errs.DatasetUnread, "a part of its key is empty"},
	} {
		if _, err := c.Add(t.Context(), "", "imagefolder:"+uri); !errs.Is(err, x.reason) ||
			!strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v, want %s and %q", uri, err, x.reason, x.says)
		}
	}
	d, err := c.AddSkipEmpty(t.Context(), "", "imagefolder:s3://data/some")
	if err != nil || len(d.Classes()) != 2 {
		t.Errorf("%v, %v", d, err)
	}
	other := Reader{UID: 12345, GID: 12345}
	for name, f := range map[string]func() error{
		"list": func() error { return c.MayList("imagefolder:s3://data/some", other) },
		"open": func() error { _, err := c.OpenFor(t.Context(), "imagefolder:s3://data/x", false, other); return err },
		"read": func() error { _, err := c.MayRead(t.Context(), d, other); return err },
		"see":  func() error { return c.MaySee(t.Context(), d, other) },
	} {
		if err := f(); !errs.Is(err, errs.Denied) {
			t.Errorf("another user may %s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Reindex(ctx, "imagefolder:s3://data/some"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// The head of an object is one request, whatever the format.
func TestProbeInABucket(t *testing.T) {
	b := newBucket(t)
	var img bytes.Buffer
	must(t, png.Encode(&img, image.NewGray(image.Rect(0, 0, 31, 17))))
	b.put(t, "t/a/0.png", img.String())
	b.put(t, "t/a/1.png", "no image")
	jpegs, err := filepath.Glob("../prep/testdata/*.jpg")
	must(t, err)
	for _, j := range jpegs {
		data, err := os.ReadFile(j)
		must(t, err)
		b.put(t, "t/b/"+filepath.Base(j), string(data))
	}
	b.put(t, "t/b/0.png", img.String())
	c := b.open(t, "")
	d, err := c.Add(t.Context(), "", "imagefolder:s3://data/t")
	must(t, err)
	b.reads.Store(0)
	p, err := c.Probe(t.Context(), d.Object(0))
	if err != nil || p != (Probe{"png", 31, 17}) || b.reads.Load() != 1 {
		t.Errorf("%+v, %v after %d requests", p, err, b.reads.Load())
	}
	if _, err := c.Probe(t.Context(), d.Object(1)); !errs.Is(err, errs.SampleBad) {
		t.Errorf("no image: %v", err)
	}
	for s := range sampleID(d.Len()) {
		if strings.HasSuffix(d.Key(s), ".jpg") {
			if p, err := c.Probe(t.Context(), d.Object(s)); err == nil && (p.Format != "jpeg" || p.Width < 1) {
				t.Errorf("%s: %+v", d.Key(s), p)
			}
		}
	}
}
