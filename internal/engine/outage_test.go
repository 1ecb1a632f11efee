package engine_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"larder/internal/engine"
	"larder/internal/ident"
	"larder/internal/source"
	"larder/internal/spool"
	larderv1 "larder/proto/larder/v1"
)

// TestAFolderThatIsGoneForAWhile: a disk that is unmounted in the midst of an epoch costs no sample. The job waits,
// says for what, and gets each sample once when the disk is back.
func TestAFolderThatIsGoneForAWhile(t *testing.T) {
	const n = 40
	for _, decoded := range []int64{0, 16 * mib} { // in place and not
		dir := folder(t, n)
		w := serve(t, func(c *engine.Config) { c.Memory.Tiers.Sizes = [ident.NumForms]int64{ident.Decoded: decoded} })
		tr := w.train(spec("a", dir, 4, recipe(crops...), func(s *larderv1.JobSpec) { s.OnError = "skip" }), 0)
		if err := os.Rename(dir, dir+".gone"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		type result struct {
			got *seen
			err error
		}
		done := make(chan result, 1)
		go func() {
			got, err := tr.epoch(0)
			done <- result{got, err}
		}()
		eventually(t, "the job says that storage has failed", func() bool {
			j, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "a"})
			if err != nil {
				t.Fatal(err)
			}
			wait := j.GetJob().GetRanks()[0].GetWait()
			return wait.GetCause() == "storage" && strings.Contains(wait.GetText(), "has failed for")
		})
		if err := os.Rename(dir+".gone", dir); err != nil {
			t.Fatal(err)
		}
		r := <-done
		if r.err != nil {
			t.Fatal(r.err)
		}
		exactly(t, "the epoch", r.got.ids, all(n))
		if len(r.got.bad) != 0 || r.got.end.GetAccount().GetQuarantined() != 0 ||
			w.stats().GetTotals().GetQuarantined() != 0 {
			t.Errorf("%v are bad, %v, %v", r.got.bad, r.got.end.GetAccount(), w.stats().GetTotals())
		}
		tr.detach()
	}
}

// growing is a spool that is too small for any block until it has grown.
type growing struct {
	small, large spool.Spool
	grown        atomic.Bool
}

func (g *growing) Block(ctx context.Context, key string, make spool.Make) (spool.Reader, error) {
	if g.grown.Load() {
		return g.large.Block(ctx, key, make)
	}
	return g.small.Block(ctx, key, make)
}

// TestATarThatTheDiskTierDoesNotHold costs no sample: the job waits, says why and what to do, and goes on when the tier
// has been made larger.
func TestATarThatTheDiskTierDoesNotHold(t *testing.T) {
	const n = 12
	dir, _ := tars(t, n, 1)
	plain, err := os.ReadFile(filepath.Join(dir, "00.tar"))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err = z.Write(plain)
	if err = errors.Join(err, z.Close(), os.Remove(filepath.Join(dir, "00.tar")),
		os.WriteFile(filepath.Join(dir, "00.tar.gz"), b.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
	blocks := &growing{small: spool.NewMemory(1 << 10), large: spool.NewMemory(64 * mib)}
	var catalog *source.Catalog
	w := serve(t, func(c *engine.Config) {
		catalog, err = source.OpenCatalog(source.CatalogConfig{Spool: blocks, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		c.Data.Catalog = catalog
	})
	tr := w.train(spec("a", dir, 4, recipe(crops...), func(s *larderv1.JobSpec) {
		s.Dataset, s.OnError = strings.Replace(s.GetDataset(), "imagefolder:", "wds:", 1), "skip"
	}), 0)
	done := make(chan *seen, 1)
	go func() {
		got, err := tr.epoch(0)
		if err != nil {
			t.Error(err)
		}
		done <- got
	}()
	eventually(t, "the job says why it waits", func() bool {
		j, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		wait := j.GetJob().GetRanks()[0].GetWait()
		return wait.GetCause() == "storage" && strings.Contains(wait.GetText(), "larger than what the spool may hold") &&
			strings.Contains(wait.GetText(), "tiers.disk")
	})
	blocks.grown.Store(true)
	got := <-done
	exactly(t, "the epoch", got.ids, all(n))
	if len(got.bad) != 0 || w.stats().GetTotals().GetQuarantined() != 0 {
		t.Errorf("%v are bad, %v", got.bad, w.stats().GetTotals())
	}
	tr.detach()
	if err := catalog.Close(); err != nil { // its file is open
		t.Error(err)
	}
}

func deviceOf(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Dev
}

// TestOneOfTwoDisks: a class folder lies on another disk, which goes away in an epoch and answers every read with an
// error or with nothing. Its samples wait, none is bad, and a job that needs none of them ends its epoch meanwhile.
func TestOneOfTwoDisks(t *testing.T) {
	const n = 60
	dir := folder(t, n)
	other, err := os.MkdirTemp("/dev/shm", "another-disk")
	if err != nil {
		t.Skip("there is no second file system: ", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(other) })
	if deviceOf(t, other) == deviceOf(t, dir) {
		t.Skip("/dev/shm is no file system of its own")
	}
	mount, disk := filepath.Join(dir, "c1"), filepath.Join(other, "disk")
	if err := errors.Join(os.CopyFS(disk, os.DirFS(mount)), os.RemoveAll(mount), os.Symlink(disk, mount)); err != nil {
		t.Fatal(err)
	}
	w := serve(t, func(c *engine.Config) { c.Memory.Tiers.Sizes = [ident.NumForms]int64{} })
	skip := func(s *larderv1.JobSpec) { s.OnError = "skip" }
	all3 := w.train(spec("all", dir, 4, recipe(crops...), skip), 0)
	first := w.train(spec("first", dir, 4, recipe(crops...), skip, func(s *larderv1.JobSpec) {
		s.Subset = "label != 1"
	}), 0)
	if err := os.Rename(disk, disk+".gone"); err != nil {
		t.Fatal(err)
	}
	done := make(chan *seen, 1)
	go func() {
		got, err := all3.epoch(0)
		if err != nil {
			t.Error(err)
		}
		done <- got
	}()
	eventually(t, "the job says that storage has failed", func() bool {
		j, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "all"})
		if err != nil {
			t.Fatal(err)
		}
		return j.GetJob().GetRanks()[0].GetWait().GetOutage().GetWhy() != ""
	})
	got, err := first.epoch(0)
	if err != nil || len(got.ids) != n-n/3 || len(got.bad) != 0 {
		t.Errorf("the job of the other disk: %d samples, %v are bad, %v", len(got.ids), got.bad, err)
	}
	if d := w.stats().GetDatasets()[0]; d.GetOutages() != 1 || d.GetJobsWaiting() != 1 || d.GetOutage().GetWhy() == "" {
		t.Errorf("the dataset is shown as %v", d)
	}
	if err := os.Rename(disk+".gone", disk); err != nil {
		t.Fatal(err)
	}
	got = <-done
	exactly(t, "the epoch", got.ids, all(n))
	if len(got.bad) != 0 || w.stats().GetTotals().GetQuarantined() != 0 {
		t.Errorf("%v are bad, %v", got.bad, w.stats().GetTotals())
	}
	all3.detach()
	first.detach()
}
