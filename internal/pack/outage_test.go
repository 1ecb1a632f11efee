package pack

import (
	"bytes"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
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
