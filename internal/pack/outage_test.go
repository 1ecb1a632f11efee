package pack

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"larder/internal/errs"
	"larder/internal/store"
)

// TestAStoreThatIsDown: it is no fault of samples. The run stops with the cause, and the next one goes on.
func TestAStoreThatIsDown(t *testing.T) {
	root := photos(t, 9, 12)
	mem := s3mem.New()
	if err := mem.CreateBucket("data"); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err == nil {
			_, err = mem.PutObject("data", "t/"+strings.TrimPrefix(path, root+"/"), map[string]string{
				"Last-Modified": "Mon, 02 Jan 2023 15:04:05 GMT"}, bytes.NewReader(b),
				int64(len(b)), nil)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	down, next := atomic.Bool{}, gofakes3.New(mem).Server()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() && strings.Contains(r.URL.Path, "class1/005") {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	}))
	defer srv.Close()
	stores := store.New(store.Config{Log: slog.New(slog.DiscardHandler), Settings: func(string, string) store.Settings {
		s := store.Default()
		s.Endpoint, s.Region, s.Anonymous, s.RetryFor = srv.URL, "us-east-1", true, time.Millisecond
		return s
	}})
	defer stores.Close()
	cfg := Config{URI: "imagefolder:s3://data/t", To: to(t, WDS), ShardSize: minShardSize, SkipBad: true, Stores: stores,
		disk: disk{sync: unsynced}}
	down.Store(true)
	if _, err := Run(t.Context(), cfg); !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), "503") {
		t.Fatalf("got %v", err)
	}
	down.Store(false)
	if r := must(t, cfg); r.Samples != 36 || len(r.Skipped) != 0 {
		t.Errorf("%+v", r)
	}
}

// TestADiskThatIsGone: its samples are not left out. The run stops with the cause, and the next one goes on.
func TestADiskThatIsGone(t *testing.T) {
	root := photos(t, 9, 12)
	for _, skip := range []bool{true, false} {
		cfg := Config{URI: "imagefolder:" + root, To: to(t, WDS), ShardSize: minShardSize, SkipBad: skip, Workers: 1,
			disk: disk{sync: unsynced}, ahead: 1}
		var once sync.Once
		cfg.Report = func(p Progress) {
			if p.Samples > 9 {
				once.Do(func() {
					if err := os.Rename(root, root+".away"); err != nil {
						t.Error(err)
					}
				})
			}
		}
		_, err := Run(t.Context(), cfg)
		if !errs.Is(err, errs.DatasetUnread) || !strings.Contains(errs.From(err).Hint, "mounted") {
			t.Errorf("skip %v: got %v", skip, err)
		}
		if err := os.Rename(root+".away", root); err != nil {
			t.Fatal(err)
		}
		if r := must(t, cfg); r.Samples != 36 || len(r.Skipped) > 0 || r.Earlier == 0 {
			t.Errorf("skip %v: %+v", skip, r)
		}
	}
}

// TestBadSamples: the first one ends the run and is named; with SkipBad all are listed, after an interruption too.
func TestBadSamples(t *testing.T) {
	root := photos(t, 9, 12)
	uri := "imagefolder:" + root
	bad := map[string]string{"class0/000.jpg": "no image", "class1/005.jpg": "", "class2/011.jpg": "\xff\xd8\xff"}
	for name, body := range bad {
		if err := os.WriteFile(filepath.Join(root, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := Config{URI: uri, To: to(t, WDS), ShardSize: minShardSize, disk: disk{sync: unsynced}}
	_, err := Run(t.Context(), cfg)
	if !errs.Is(err, errs.SampleBad) || !strings.Contains(err.Error(), "class0/000.jpg") ||
		!strings.Contains(err.Error(), "--on-error skip") {
		t.Fatalf("got %v", err)
	}
	cfg.SkipBad, cfg.disk.create = true, failAfter(60_000, syscall.ENOSPC)
	if _, err := Run(t.Context(), cfg); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("got %v", err)
	}
	cfg.disk.create, cfg.Verify = nil, true
	r := must(t, cfg)
	if r.Samples != 33 || len(r.Skipped) != 3 {
		t.Fatalf("%+v", r)
	}
	for _, s := range r.Skipped {
		if _, ok := bad[s.Key]; !ok || s.Reason == "" {
			t.Errorf("left out %+v", s)
		}
	}
	for name := range bad {
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	none := Config{URI: uri, To: to(t, MDS), SkipBad: true, Subset: "id == 0 or id == 17"}
	if _, err := Run(t.Context(), none); !errs.Is(err, errs.DatasetEmpty) {
		t.Errorf("a pack of nothing gave %v", err)
	}
}
