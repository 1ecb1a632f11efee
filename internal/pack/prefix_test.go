package pack

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"larder/internal/errs"
	"larder/internal/store"
	"larder/internal/testenv/lane"
	"larder/internal/xrand"
)

// bucket is an S3 server in this process, with faults before it.
type bucket struct {
	*httptest.Server
	mem *s3mem.Backend

	mu    sync.Mutex
	fault func(w http.ResponseWriter, r *http.Request, next http.Handler) bool // it answered
}

func newBucket(t testing.TB) *bucket {
	t.Helper()
	b := &bucket{mem: s3mem.New()}
	if err := b.mem.CreateBucket("data"); err != nil {
		t.Fatal(err)
	}
	next := gofakes3.New(b.mem, gofakes3.WithTimeSkewLimit(0)).Server()
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		fault := b.fault
		b.mu.Unlock()
		if fault == nil || !fault(w, r, next) {
			next.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *bucket) faulty(f func(w http.ResponseWriter, r *http.Request, next http.Handler) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = f
}

// stores reach the bucket.
func (b *bucket) stores(t testing.TB, change func(*store.Settings)) *store.Stores {
	t.Helper()
	set := store.Default()
	set.Endpoint, set.Region, set.Anonymous = b.URL, "us-east-1", true
	set.RetryFor, set.PriceList = 10*time.Second, 5
	if change != nil {
		change(&set)
	}
	s := store.New(store.Config{Log: slog.New(slog.DiscardHandler), Settings: func(string, string) store.Settings {
		return set
	}})
	t.Cleanup(s.Close)
	return s
}

// objects is everything below a prefix.
func (b *bucket) objects(t testing.TB, prefix string) map[string]string {
	t.Helper()
	list, err := b.mem.ListBucket("data", &gofakes3.Prefix{}, gofakes3.ListBucketPage{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, o := range list.Contents {
		name, ok := strings.CutPrefix(o.Key, prefix+"/")
		if !ok {
			continue
		}
		got, err := b.mem.GetObject("data", o.Key, nil)
		if gofakes3.HasErrorCode(err, gofakes3.ErrNoSuchKey) {
			continue // a request of a run that has ended removed it
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(got.Contents)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(body)
	}
	return out
}

func (b *bucket) put(t testing.TB, key, body string) {
	t.Helper()
	if _, err := b.mem.PutObject("data", key, map[string]string{"Last-Modified": "Mon, 02 Jan 2023 15:04:05 GMT"},
		strings.NewReader(body), int64(len(body)), nil); err != nil {
		t.Fatal(err)
	}
}

// refuse answers with a code of S3.
func refuse(w http.ResponseWriter, status int, code string) bool {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "<Error><Code>"+code+"</Code></Error>") // the client may be gone
	return true
}

// writes reports whether a request writes an object.
func writes(r *http.Request) bool { return r.Method == http.MethodPut || r.Method == http.MethodPost }

// TestPacksInStores: they have the bytes of a pack in a folder, are verified, and packing again has nothing to do.
func TestPacksInStores(t *testing.T) {
	for seed, format := range map[uint64]string{21: WDS, 22: MDS} {
		cfg := Config{URI: "imagefolder:" + photos(t, seed, 11), To: to(t, format), disk: disk{sync: unsynced},
			ShardSize: 20 << 10, Properties: seed == 22}
		must(t, cfg)
		want := tree(t, cfg.To.Dir)
		b := newBucket(t)
		seen := []Progress{}
		var mu sync.Mutex
		cfg.To, cfg.Stores, cfg.Verify = Target{format, "s3://data/a/b"}, b.stores(t, nil), true
		cfg.Report = func(p Progress) { mu.Lock(); defer mu.Unlock(); seen = append(seen, p) }
		r := must(t, cfg)
		if got := b.objects(t, "a/b"); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: the bucket has other files than the folder: %d and %d", format, len(got), len(want))
		}
		if r.Verified != 33 || r.Shards < 2 || r.URI != format+":s3://data/a/b" || len(seen) == 0 {
			t.Errorf("%s: %+v", format, r)
		}
		c := r.Stores[0]
		least := uint64(2*r.Shards + 4) // shards and their notes; owner, options, end, manifest
		removed := uint64(r.Shards + 2) // notes; the owner's goes when all is counted
		if c.Deletes < removed || c.Deletes > removed+2 {
			t.Errorf("%s: %d shards and %d deletes", format, r.Shards, c.Deletes)
		}
		if c.Name != "s3://data" || c.Writes < least || c.Writes > least+8 || c.Sent < uint64(r.Bytes) ||
			c.Sent > uint64(r.Bytes)+64<<10 || c.Received < uint64(r.Bytes) || c.Money <= 0 || c.Retries != 0 {
			t.Errorf("%s: %d shards of %d bytes cost %+v", format, r.Shards, r.Bytes, c)
		}
		cfg.Stores = b.stores(t, nil)
		if again := must(t, cfg); again.Earlier != 33 || again.Stores[0].Writes != 0 {
			t.Errorf("%s: packing again was no no-op: %+v", format, again)
		}
	}
}

// TestUploadsOverABadNetwork: every third request fails once, in one way or another, and the pack is what it should be.
func TestUploadsOverABadNetwork(t *testing.T) {
	cfg := Config{URI: "imagefolder:" + photos(t, 23, 12), To: to(t, WDS), disk: disk{sync: unsynced}, ShardSize: 24 << 10}
	must(t, cfg)
	want := tree(t, cfg.To.Dir)
	for name, fault := range map[string]func(w http.ResponseWriter, r *http.Request, next http.Handler) bool{
		"503": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool { return refuse(w, 503, "SlowDown") },
		"500": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool {
			return refuse(w, 500, "InternalError")
		},
		"cut": func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool { panic(http.ErrAbortHandler) },
		"no answer": func(_ http.ResponseWriter, r *http.Request, next http.Handler) bool {
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		},
	} {
		b := newBucket(t)
		var mu sync.Mutex
		met := map[string]bool{}
		b.faulty(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
			mu.Lock()
			id := r.Method + r.URL.Path
			first := !met[id]
			met[id] = true
			third := len(met)%3 == 1
			mu.Unlock()
			return writes(r) && first && third && fault(w, r, next)
		})
		cfg.To, cfg.Stores = Target{WDS, "s3://data/p"}, b.stores(t, nil)
		r := must(t, cfg)
		if got := b.objects(t, "p"); !reflect.DeepEqual(got, want) || r.Stores[0].Retries == 0 {
			t.Errorf("%s: the bucket has other files than the folder: %d and %d; %+v", name, len(got), len(want), r.Stores)
		}
	}
}

// TestInterruptedRunsIntoStores: a run that ends at any request is continued to the very bytes; no reader finds a
// manifest before.
func TestInterruptedRunsIntoStores(t *testing.T) {
	codes := []string{"AccessDenied", "killed", "ExpiredToken"}
	if !lane.Nightly() {
		codes = codes[:2]
	}
	for _, format := range []string{WDS, MDS} {
		cfg := Config{URI: "imagefolder:" + photos(t, 24, 12), To: to(t, format), disk: disk{sync: unsynced},
			ShardSize: 16 << 10, Shuffle: 3}
		must(t, cfg)
		want := tree(t, cfg.To.Dir)
		for _, code := range codes {
			b := newBucket(t)
			cfg.To = Target{format, "s3://data/p"}
			r := xrand.New(7, uint64(len(code)))
			ended := 0
			for ; interrupted(t, b, cfg, code, untilEnd(r.IntN(9), ended)); ended++ {
				there := b.objects(t, "p")
				if _, whole := there[ManifestName]; !whole {
					continue
				}
				for name, body := range want {
					if there[name] != body {
						t.Fatalf("%s: there is a manifest, and %s is not what it should be", code, name)
					}
				}
			}
			if got := b.objects(t, "p"); !reflect.DeepEqual(got, want) || ended == 0 {
				t.Errorf("%s %s: after %d interruptions the pack differs: %d files of %d", format, code, ended, len(got), len(want))
			}
		}
	}
}

// untilEnd lets a run that was interrupted often come to its end.
func untilEnd(requests, ended int) int64 {
	if ended > 40 {
		return math.MaxInt64
	}
	return int64(requests)
}

// interrupted runs a pack whose requests that write fail after so many, and reports whether it ended early.
func interrupted(t *testing.T, b *bucket, cfg Config, code string, after int64) bool {
	t.Helper()
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	var left atomic.Int64
	left.Store(after)
	b.faulty(func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if !writes(r) && r.Method != http.MethodDelete {
			return false
		}
		if strings.HasSuffix(r.URL.Path, ownerNote) && left.Load() >= 0 || left.Add(-1) >= 0 {
			return false // how often a run says that it lives follows from the clock
		}
		if code == "killed" {
			kill()
			_, _ = io.Copy(io.Discard, r.Body) // it was given up
			return true
		}
		return refuse(w, 403, code)
	})
	defer b.faulty(nil)
	cfg.Stores, cfg.beat = b.stores(t, nil), time.Millisecond
	got, err := Run(ctx, cfg)
	for tries := 0; code == "killed" && errs.Is(err, errs.AlreadyExists) && tries < 100; tries++ {
		got, err = Run(ctx, cfg) // what the killed run wrote last arrived after it: it seemed to live
	}
	if err == nil {
		if got.Samples != 36 {
			t.Errorf("%+v", got)
		}
		return false
	}
	if code == "killed" && !errors.Is(err, context.Canceled) ||
		code != "killed" && !strings.Contains(errs.From(err).Hint, "the same command") {
		t.Fatalf("%s: %v (%s)", code, err, errs.From(err).Hint)
	}
	return true
}

