package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/prep"
	larderv1 "larder/proto/larder/v1"
)

// TestEachEndsWithItsContext: also where that ends within the last of all, which may have failed because of it.
func TestEachEndsWithItsContext(t *testing.T) {
	for _, n := range []int{1, 3, 40} {
		for _, workers := range []int{1, 3} {
			ctx, stop := context.WithCancel(t.Context())
			err := each(ctx, n, workers, func(context.Context) (func(int) error, func()) {
				return func(i int) error {
					if i == n-1 {
						stop()
					}
					return nil
				}, func() {}
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%d of %d workers: %v", n, workers, err)
			}
			stop()
		}
	}
	failed := errors.New("the third")
	err := each(t.Context(), 40, 3, func(ctx context.Context) (func(int) error, func()) {
		return func(i int) error {
			if i == 2 {
				return failed
			}
			<-ctx.Done()
			return ctx.Err()
		}, func() {}
	})
	if !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	done := make([]bool, 50)
	if err := each(t.Context(), len(done), 3, func(context.Context) (func(int) error, func()) {
		return func(i int) error { done[i] = true; return nil }, func() {}
	}); err != nil {
		t.Error(err)
	}
	for i, d := range done {
		if !d {
			t.Errorf("%d was left out", i)
		}
	}
}

// sixFiles are a folder of images, in a class, and one of files of a record each.
func sixFiles(t *testing.T) (images, tables string) {
	t.Helper()
	images, tables = t.TempDir()+"/set", t.TempDir()+"/set"
	file, err := prep.EncodePNG(prep.Image{Pix: make([]byte, 3), H: 1, W: 1, C: 3})
	for _, dir := range []string{images + "/a", tables} {
		if err == nil {
			err = os.MkdirAll(dir, 0o700)
		}
	}
	for i := range 6 {
		if err == nil {
			err = os.WriteFile(fmt.Sprintf("%s/a/%d.png", images, i), file, 0o600)
		}
		if err == nil {
			err = os.WriteFile(fmt.Sprintf("%s/%d.jsonl", tables, i), []byte(`{"n": 1}`), 0o600)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return images, tables
}

// TestStorageThatFailsMakesNoBadSamples: what reads samples ends with the cause then. One file that is gone is a bad
// sample.
func TestStorageThatFailsMakesNoBadSamples(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	images, tables := sixFiles(t)
	ctx := t.Context()
	for uri, c := range map[string]struct {
		root, one string
		reads     map[string]func(l *localData, ids []ident.SampleID) (int, error)
	}{
		"imagefolder:" + images: {images, images + "/a/2.png", map[string]func(*localData, []ident.SampleID) (int, error){
			"verify": verifies,
			"stats": func(l *localData, ids []ident.SampleID) (int, error) {
				s := &datasetStats{}
				err := l.headers(ctx, ids, s)
				return len(s.Bad), err
			},
			"page": func(l *localData, ids []ident.SampleID) (int, error) {
				_, bad, err := l.thumbnails(ctx, ids)
				return len(bad), err
			},
		}},
		"jsonl:" + tables: {tables, tables + "/2.jsonl", map[string]func(*localData, []ident.SampleID) (int, error){
			"verify": verifies,
			"stats": func(l *localData, ids []ident.SampleID) (int, error) {
				s := &datasetStats{}
				err := l.recordStats(ctx, l.data.Schema(), ids, s)
				return len(s.Bad), err
			},
			"page": func(l *localData, ids []ident.SampleID) (int, error) {
				_, bad, err := l.recordsOf(ctx, ids, &datasetStats{})
				return len(bad), err
			},
			"inspect": func(l *localData, ids []ident.SampleID) (bad int, err error) {
				var list []*larderv1.Sample
				for _, id := range ids {
					list = append(list, &larderv1.Sample{Id: uint64(id), Key: l.data.Key(id)})
				}
				shown, err := l.records(ctx, list)
				for i := range shown {
					if shown[i].reason != "" {
						bad++
					}
				}
				return bad, err
			},
		}},
	} {
		for name, read := range c.reads {
			try := func(gone string) (int, error) {
				l := openRecords(t, uri)
				ids, err := l.ids("")
				if err == nil {
					err = os.Rename(gone, gone+".gone")
				}
				if err != nil {
					t.Fatal(err)
				}
				bad, failed := read(l, ids)
				if err := os.Rename(gone+".gone", gone); err != nil {
					t.Fatal(err)
				}
				return bad, failed
			}
			if bad, err := try(c.one); bad != 1 || err != nil {
				t.Errorf("%s of %s without a file: %d bad, %v", name, uri, bad, err)
			}
			if _, err := try(c.root); !errs.Is(err, errs.DatasetUnread) || !strings.Contains(err.Error(), "storage of") {
				t.Errorf("%s of %s without its folder: %v", name, uri, err)
			}
		}
	}
}

func verifies(l *localData, ids []ident.SampleID) (int, error) {
	r := &verified{}
	v := verifier{workers: 2, report: func(int, int) {}}
	err := v.all(context.Background(), l, ids, r)
	return len(r.Bad), err
}
