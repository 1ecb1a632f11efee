package pack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"larder/internal/errs"
	"larder/internal/ident"
)

// aWhile is how long a test waits for what must not come. A right program passes, however long it is.
const aWhile = time.Second

// noProcess is above every number that Linux gives to processes and threads. That of one that ended is given again.
const noProcess = 1 << 30

// TestASecondRunIntoAStoreIsRefused: while one lives, with words, and it harms nothing.
func TestASecondRunIntoAStoreIsRefused(t *testing.T) {
	cfg := Config{URI: "imagefolder:" + photos(t, 27, 12), To: to(t, MDS), disk: disk{sync: unsynced}, ShardSize: 16 << 10}
	must(t, cfg)
	want := tree(t, cfg.To.Dir)
	b := newBucket(t)
	cfg.To, cfg.beat, cfg.quiet = Target{MDS, "s3://data/p"}, 20*time.Millisecond, 15_000 // looks in five minutes
	begun, refused := make(chan struct{}), make(chan struct{})
	var once sync.Once
	b.faulty(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if writes(r) && strings.HasSuffix(r.URL.Path, "end.json") {
			once.Do(func() { close(begun) })
			<-refused
		}
		return false
	})
	first := make(chan error, 1)
	mine := cfg
	mine.Stores = b.stores(t, nil)
	go func() { _, err := Run(t.Context(), mine); first <- err }()
	select {
	case <-begun:
	case err := <-first:
		t.Fatalf("the first run ended early: %v", err)
	}
	cfg.Stores = b.stores(t, nil)
	before := b.objects(t, "p")
	_, err := Run(t.Context(), cfg)
	if !errs.Is(err, errs.AlreadyExists) ||
		!strings.Contains(err.Error(), "another run is packing into s3://data/p: process") {
		t.Errorf("the second run gave %v", err)
	}
	after := b.objects(t, "p")
	delete(before, ownerNote)
	delete(after, ownerNote)
	if !reflect.DeepEqual(before, after) {
		t.Error("the second run changed objects")
	}
	close(refused)
	if err := <-first; err != nil {
		t.Errorf("the first run gave %v", err)
	}
	if got := b.objects(t, "p"); !reflect.DeepEqual(got, want) {
		t.Errorf("the bucket has other files than the folder: %d and %d", len(got), len(want))
	}
}

// TestANoteThatIsWrittenWhileItIsReadIsReadAgain: the run that writes it lives, and the message names its process.
func TestANoteThatIsWrittenWhileItIsReadIsReadAgain(t *testing.T) {
	b := newBucket(t)
	beat, reads := 0, 0
	note := func() string {
		beat++
		return fmt.Sprintf(`{"id":"another","host":"far","pid":7,"beat":%d}`, beat)
	}
	b.put(t, "p/"+ownerNote, note())
	b.faulty(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if !strings.HasSuffix(r.URL.Path, ownerNote) {
			return false
		}
		switch {
		case r.Method == http.MethodGet && reads < 3:
			reads++
			b.put(t, "p/"+ownerNote, note())
		case r.Method == http.MethodHead && reads == 3: // a sign of life after the note was read
			b.put(t, "p/"+ownerNote, note())
		}
		return false
	})
	_, err := Run(t.Context(), Config{URI: "imagefolder:" + photos(t, 29, 3), To: Target{MDS, "s3://data/p"},
		Stores: b.stores(t, nil), beat: time.Millisecond, quiet: 3})
	if !errs.Is(err, errs.AlreadyExists) || !strings.Contains(err.Error(), `process 7 of host "far"`) {
		t.Errorf("got %v", err)
	}
	if reads != 3 {
		t.Errorf("the note was written %d times while it was read, want 3", reads)
	}
}