// TestRefusedPlacesInStores: what is there of others stays, and is named.
func TestRefusedPlacesInStores(t *testing.T) {
	b := newBucket(t)
	cfg := Config{URI: "imagefolder:" + photos(t, 25, 9), To: Target{WDS, "s3://data/done"}, ShardSize: 16 << 10,
		Stores: b.stores(t, nil)}
	must(t, cfg)
	b.put(t, "foreign/thesis.txt", "x")
	b.put(t, "begun/"+optionsNote, `{"options":{"format":"mds"}}`)
	b.put(t, "torn/"+optionsNote, `{"opt`)
	b.put(t, "odd/"+ManifestName, `no JSON`)
	with := func(dir string, change func(*Config)) Config {
		c := cfg
		c.To.Dir = "s3://data/" + dir
		if change != nil {
			change(&c)
		}
		return c
	}
	for name, c := range map[string]struct {
		cfg    Config
		reason errs.Reason
		words  string
	}{
		"flags":   {with("done", func(c *Config) { c.Quality = 9 }), errs.AlreadyExists, "--quality was 0 and is 9"},
		"format":  {with("done", func(c *Config) { c.To.Format = MDS }), errs.AlreadyExists, "was wds and is mds"},
		"foreign": {with("foreign", nil), errs.AlreadyExists, `holds "thesis.txt" and is no pack`},
		"begun":   {with("begun", nil), errs.AlreadyExists, "an unfinished pack of something else"},
		"torn":    {with("torn", nil), errs.StateDamaged, "is no note of a pack"},
		"odd":     {with("odd", nil), errs.AlreadyExists, "is no manifest"},
		"nothing": {with("x", func(c *Config) { c.Stores = nil }), errs.Invalid, "no stores"},
	} {
		before := b.objects(t, filepath.Base(c.cfg.To.Dir))
		_, err := Run(t.Context(), c.cfg)
		if !errs.Is(err, c.reason) || !strings.Contains(err.Error(), c.words) || errs.From(err).Hint == "" {
			t.Errorf("%s: got %v, want %s %q", name, err, c.reason, c.words)
		}
		if !reflect.DeepEqual(before, b.objects(t, filepath.Base(c.cfg.To.Dir))) {
			t.Errorf("%s: objects were changed", name)
		}
	}
}

