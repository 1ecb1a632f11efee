package prep

import (
	"bytes"
	"image"
	"image/png"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/internal/record"
	"larder/internal/xrand"
)

// imageRecord is a record of an image file and a caption, and its schemas as it is delivered and stored.
func imageRecord(t *testing.T, file []byte) (blob []byte, want record.Schema) {
	t.Helper()
	loose := []int64{record.Ragged}
	text := record.Field{Name: "caption", Kind: record.Text, DType: record.Uint8, Shape: loose}
	stored := record.Schema{Fields: []record.Field{
		{Name: "png", Kind: record.Bytes, DType: record.Uint8, Shape: loose}, text,
	}}
	blob, err := record.Encode(&stored, []record.Content{{Data: file}, {Data: []byte("a dog")}})
	if err != nil {
		t.Fatal(err)
	}
	return blob, record.Schema{Fields: []record.Field{
		{Name: "png", Kind: record.Array, DType: record.Uint8, Shape: []int64{record.Ragged, record.Ragged, 3}}, text,
	}}
}

func pngOf(t *testing.T, w, h int) (file, pixels []byte) {
	t.Helper()
	r := xrand.New(uint64(w))
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	for i := range img.Pix {
		if img.Pix[i] = 255; i%4 != 3 {
			img.Pix[i] = byte(r.Uint64())
			pixels = append(pixels, img.Pix[i])
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), pixels
}

// Images of a record are decoded in their place; the other fields stay as they are, and what fits already is copied.
func TestRecordDecodesItsImages(t *testing.T) {
	w := NewWorker(Limits{})
	defer w.Close()
	for _, size := range [][2]int{{1, 1}, {7, 5}, {64, 33}} {
		file, pixels := pngOf(t, size[0], size[1])
		blob, schema := imageRecord(t, file)
		calls := 0
		alloc := func(n int) ([]byte, error) {
			calls++
			return bytes.Repeat([]byte{0xaa}, n+9), nil // memory that was used before
		}
		got, err := w.Record(&schema, blob, alloc)
		if err != nil || calls != 1 {
			t.Fatal(calls, err)
		}
		if err := schema.Validate(got, 0); err != nil {
			t.Fatal(err)
		}
		again, err := w.Record(&schema, got, alloc)
		if err != nil || !bytes.Equal(again, got) {
			t.Fatal("a record that fits changed", err)
		}
		if b, ok := w.Whole(&schema, append(got, 1)); !ok || !bytes.Equal(b, again) {
			t.Error("a record without image files is not what Record copies of it")
		}
		if _, ok := w.Whole(&schema, blob); ok {
			t.Error("a record with an image file is whole")
		}
		if _, ok := w.Whole(&schema, got[:len(got)-64]); ok {
			t.Error("a record that is cut is whole")
		}
		v, err := record.Open(got)
		if err != nil {
			t.Fatal(err)
		}
		want := [][]byte{pixels, []byte("a dog")}
		for i, x := range v.All {
			if !bytes.Equal(x.Data, want[i]) {
				t.Errorf("field %d of a picture of %v differs", i, size)
			}
		}
		if files := Files(blob); len(files) != 1 || !bytes.Equal(files[0], file) {
			t.Errorf("%d files in a record", len(files))
		}
	}
}

func TestBadRecordsNameTheField(t *testing.T) {
	file, _ := pngOf(t, 40, 40)
	blob, schema := imageRecord(t, file)
	noise, _ := imageRecord(t, []byte("noise"))
	short, _ := imageRecord(t, file[:len(file)/2])
	room := func(n int) ([]byte, error) { return make([]byte, n), nil }
	for name, c := range map[string]struct {
		blob []byte
		max  int64
		want string
	}{
		"noise": {noise, 0, "field png: "}, "cut": {short, 0, "field png: "}, "no record": {file, 0, "its record: "},
		"large": {blob, 4000, "40 pixels"},
	} {
		w := NewWorker(Limits{})
		if c.max > 0 {
			w.limits.MaxBytes = c.max
		}
		_, err := w.Record(&schema, c.blob, room)
		if !errs.Is(err, errs.SampleBad) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		w.Close()
	}
}