// TestARunWhosePlaceWasTakenPublishesNothing: whatever it wrote, there is no manifest of it.
func TestARunWhosePlaceWasTakenPublishesNothing(t *testing.T) {
	uri := "imagefolder:" + photos(t, 26, 9)
	for _, at := range []string{"end.json", "shard.00000.mds", indexName} {
		b := newBucket(t)
		var once sync.Once
		b.faulty(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if writes(r) && strings.HasSuffix(r.URL.Path, at) {
				once.Do(func() { b.put(t, "p/"+ownerNote, `{"id":"another","host":"far","pid":7}`) })
			}
			return false
		})
		cfg := Config{URI: uri, To: Target{MDS, "s3://data/p"}, ShardSize: 16 << 10, Stores: b.stores(t, nil)}
		_, err := Run(t.Context(), cfg)
		if !errs.Is(err, errs.AlreadyExists) || !strings.Contains(err.Error(), "took the place") {
			t.Errorf("%s: got %v", at, err)
		}
		there := b.objects(t, "p")
		if _, ok := there[ManifestName]; ok || !strings.Contains(there[ownerNote], "another") {
			t.Errorf("%s: there is a manifest, or the other's note is gone", at)
		}
	}
}

// TestARunThatEndsGivesItsPlaceUp: one that failed or was cancelled at once; one that was killed after a while.
func TestARunThatEndsGivesItsPlaceUp(t *testing.T) {
	uri := "imagefolder:" + photos(t, 26, 9)
	b := newBucket(t)
	cfg := Config{URI: uri, To: Target{WDS, "s3://data/p"}, ShardSize: 16 << 10}
	ctx, stop := context.WithCancel(t.Context())
	b.faulty(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if writes(r) && strings.HasSuffix(r.URL.Path, "end.json") {
			stop()
		}
		return false
	})
	cfg.Stores = b.stores(t, nil)
	if _, err := Run(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Fatalf("a cancelled run gave %v", err)
	}
	b.faulty(nil)
	if _, ok := b.objects(t, "p")[ownerNote]; ok {
		t.Error("a cancelled run keeps its place")
	}
	for note, beat := range map[ownership]time.Duration{
		{ID: "far", Host: "far", Place: "far", PID: 7}:             time.Millisecond,
		{ID: "near", Host: "near", Place: place(), PID: noProcess}: time.Hour, // known to be dead
	} {
		body, err := json.Marshal(note)
		if err != nil {
			t.Fatal(err)
		}
		b.put(t, "p/"+ownerNote, string(body))
		if _, err := b.mem.DeleteObject("data", "p/"+ManifestName); err != nil {
			t.Fatal(err)
		}
		for name := range b.objects(t, "p") {
			if strings.HasSuffix(name, ".tar") {
				_, _ = b.mem.DeleteObject("data", "p/"+name) // of the turn before
			}
		}
		cfg.Stores, cfg.beat = b.stores(t, nil), beat
		must(t, cfg)
	}
	for name := range b.objects(t, "p") {
		if strings.HasPrefix(name, workName) {
			t.Errorf("%s is left", name)
		}
	}
}

// TestABeatUnderWayIsNotTheLastWord: the store executes it before the removal of the note, although the run was
// cancelled meanwhile.
func TestABeatUnderWayIsNotTheLastWord(t *testing.T) {
	b := newBucket(t)
	ctx, stop := context.WithCancel(t.Context())
	beating, removed := make(chan struct{}), make(chan struct{})
	var beats, removals sync.Once
	b.faulty(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if !strings.HasSuffix(r.URL.Path, ownerNote) {
			if writes(r) {
				<-beating
			}
			return false
		}
		if r.Method == http.MethodDelete {
			next.ServeHTTP(w, r)
			removals.Do(func() { close(removed) })
			return true
		}
		if !writes(r) || r.Header.Get("If-None-Match") != "" { // the claim
			return false
		}
		late := lasting(t, r)
		beats.Do(func() {
			close(beating)
			stop()
			comes(removed) // that would be too early: the removal waits for the answer
		})
		next.ServeHTTP(w, late)
		return true
	})
	cfg := Config{URI: "imagefolder:" + photos(t, 26, 9), To: Target{WDS, "s3://data/p"}, ShardSize: 16 << 10,
		Stores: b.stores(t, nil), beat: time.Millisecond}
	if _, err := Run(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Fatalf("a cancelled run gave %v", err)
	}
	select {
	case <-removed:
	default:
		t.Error("the run did not remove its note")
	}
	if note, ok := b.objects(t, "p")[ownerNote]; ok {
		t.Errorf("a run that ended left its note: %s", note)
	}
}

// lasting is a request as a store executes it whose client has gone.
func lasting(t *testing.T, r *http.Request) *http.Request {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	late := r.WithContext(context.WithoutCancel(r.Context()))
	late.Body = io.NopCloser(bytes.NewReader(body))
	return late
}