// TestOthersThatWriteMeanwhile: another pack, a strange shard, a shard that changes are noticed before there is a
// manifest.
func TestOthersThatWriteMeanwhile(t *testing.T) {
	uri := "imagefolder:" + photos(t, 26, 9)
	for words, spoil := range map[string]func(b *bucket){
		"another pack's": func(b *bucket) { b.put(t, "p/"+optionsNote, `{"options":{"format":"mds"}}`) },
		"are gone":       func(b *bucket) { _, _ = b.mem.DeleteObject("data", "p/"+optionsNote) },
		"has appeared":   func(b *bucket) { b.put(t, "p/zz.tar", "x") },
		"was changed":    func(b *bucket) { b.put(t, "p/shard-000000.tar", "x") },
	} {
		b := newBucket(t)
		var once sync.Once
		b.faulty(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if writes(r) && strings.HasSuffix(r.URL.Path, "end.json") {
				once.Do(func() { spoil(b) })
			}
			return false
		})
		cfg := Config{URI: uri, To: Target{WDS, "s3://data/p"}, ShardSize: 16 << 10, Stores: b.stores(t, nil)}
		if _, err := Run(t.Context(), cfg); !errs.Is(err, errs.StateDamaged) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: got %v", words, err)
		}
		if _, ok := b.objects(t, "p")[ManifestName]; ok {
			t.Errorf("%s: there is a manifest", words)
		}
	}
}

