package engine_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"larder/internal/engine"
	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/journal"
	"larder/internal/prep"
	"larder/internal/prep/fields"
	"larder/internal/record"
	"larder/internal/xrand"
	larderv1 "larder/proto/larder/v1"
)

// npy is an array of float32 with four columns as a file.
func npy(values []float32) []byte {
	head := fmt.Sprintf("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 4), }", len(values)/4)
	head += strings.Repeat(" ", 63-(10+len(head))%64) + "\n"
	b := append([]byte("\x93NUMPY\x01\x00"), byte(len(head)), byte(len(head)>>8))
	b, _ = binary.Append(append(b, head...), binary.LittleEndian, values)
	return b
}

// scene draws a photograph, its mask of classes as a file with a palette, and boxes.
func scene(t testing.TB, i int) (photo, mask, boxes []byte) {
	t.Helper()
	w, h, r := 20+i%7, 24+i%5, xrand.New(uint64(i))
	rgb := image.NewRGBA(image.Rect(0, 0, w, h))
	classes := image.NewPaletted(rgb.Rect, nil)
	for k := range 21 {
		classes.Palette = append(classes.Palette, color.NRGBA{R: uint8(200 - 9*k), G: uint8(k * k % 251), A: 255})
	}
	for y := range h {
		for x := range w {
			rgb.SetRGBA(x, y, color.RGBA{R: uint8(9 * x), G: uint8(9 * y), B: uint8(i), A: 255})
			classes.Pix[y*classes.Stride+x] = uint8(r.IntN(21))
		}
	}
	var p, m bytes.Buffer
	if err := jpeg.Encode(&p, rgb, nil); err != nil {
		t.Fatal(err)
	}
	if err := png.Encode(&m, classes); err != nil {
		t.Fatal(err)
	}
	var v []float32
	for range i % 3 {
		v = append(v, float32(r.IntN(9)), float32(r.IntN(9)), float32(10+r.IntN(9)), float32(10+r.IntN(9)))
	}
	return p.Bytes(), m.Bytes(), npy(v)
}

