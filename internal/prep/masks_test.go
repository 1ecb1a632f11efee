package prep

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"strings"
	"testing"

	"larder/internal/errs"
	"larder/internal/record"
)

// maskRecord is a record of one file, and the schema by which it is a mask.
func maskRecord(t *testing.T, img image.Image) (blob []byte, want record.Schema) {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return maskFile(t, b.Bytes())
}

func maskFile(t *testing.T, file []byte) (blob []byte, want record.Schema) {
	t.Helper()
	stored := record.Schema{Fields: []record.Field{{Name: "m", Kind: record.Bytes, DType: record.Uint8,
		Shape: []int64{record.Ragged}}}}
	blob, err := record.Encode(&stored, []record.Content{{Data: file}})
	if err != nil {
		t.Fatal(err)
	}
	return blob, record.Schema{Fields: []record.Field{{Name: "m", Kind: record.Array, DType: record.Uint8,
		Shape: []int64{record.Ragged, record.Ragged}}}}
}

// pixels fills an image with numbers below n.
func pixels(n int, set func(x, y int, v uint8)) (want []byte) {
	for y := range 5 {
		for x := range 7 {
			v := uint8((x*31 + y*17) % n)
			set(x, y, v)
			want = append(want, v)
		}
	}
	return want
}

// Masks are the numbers that were written: indices of palettes of 1, 2, 4 and 8 bits, grey, and colours that are grey.
func TestMasksAreNumbers(t *testing.T) {
	room := func(n int) ([]byte, error) { return make([]byte, n), nil }
	box := image.Rect(0, 0, 7, 5)
	w := NewWorker(Limits{})
	defer w.Close()
	for name, c := range map[string]func() (image.Image, []byte){
		"grey": func() (image.Image, []byte) {
			m := image.NewGray(box)
			return m, pixels(256, func(x, y int, v uint8) { m.SetGray(x, y, color.Gray{Y: v}) })
		},
		"grey with alpha": func() (image.Image, []byte) {
			m := image.NewNRGBA(box)
			return m, pixels(256, func(x, y int, v uint8) { m.SetNRGBA(x, y, color.NRGBA{v, v, v, 100}) })
		},
	} {
		img, want := c()
		check(t, w, name, img, want, room)
	}
	for _, n := range []int{2, 4, 16, 21, 256} {
		m := image.NewPaletted(box, nil)
		for i := range n {
			m.Palette = append(m.Palette, color.NRGBA{R: uint8(255 - i), G: uint8(i * i), A: uint8(255 - i%2)})
		}
		want := pixels(n, func(x, y int, v uint8) { m.SetColorIndex(x, y, v) })
		check(t, w, "palette", m, want, room)
	}
}

func check(t *testing.T, w *Worker, name string, img image.Image, want []byte, room func(int) ([]byte, error)) {
	t.Helper()
	blob, schema := maskRecord(t, img)
	got, err := w.Record(&schema, blob, room)
	if err == nil {
		err = schema.Validate(got, 0)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	v, _ := record.Open(got)
	for _, x := range v.All {
		if !bytes.Equal(x.Data, want) || x.Dim(0) != 5 || x.Dim(1) != 7 {
			t.Errorf("%s: %v %v, want %v", name, x.Dims(), x.Data, want)
		}
	}
}

// Files that hold no numbers of classes are refused, with the field and the reason.
func TestMasksThatAreNone(t *testing.T) {
	colours := image.NewNRGBA(image.Rect(0, 0, 3, 3))
	colours.SetNRGBA(1, 2, color.NRGBA{R: 4, G: 5, B: 4, A: 255})
	var whole bytes.Buffer
	if err := png.Encode(&whole, image.NewGray(image.Rect(0, 0, 40, 40))); err != nil {
		t.Fatal(err)
	}
	w := NewWorker(Limits{})
	defer w.Close()
	for says, make2 := range map[string]func() ([]byte, record.Schema){
		"field m: the mask has colours": func() ([]byte, record.Schema) { return maskRecord(t, colours) },
		"field m: the mask has 16 bits": func() ([]byte, record.Schema) {
			return maskRecord(t, image.NewGray16(image.Rect(0, 0, 3, 3)))
		},
		"only PNG keeps its numbers": func() ([]byte, record.Schema) {
			return maskFile(t, []byte("P5 1 1 255 x"))
		},
		"is truncated": func() ([]byte, record.Schema) { return maskFile(t, whole.Bytes()[:60]) },
	} {
		blob, schema := make2()
		_, err := w.Record(&schema, blob, func(n int) ([]byte, error) { return make([]byte, n), nil })
		if !errs.Is(err, errs.SampleBad) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}
