package engine_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pq "github.com/parquet-go/parquet-go"

	"larder/internal/engine"
	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

// tars packs n images into shards, and returns their folder and the folder of the images.
func tars(t testing.TB, n, shards int) (packed, images string) {
	t.Helper()
	images, packed = folder(t, n), t.TempDir()
	for s := range shards {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i := s * n / shards; i < (s+1)*n/shards; i++ {
			body, err := os.ReadFile(file(images, n, i))
			if err != nil {
				t.Fatal(err)
			}
			parts := map[string][]byte{filepath.Ext(file(images, n, i)): body, ".cls": []byte(fmt.Sprint(i * 3 / n))}
			for _, ext := range []string{".jpg", ".png", ".cls"} {
				if parts[ext] == nil {
					continue
				}
				h := &tar.Header{Name: fmt.Sprintf("%04d%s", i, ext), Size: int64(len(parts[ext])), Mode: 0o644}
				if err := w.WriteHeader(h); err != nil {
					t.Fatal(err)
				}
				if _, err := w.Write(parts[ext]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(packed, fmt.Sprintf("%02d.tar", s)), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return packed, images
}

func blocks(order string) func(*larderv1.JobSpec) {
	return func(s *larderv1.JobSpec) {
		s.Dataset, s.Order = strings.Replace(s.GetDataset(), "imagefolder:", "wds:", 1), order
	}
}

// An epoch of order blocks is the dataset, sample by sample what its files hold, and reads each block once; two jobs
// beside each other read hardly more.
func TestAnEpochOfBlocks(t *testing.T) {
	const n = 120
	w := serve(t)
	dir, images := tars(t, n, 4)
	tr := w.train(spec("a", dir, 8, blocks("blocks(3, 8KiB)")), 0)
	for epoch := range uint32(2) {
		s := tr.must(epoch)
		exactly(t, "an epoch", s.ids, all(n))
		if slices.IsSorted(s.ids) {
			t.Error("it is in the order of the dataset")
		}
		for i := range n {
			if pix, size := decode(t, file(images, n, i)); !bytes.Equal(s.pixels[int64(i)], pix) ||
				s.sizes[int64(i)] != size || s.labels[int64(i)] != int64(i*3/n) {
				t.Fatalf("sample %d is another one", i)
			}
		}
	}
	var read, total uint64
	for _, name := range []string{"00", "01", "02", "03"} {
		st, err := os.Stat(filepath.Join(dir, name+".tar"))
		if err != nil {
			t.Fatal(err)
		}
		total += uint64(st.Size())
	}
	reads := func() uint64 {
		st := w.stats().GetTotals()
		read = st.GetSourceBytes()
		return st.GetSourceReads()
	}
	two := reads()
	if two%2 != 0 || two < 8 || two > n || read > 2*total {
		t.Errorf("%d reads and %d bytes, of files of %d bytes, in two epochs", two, read, total)
	}
	d, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "a"})
	if err != nil || !strings.Contains(d.GetJob().GetPromise(), "blocks(3)") {
		t.Errorf("%v %q", err, d.GetJob().GetPromise())
	}

	// Batches that are planned ahead are few beside a window.
	few := func(s *larderv1.JobSpec) { s.Prefetch = 1 }
	pair := []*trainer{w.train(spec("b", dir, 2, blocks("blocks(8, 8KiB)"), few), 0),
		w.train(spec("c", dir, 2, blocks("blocks(8, 8KiB)"), few), 0)}
	ctx := t.Context()
	for _, x := range pair {
		if err := x.st.StartEpoch(ctx, 0); err != nil {
			t.Fatal(err)
		}
	}
	var ids [2][]int64
	for len(ids[0]) < n || len(ids[1]) < n { // side by side
		for i, x := range pair {
			b, err := x.st.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			ids[i] = append(ids[i], b.Index()...)
			b.Release()
		}
	}
	exactly(t, "one of two jobs", ids[0], all(n))
	exactly(t, "the other one", ids[1], all(n))
	if both := reads() - two; both > two/2*11/10+1 {
		t.Errorf("%d reads for two jobs, and %d for one", both, two/2)
	}
}

// Row groups are blocks: each is decoded once an epoch for two jobs, whose counts say what was read for each; without
// memory for one its size is told.
func TestAnEpochOfRowGroups(t *testing.T) {
	const n, group = 120, 6
	type row struct {
		Number int64
		Text   string
	}
	rows := make([]row, n)
	for i := range rows {
		rows[i] = row{int64(i), strings.Repeat("x", 50*(i%9))}
	}
	dir := t.TempDir()
	file := func(name string, group int64) string {
		var b bytes.Buffer
		if err := pq.Write(&b, rows, pq.MaxRowsPerRowGroup(group)); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path, whole := file("a.parquet", group), file("b.parquet", n)
	of := func(name, order string) *larderv1.JobSpec {
		return &larderv1.JobSpec{Name: name, Dataset: "parquet:" + path, BatchSize: 4, Shuffle: true, Order: order,
			Prefetch: 1, Seed: uint64(len(name))}
	}
	tight := serve(t, func(c *engine.Config) { c.Memory.MaxRing = 40 << 10 })
	large := of("large", "blocks(1, 4KiB)")
	large.Dataset = "parquet:" + whole
	for words, spec := range map[string]*larderv1.JobSpec{"take smaller blocks": of("a", "blocks(1, 1MiB)"),
		"smaller row groups": large} { // order-free: each is refused
		_, err := register(tight.dial(), spec)
		if reasonOf(err) != errs.ResourceExceeded || !strings.Contains(said(err), words) {
			t.Errorf("more than fits: %v; want %q", err, words)
		}
	}
	w := serve(t)
	pair := []*trainer{w.train(of("a", "blocks(4, 4KiB)"), 0), w.train(of("bb", "blocks(4, 4KiB)"), 0)}
	for _, x := range pair {
		if err := x.st.StartEpoch(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	var ids [2][]int64
	for len(ids[0]) < n || len(ids[1]) < n { // side by side
		for i, x := range pair {
			b, err := x.st.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ids[i] = append(ids[i], b.Index()...)
			b.Release()
		}
	}
	exactly(t, "one of two jobs", ids[0], all(n))
	exactly(t, "the other one", ids[1], all(n))
	var reads uint64
	for _, name := range []string{"a", "bb"} {
		d, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		c := d.GetJob().GetCounters()
		h := c.GetHits()
		reads += c.GetSourceReads()
		if from := h["block"] + h["shared_block"] + h["decoded"] + h["encoded"]; from != n { // one may have read all
			t.Errorf("%s: %d of %d samples came from somewhere, with %d reads: %v", name, from, n, c.GetSourceReads(), h)
		}
	}
	total := w.stats().GetTotals()
	if total.GetSourceReads() != reads || reads < n/group || reads > n/group*11/10+1 {
		t.Errorf("%d reads of two jobs, %d in all, of %d row groups", reads, total.GetSourceReads(), n/group)
	}
}

// What an order of blocks cannot be is refused with what to write instead, and a job that ends gives its memory back.
func TestBlocksAreRefusedWithWords(t *testing.T) {
	const n = 120
	w := serve(t, func(c *engine.Config) { c.Memory.MaxRing = 1 << 20 })
	dir, images := tars(t, n, 4)
	small := recipe(op("RandomResizedCrop", map[string]any{"size": 8.0}))
	for order, want := range map[string]string{
		"blocks": "blocks(16)", "blocks()": "blocks(16)", "blocks(0)": "0 blocks", "blocks(4": "number of blocks",
		"blocks(4, 1%)": "no size", "blocks(4, 1X)": "no size", "blocks(4, 16)": "cannot be had", "block(4)": "blocks(W)",
		"blocks(4, 1TiB)": "cannot be had", "blocks(99999999)": "cannot be mixed", "blocks(-1)": "number of blocks",
	} {
		_, err := register(w.dial(), spec("a", dir, 4, blocks(order), small))
		if reasonOf(err) != errs.Invalid || !strings.Contains(said(err), want) {
			t.Errorf("%s: %v", order, err)
		}
	}
	_, err := register(w.dial(), spec("a", images, 4, func(s *larderv1.JobSpec) { s.Order = "blocks(4)" }, small))
	if reasonOf(err) != errs.Unsupported || !strings.Contains(said(err), "larder pack") {
		t.Errorf("a folder of images: %v", err)
	}
	_, err = register(w.dial(), spec("a", dir, 4, blocks("blocks(4)"), small,
		func(s *larderv1.JobSpec) { s.Share = "augmented" }))
	if reasonOf(err) != errs.Unsupported {
		t.Errorf("with share: %v", err)
	}
	tight := serve(t, func(c *engine.Config) { c.Memory.MaxRing = 96 << 10 })
	_, err = register(tight.dial(), spec("a", dir, 2, blocks("blocks(40, 8KiB)"), small))
	if reasonOf(err) != errs.ResourceExceeded || !strings.Contains(said(err), "use blocks(") {
		t.Errorf("more than fits: %v", err)
	}
	for range 3 { // each would not fit beside the one before
		tr := tight.train(spec("a", dir, 2, blocks("blocks(1, 8KiB)"), small), 0)
		exactly(t, "a small window", tr.must(0).ids, all(n))
		if _, err := tight.engine.KillJob(t.Context(), &larderv1.KillJobRequest{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		_ = tr.conn.Close()
	}
}

// A dataset whose blocks become larger is followed as far as there is memory for them, which is taken; else the job
// keeps its samples, and says why.
func TestBlocksThatBecomeLarger(t *testing.T) {
	const few, many = 6, 240
	for _, limit := range []int64{96 << 10, 16 << 20} {
		w := serve(t, func(c *engine.Config) { c.Memory.MaxRing = limit })
		dir, _ := tars(t, few, 1)
		more, _ := tars(t, many, 1)
		small := recipe(op("RandomResizedCrop", map[string]any{"size": 8.0}))
		tr := w.train(spec("a", dir, 2, blocks("blocks(1, 1MiB)"), small), 0)
		exactly(t, "a small shard", tr.must(0).ids, all(few))
		body, err := os.ReadFile(filepath.Join(more, "00.tar"))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "01.tar"), body, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		before := w.engine.RingsUsed()
		if _, err := w.engine.RefreshDataset(t.Context(),
			&larderv1.RefreshDatasetRequest{Dataset: "wds:" + dir}); err != nil {
			t.Fatal(err)
		}
		taken := w.engine.RingsUsed() - before
		d, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(d.GetJob().GetNotes(), " ")
		if fits := limit > 1<<20; fits {
			if taken < int64(len(body))/2 || strings.Contains(notes, "become larger") {
				t.Errorf("%d bytes were taken for a shard of %d: %s", taken, len(body), notes)
			}
			exactly(t, "with a larger shard", tr.must(1).ids, all(few+many))
		} else {
			if taken != 0 || !strings.Contains(notes, "become larger") {
				t.Errorf("%d bytes were taken, and %d are there: %s", taken, limit, notes)
			}
			exactly(t, "without room", tr.must(1).ids, all(few))
		}
		if _, err := w.engine.KillJob(t.Context(), &larderv1.KillJobRequest{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		_ = tr.conn.Close()
		eventually(t, "the memory is given back", func() bool { return w.engine.RingsUsed() == 0 })
	}
}

func said(err error) string {
	f := errs.From(err)
	return f.Message + " " + f.Hint
}