// gone waits for the client of a request to go, who is to wait for the answer.
func gone(r *http.Request) bool { return comes(r.Context().Done()) }

// comes waits for what must not come.
func comes(event <-chan struct{}) bool {
	select {
	case <-event:
		return true
	case <-time.After(aWhile):
		return false
	}
}

// TestARunThatIsCancelledAsItBeginsLeavesNoNote: the store executes its claim after that.
func TestARunThatIsCancelledAsItBeginsLeavesNoNote(t *testing.T) {
	b := newBucket(t)
	ctx, stop := context.WithCancel(t.Context())
	executed := make(chan struct{})
	b.faulty(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if !writes(r) || !strings.HasSuffix(r.URL.Path, ownerNote) {
			return false
		}
		defer close(executed)
		late := lasting(t, r)
		stop()
		gone(r)
		next.ServeHTTP(w, late)
		return true
	})
	cfg := Config{URI: "imagefolder:" + photos(t, 26, 5), To: Target{WDS, "s3://data/p"}, Stores: b.stores(t, nil),
		beat: time.Hour}
	if _, err := Run(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Fatalf("a cancelled run gave %v", err)
	}
	<-executed
	if there := b.objects(t, "p"); len(there) > 0 {
		t.Errorf("it left %v", there)
	}
}

// bucketOfADeadRun has the note of a run that is known to have ended.
func bucketOfADeadRun(t *testing.T) (b *bucket, note string) {
	t.Helper()
	dead, err := json.Marshal(ownership{ID: "dead", Place: place(), PID: noProcess})
	if err != nil {
		t.Fatal(err)
	}
	b = newBucket(t)
	b.put(t, "p/"+ownerNote, string(dead))
	return b, string(dead)
}

// TestARunThatIsCancelledRemovesNoNoteOfTheNext: the store executes its removal of a dead run's note after the next run
// has written its own.
func TestARunThatIsCancelledRemovesNoNoteOfTheNext(t *testing.T) {
	b, dead := bucketOfADeadRun(t)
	ctx, stop := context.WithCancel(t.Context())
	claimed := make(chan struct{})
	var removals atomic.Int32
	var claim sync.Once
	b.faulty(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		switch note := strings.HasSuffix(r.URL.Path, ownerNote); {
		case note && r.Method == http.MethodDelete:
			if removals.Add(1) == 1 {
				stop()
				if gone(r) {
					<-claimed
				}
			}
			next.ServeHTTP(w, lasting(t, r))
			return true
		case note && writes(r):
			next.ServeHTTP(w, r)
			if there := b.objects(t, "p")[ownerNote]; there != "" && there != dead {
				claim.Do(func() { close(claimed) })
			}
			return true
		}
		return false
	})
	cfg := Config{URI: "imagefolder:" + photos(t, 26, 5), To: Target{WDS, "s3://data/p"}, Stores: b.stores(t, nil),
		beat: time.Hour}
	if _, err := Run(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Fatalf("a cancelled run gave %v", err)
	}
	cfg.Stores = b.stores(t, nil)
	if r := must(t, cfg); r.Samples != 15 {
		t.Errorf("%+v", r)
	}
}

// TestTwoRunsAfterADeadOne: the one that is later does not remove the note of the other.
func TestTwoRunsAfterADeadOne(t *testing.T) {
	b, _ := bucketOfADeadRun(t)
	ctx, stop := context.WithCancel(t.Context())
	reads := 0
	b.faulty(func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, ownerNote) {
			return false
		}
		next.ServeHTTP(w, r)
		if reads++; reads == 1 {
			b.put(t, "p/"+ownerNote, `{"id":"faster","host":"far","place":"far","pid":7}`)
		} else {
			stop() // it waits for that one now
		}
		return true
	})
	cfg := Config{URI: "imagefolder:" + photos(t, 26, 5), To: Target{WDS, "s3://data/p"}, Stores: b.stores(t, nil),
		beat: time.Hour}
	if _, err := Run(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if got := b.objects(t, "p")[ownerNote]; !strings.Contains(got, "faster") {
		t.Errorf("the note is %q", got)
	}
}