// TestVerifyFindsDamageInStores: flipped, cut, lost and strange shards are found, and named.
func TestVerifyFindsDamageInStores(t *testing.T) {
	b := newBucket(t)
	cfg := Config{URI: "imagefolder:" + photos(t, 28, 6), To: Target{WDS, "s3://data/p"}, ShardSize: 16 << 10,
		Stores: b.stores(t, nil), Verify: true}
	must(t, cfg)
	var m Manifest
	if err := json.Unmarshal([]byte(b.objects(t, "p")[ManifestName]), &m); err != nil {
		t.Fatal(err)
	}
	r := xrand.New(2, 3)
	check := func(what, want string) {
		t.Helper()
		cfg.Stores = b.stores(t, nil)
		if got, err := Run(t.Context(), cfg); err != nil || len(got.Bad) != 1 || got.Bad[0].Shard != want {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	for range 20 {
		s := m.Shards[r.IntN(len(m.Shards))]
		body := b.objects(t, "p")[s.Name]
		at := r.IntN(len(body))
		flipped := []byte(body)
		flipped[at] ^= 1 << r.IntN(8)
		b.put(t, "p/"+s.Name, string(flipped))
		check("flipped", s.Name)
		b.put(t, "p/"+s.Name, body[:at])
		check("cut", s.Name)
		b.put(t, "p/"+s.Name, body)
	}
	first := m.Shards[0].Name
	body := b.objects(t, "p")[first]
	b.put(t, "p/zz.tar", body)
	check("strange", cfg.To.URI())
	for _, name := range []string{"zz.tar", first} {
		if _, err := b.mem.DeleteObject("data", "p/"+name); err != nil {
			t.Fatal(err)
		}
	}
	check("lost", first)
}

// TestVerifyOfAStoreThatIsDown: that is no damage. It ends at once with the cause, and the same command verifies.
func TestVerifyOfAStoreThatIsDown(t *testing.T) {
	b := newBucket(t)
	quick := func(s *store.Settings) { s.RetryFor = time.Millisecond }
	cfg := Config{URI: "imagefolder:" + photos(t, 28, 12), To: Target{WDS, "s3://data/p"}, ShardSize: minShardSize,
		Stores: b.stores(t, quick)}
	packed := must(t, cfg)
	cfg.Verify = true
	for _, from := range []int64{0, 3} { // requests for a shard: that is looked at, and read
		var asked sync.Map
		var requests atomic.Int64
		b.faulty(func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if !strings.HasSuffix(r.URL.Path, ".tar") {
				return false
			}
			asked.Store(r.URL.Path, true)
			return requests.Add(1) > from && refuse(w, 503, "SlowDown")
		})
		cfg.Stores = b.stores(t, quick)
		r, err := Run(t.Context(), cfg)
		if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(errs.From(err).Hint, "the same command") {
			t.Errorf("got %+v, %v (%s)", r, err, errs.From(err).Hint)
		}
		shards := 0
		asked.Range(func(any, any) bool { shards++; return true })
		if most := uploads + int(from); shards > most || packed.Shards <= most {
			t.Errorf("%d of %d shards were asked for", shards, packed.Shards)
		}
	}
	b.faulty(nil)
	cfg.Stores = b.stores(t, nil)
	if r := must(t, cfg); len(r.Bad) > 0 || r.Verified != packed.Samples {
		t.Errorf("%+v", r)
	}
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "gone"))
	cfg.Stores = b.stores(t, nil)
	if r, err := Run(t.Context(), cfg); !errs.Is(err, errs.ResourceExceeded) ||
		!strings.Contains(errs.From(err).Hint, "TMPDIR") {
		t.Errorf("without a folder for temporary files: %+v, %v", r, err)
	}
}

// FuzzNotes: whatever notes say, a run gives the bytes of an undisturbed one, or refuses with words.
func FuzzNotes(f *testing.F) {
	b := newBucket(f)
	cfg := Config{URI: "imagefolder:" + photos(f, 29, 4), To: Target{WDS, "s3://data/p"}, ShardSize: minShardSize,
		Stores: b.stores(f, nil), beat: time.Millisecond}
	notes := map[string]string{}
	b.faulty(func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if r.Method != http.MethodDelete {
			return false
		}
		return refuse(w, 403, "AccessDenied")
	})
	if _, err := Run(f.Context(), cfg); err == nil {
		f.Fatal("notes were removed")
	}
	b.faulty(nil)
	maps.Copy(notes, b.objects(f, "p"))
	delete(notes, ManifestName)
	delete(notes, ownerNote) // that run has ended
	real := notes[workName+"/shard-000001.tar.json"]
	for _, s := range []string{real, "", "{}", "null", strings.ReplaceAll(real, `"next":`, `"next":-`),
		strings.ReplaceAll(real, `"bytes":`, `"bytes":9`), strings.ReplaceAll(real, `"etag":"`, `"etag":"0`)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for name := range b.objects(t, "p") {
			if _, err := b.mem.DeleteObject("data", "p/"+name); err != nil {
				t.Fatal(err)
			}
		}
		for name, body := range notes {
			b.put(t, "p/"+name, body)
		}
		b.put(t, "p/"+workName+"/shard-000001.tar.json", string(body))
		cfg.Stores = b.stores(t, nil)
		if _, err := Run(t.Context(), cfg); err != nil {
			if errs.Is(err, errs.Internal) || errs.From(err).Hint == "" {
				t.Fatalf("no words for %v", err)
			}
			return
		}
		for name, body := range b.objects(t, "p") {
			if want, ok := notes[name]; ok && want != body && !strings.HasPrefix(name, workName) {
				t.Fatalf("%s differs", name)
			}
		}
	})
}