// scenes writes a tar of n samples; bad has a mask in colours, -1 = none.
func scenes(t testing.TB, n, bad int) (uri string) {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := range n {
		photo, mask, boxes := scene(t, i)
		if i == bad {
			img := image.NewNRGBA(image.Rect(0, 0, 4, 4))
			img.SetNRGBA(2, 2, color.NRGBA{R: 9, A: 255})
			var b bytes.Buffer
			if err := png.Encode(&b, img); err != nil {
				t.Fatal(err)
			}
			mask = b.Bytes()
		}
		for ext, b := range map[string][]byte{"jpg": photo, "seg.png": mask, "boxes.npy": boxes,
			"cls": fmt.Append(nil, i%4)} { // order-free: parts are found by their names
			head := &tar.Header{Name: fmt.Sprintf("%04d.%s", i, ext), Size: int64(len(b)), Mode: 0o644}
			err := w.WriteHeader(head)
			if err == nil {
				_, err = w.Write(b)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "a.tar")
	if err := errors.Join(w.Close(), os.WriteFile(path, out.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return "wds:" + path + "?fields=jpg,seg.png,boxes.npy,cls"
}

// jointOps are deterministic, then random, then a cast.
var jointOps = []*larderv1.Op{
	op("Fields", map[string]any{"image": "jpg", "mask": "seg.png", "boxes": "boxes.npy"}),
	op("Resize", map[string]any{"size": 18.0}), op("RandomResizedCrop", map[string]any{"size": 12.0}),
	op("RandomHorizontalFlip", nil), op("RandomErasing", map[string]any{"value": 7.0}),
	op("Normalize", map[string]any{"mean": "imagenet"}),
}

func storedSpec(name, uri string, batch uint32, change ...func(*larderv1.JobSpec)) *larderv1.JobSpec {
	s := &larderv1.JobSpec{Name: name, Dataset: uri, BatchSize: batch, Shuffle: true, Seed: 7}
	for _, f := range append([]func(*larderv1.JobSpec){recipe(jointOps...)}, change...) {
		f(s)
	}
	return s
}

// parts are the fields of a sample, joined.
type parts = map[int64]string

// stored takes an epoch of records: each sample's fields, by id.
func (tr *trainer) stored(n uint32, names ...string) (out parts, ids []int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := tr.st.StartEpoch(ctx, n); err != nil {
		return nil, nil, err
	}
	out = parts{}
	for {
		more, err := tr.batch(ctx, out, names...)
		if err != nil || more == nil {
			return out, ids, err
		}
		ids = append(ids, more...)
	}
}

// batch adds the fields of one batch to out; nil = the epoch is over.
func (tr *trainer) batch(ctx context.Context, out parts, names ...string) ([]int64, error) {
	b, err := tr.st.Next(ctx)
	if b == nil {
		if tr.st.End() != nil {
			err = nil // io.EOF
		}
		return nil, err
	}
	defer b.Release()
	for row, id := range b.Index() {
		for _, name := range names {
			data, dims := b.Value(name, row)
			out[id] += fmt.Sprintf("%s %v %x\n", name, dims, data)
		}
	}
	return slices.Clone(b.Index()), nil
}

var storedNames = []string{"jpg", "seg.png", "boxes.npy", "cls"}

// want is what the ops make of the stored samples of a dataset, straight from prep.
func (w *world) want(uri string, instance uint32, names []string, ops []*larderv1.Op) parts {
	w.t.Helper()
	data, err := w.catalog.Open(w.t.Context(), uri)
	if err != nil {
		w.t.Fatal(err)
	}
	specs := make([]prep.OpSpec, 0, len(ops))
	for _, o := range ops {
		specs = append(specs, prep.OpSpec{Name: o.GetName(), Args: o.GetArgs().AsMap()})
	}
	item := fields.Files(specs, data.Schema())
	run, err := fields.Parse(specs, 1, &item)
	if err != nil {
		w.t.Fatal(err)
	}
	worker := prep.NewWorker(prep.Limits{})
	defer worker.Close()
	room := func(n int) ([]byte, error) { return make([]byte, n), nil }
	out := parts{}
	for i := range data.Len() {
		enc, err := w.catalog.Read(w.t.Context(), data.Object(ident.SampleID(i)), nil)
		blob, err2 := worker.Record(&item, enc, room)
		v, err3 := record.Open(blob)
		if err = errors.Join(err, err2, err3); err != nil {
			w.t.Fatal(err)
		}
		key := prep.RandKey{Seed: 7, Instance: instance, Sample: uint64(i)}
		if blob, err = fields.NewWorker(worker).Run(run.Stage(run.Whole()), v, key, room); err != nil {
			w.t.Fatal(err)
		}
		made, err := record.Open(blob)
		if err != nil {
			w.t.Fatal(err)
		}
		for k, x := range made.All {
			dims := x.Dims()
			if len(dims) == 0 {
				dims = nil
			}
			out[int64(i)] += fmt.Sprintf("%s %v %x\n", names[k], dims, x.Data)
		}
	}
	return out
}

// Whatever tiers keep, in place or not, rows are what the ops make of the decoded record: image, mask, boxes, class.
// Where the image is the only file and the first op is random, a part of it is decoded.
func TestOpsOnStoredRecords(t *testing.T) {
	const n = 40
	uri := scenes(t, n, -1)
	inPart := append([]*larderv1.Op{op("Fields", map[string]any{"boxes": "boxes.npy"})}, jointOps[2:]...)
	for name, c := range map[string]struct {
		uri   string
		names []string
		ops   []*larderv1.Op
	}{
		"a prefix, and a mask": {uri, storedNames, jointOps},
		"in part":              {strings.Replace(uri, "seg.png,", "", 1), []string{"jpg", "boxes.npy", "cls"}, inPart},
	} {
		for _, total := range []int64{0, 1 << 15, 64 * mib} { // none, some of the samples, all
			w := serve(t, func(c *engine.Config) {
				if total <= 1<<15 {
					c.Memory.Tiers.Total = total
					c.Memory.Tiers.Sizes = [ident.NumForms]int64{ident.Decoded: total / 2, ident.Augmented: total / 4}
				}
			})
			alone := w.train(storedSpec("a", c.uri, 5, recipe(c.ops...)), 0)
			for epoch := range uint32(2) {
				got, ids, err := alone.stored(epoch, c.names...)
				if err != nil {
					t.Fatal(err)
				}
				exactly(t, "epoch", ids, all(n))
				if want := w.want(c.uri, epoch, c.names, c.ops); !maps.Equal(got, want) {
					t.Fatalf("%s, %d bytes of tiers, epoch %d: sample 0 is\n%s\nwant\n%s", name, total, epoch, got[0], want[0])
				}
			}
			alone.detach()
		}
	}
}

// Two jobs decode each record once; with share=augmented they also get the same draws, each of which is made once.
func TestStoredRecordsAreShared(t *testing.T) {
	const n, epochs, size = 60, 2, 5 // more batches than slots, so that they meet in an epoch
	uri := scenes(t, n, -1)
	for i, share := range []string{"none", "augmented"} {
		w := serve(t)
		var both [2]*trainer
		for k, name := range []string{"a", "b"} {
			both[k] = w.train(storedSpec(name, uri, size, func(s *larderv1.JobSpec) {
				if s.Share = share; share == "none" {
					s.Seed += uint64(k)
				}
			}), 0)
		}
		alike := 0
		for epoch := range uint32(epochs) {
			alike += sideBySide(t, both, epoch, n/size, n)
		}
		totals := w.stats().GetTotals()
		if d := totals.GetDecodes(); d != n {
			t.Errorf("%s: %d decodes for %d samples, two jobs and %d epochs", share, d, n, epochs)
		}
		// The next epoch is prepared ahead.
		switch made := int(totals.GetAugments()); {
		case i == 0 && (alike > n/4 || made < 2*n*epochs):
			t.Errorf("jobs of their own: %d of %d samples are alike, %d draws", alike, n*epochs, made)
		case i == 1 && (alike != n*epochs || made > n*(epochs+1)+n/2):
			t.Errorf("a share group: %d of %d samples are alike, %d draws", alike, n*epochs, made)
		}
		both[0].detach()
		both[1].detach()
	}
}

// sideBySide takes an epoch of two jobs batch by batch, and counts the samples that are alike.
func sideBySide(t *testing.T, both [2]*trainer, epoch uint32, batches, n int) (alike int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for _, tr := range both {
		if err := tr.st.StartEpoch(ctx, epoch); err != nil {
			t.Fatal(err)
		}
	}
	got, ids := [2]parts{{}, {}}, [2][]int64{}
	for range batches + 1 {
		for k, tr := range both {
			more, err := tr.batch(ctx, got[k], storedNames...)
			if err != nil {
				t.Fatal(err)
			}
			ids[k] = append(ids[k], more...)
		}
	}
	for k := range both {
		exactly(t, "epoch", ids[k], all(n))
	}
	for id, text := range got[0] { // order-free: a count
		if got[1][id] == text {
			alike++
		}
	}
	return alike
}

// A job on records with ops comes back after a restart, and goes on with the same draws.
func TestRestartWithOpsOnRecords(t *testing.T) {
	fs := journal.NewMemFS()
	const n = 20
	uri := scenes(t, n, -1)
	var id string
	t.Run("before", func(t *testing.T) {
		w := onDisk(t, fs)
		c := w.dial()
		r, err := register(c, storedSpec("a", uri, 5))
		if err != nil {
			t.Fatal(err)
		}
		id = r.GetJob().GetRecipe()
		w.engine.Leave()
	})
	t.Run("after", func(t *testing.T) {
		w := onDisk(t, fs)
		v, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "a"})
		if err != nil || v.GetJob().GetRecipe() != id {
			t.Fatalf("%v, %v", v, err)
		}
		tr := w.train(storedSpec("a", uri, 5), 0)
		got, ids, err := tr.stored(0, storedNames...)
		if err != nil {
			t.Fatal(err)
		}
		exactly(t, "after", ids, all(n))
		if !maps.Equal(got, w.want(uri, 0, storedNames, jointOps)) {
			t.Error("other bytes than before")
		}
		tr.detach()
	})
}

// A mask that has no numbers of classes costs its own sample, and the reason names the field.
func TestMasksInColours(t *testing.T) {
	const n, bad = 12, 5
	uri := scenes(t, n, bad)
	w := serve(t)
	tr := w.train(storedSpec("a", uri, 4, func(s *larderv1.JobSpec) { s.OnError = "skip" }), 0)
	_, ids, err := tr.stored(0, "cls")
	if err != nil {
		t.Fatal(err)
	}
	exactly(t, "epoch", ids, slices.DeleteFunc(all(n), func(i int64) bool { return i == bad }))
	r, err := w.engine.DescribeJob(t.Context(), &larderv1.DescribeJobRequest{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	q := r.GetJob().GetQuarantined()
	if len(q) != 1 || !strings.Contains(q[0].GetReason(), "field seg.png: the mask has colours") {
		t.Errorf("%v", q)
	}
	tr.detach()
}

// What cannot work is refused at registration, with the op, the field, and what to do.
func TestRecipesOnStoredRecordsThatDoNotFit(t *testing.T) {
	uri := scenes(t, 4, -1)
	folder := "imagefolder:" + folder(t, 4)
	w := serve(t)
	flip, jpg := op("HFlip", nil), op("Fields", map[string]any{"image": "jpg"})
	for says, c := range map[string]struct {
		uri string
		ops []*larderv1.Op
	}{
		`2 fields of the records can be its image: jpg, seg.png`: {uri, []*larderv1.Op{flip}},
		`field "seg": there is no such field, which Fields`: {uri, []*larderv1.Op{op("Fields",
			map[string]any{"image": "jpg", "mask": "seg"}), flip}},
		`field "cls": it is scalar, which are no boxes`: {uri, []*larderv1.Op{op("Fields",
			map[string]any{"image": "jpg", "boxes": "cls"}), flip}},
		`torchvision refuses that, too`: {uri, []*larderv1.Op{jointOps[0], op("TrivialAugmentWide", nil)}},
		`which is no image that it mixes`: {uri, []*larderv1.Op{jpg, flip, op("CutMix",
			map[string]any{"num_classes": 4.0})}},
		`there is no such op`:         {uri, []*larderv1.Op{jpg, op("HFlop", nil)}},
		`op 1, HFlop`:                 {uri, []*larderv1.Op{flip, op("HFlop", nil)}},
		`which is no image`:           {uri, []*larderv1.Op{jpg, op("ToTensor", nil), jpg, flip}},
		`is for records: the samples`: {folder, []*larderv1.Op{jpg, flip}},
		`no schema, which jobs need`:  {uri, []*larderv1.Op{pythonOp("m.f", false)}},
	} {
		_, err := register(w.dial(), storedSpec("x", c.uri, 2, recipe(c.ops...)))
		if err == nil || !strings.Contains(err.Error(), says) || errs.From(err).Hint == "" {
			t.Errorf("%s: %v", says, err)
		}
	}
}