// TestAFolderThatAnotherRunFinishedMeanwhile: a run that looked at a folder before that finds the other's manifest, or
// is refused, and changes nothing.
func TestAFolderThatAnotherRunFinishedMeanwhile(t *testing.T) {
	uri := "imagefolder:" + photos(t, 26, 5)
	cfg := Config{URI: uri, To: to(t, WDS)}
	if err := os.MkdirAll(cfg.To.Dir, 0o777); err != nil {
		t.Fatal(err)
	}
	late := &folder{to: cfg.To, work: filepath.Join(cfg.To.Dir, workName), disk: disk{create, unsynced}}
	if m, err := late.look(options{}); m != nil || err != nil {
		t.Fatal(m, err)
	}
	must(t, cfg)
	want := tree(t, cfg.To.Dir)
	_, err := late.enter(options{})
	if !errs.Is(err, errs.AlreadyExists) || !strings.Contains(err.Error(), "a finished pack") {
		t.Errorf("other options gave %v", err)
	}
	m, err := readManifest(cfg.To.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := late.enter(m.options); err != nil || got == nil || got.Samples != m.Samples {
		t.Errorf("the same options gave %v, %v", got, err)
	}
	if err := os.RemoveAll(late.work); err != nil { // of the run that was refused
		t.Fatal(err)
	}
	if got := tree(t, cfg.To.Dir); !reflect.DeepEqual(got, want) {
		t.Error("files were changed")
	}
}

// TestALockThatLostItsPlace: a run that ends removes the lock. Whoever waited for it holds nothing then.
func TestALockThatLostItsPlace(t *testing.T) {
	dir := to(t, WDS)
	one := &folder{to: dir, work: filepath.Join(dir.Dir, workName)}
	if err := one.takeLock(); err != nil {
		t.Fatal(err)
	}
	two := &folder{to: dir, work: one.work}
	if err := two.takeLock(); !errs.Is(err, errs.AlreadyExists) {
		t.Fatalf("a locked folder gave %v", err)
	}
	if err := os.RemoveAll(one.work); err != nil {
		t.Fatal(err)
	}
	_ = one.lock.Close()
	var all sync.WaitGroup
	var mu sync.Mutex
	held := map[*folder]bool{}
	for range 8 {
		all.Go(func() {
			f := &folder{to: dir, work: one.work}
			if f.takeLock() == nil {
				mu.Lock()
				held[f] = true
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if len(held) != 1 {
		t.Errorf("%d runs hold the lock", len(held))
	}
	for f := range held {
		_ = f.lock.Close()
	}
}

// TestAPackThatIsNotWholeIsNotPublished: neither where its notes say too much, nor where larder itself lost samples.
func TestAPackThatIsNotWholeIsNotPublished(t *testing.T) {
	uri := "imagefolder:" + photos(t, 26, 9)
	b := newBucket(t)
	cfg := Config{URI: uri, To: Target{WDS, "s3://data/p"}, ShardSize: 16 << 10, Stores: b.stores(t, nil)}
	b.faulty(func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		return writes(r) && strings.HasSuffix(r.URL.Path, "end.json") && refuse(w, 403, "AccessDenied")
	})
	if _, err := Run(t.Context(), cfg); err == nil {
		t.Fatal("the run was not interrupted")
	}
	b.faulty(nil)
	there := b.objects(t, "p")
	last := ""
	for name := range there {
		if strings.HasSuffix(name, ".tar.json") && name > last {
			last = name
		}
	}
	b.put(t, "p/"+last, strings.Replace(there[last], `"samples":`, `"samples":1`, 1))
	cfg.Stores = b.stores(t, nil)
	_, err := Run(t.Context(), cfg)
	if !errs.Is(err, errs.StateDamaged) || !strings.Contains(err.Error(), "of 27; no manifest is written") {
		t.Errorf("notes that say too much gave %v", err)
	}
	if _, ok := b.objects(t, "p")[ManifestName]; ok {
		t.Error("there is a manifest")
	}
	lost := &packer{order: make([]ident.SampleID, 3), opt: options{Source: uri}, skipped: make([]Skipped, 1),
		t: &folder{finished: finished{shards: []Shard{{Samples: 1}}}}}
	err = lost.complete()
	if !errs.Is(err, errs.Internal) ||
		!strings.Contains(err.Error(), "1 samples are packed and 1 left out, together 2 of 3") {
		t.Errorf("a lost sample gave %v", err)
	}
}
