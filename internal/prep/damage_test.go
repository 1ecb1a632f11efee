package prep

import (
	"bytes"
	"testing"
)

// TestDamagedAt: the reported place of a damage, by format; none where the decoder does not know it.
func TestDamagedAt(t *testing.T) {
	lax, strict := NewWorker(Limits{}), NewWorker(Limits{RefuseCorrupt: true})
	defer lax.Close()
	defer strict.Close()
	files := goldenFiles(t)
	big := regionFiles(t)["444.jpg"]
	r := parse(t, spec("CenterCrop", "size", 20.0))
	dst := make([]byte, r.Output().SampleBytes)
	at := func(w *Worker, enc []byte) (int64, bool) {
		t.Helper()
		err := w.DecodeInto(r, enc, RandKey{}, dst)
		if err == nil {
			t.Error("it was decoded")
		}
		_, werr := w.Decode(r, enc, heap)
		a, ok := DamagedAt(err)
		// a part of it is looked at to its last row, the whole to its end
		if b, same := DamagedAt(werr); ok != same || ok && Parity() && a > b {
			t.Errorf("in place at byte %d (%v), in steps at byte %d (%v)", a, ok, b, same)
		}
		return a, ok
	}
	cut := func(name string, n int) []byte { return files[name][:n] }
	for name, enc := range map[string][]byte{
		"empty": nil, "jpeg half": big[:len(big)/2], "jpeg header": big[:20], "png half": cut("rgb8.png",
			900), "gif half": cut("plain.gif", 900), "webp half": cut("lossy.webp", 200),
		"bmp half": cut("rgb24.bmp", 1700), "tiff half": cut("rgb8-raw.tif", 1700), "netpbm half": cut("rgb8.ppm",
			1700), "netpbm text": cut("plain.ppm", 1700),
	} {
		if a, ok := at(lax, enc); !ok || a != int64(len(enc)) {
			t.Errorf("%s: at byte %d (%v), and the file ends at %d", name, a, ok, len(enc))
		}
	}
	if a, ok := at(lax, []byte("<html>404</html>")); !ok || a != 0 {
		t.Errorf("no image: at byte %d (%v)", a, ok)
	}
	wrong := bytes.Clone(files["rgb8.png"])
	wrong[1000] ^= 0xff
	if a, ok := at(lax, wrong); !ok || a < 1000 || a > 1000+4096 {
		t.Errorf("png with a wrong byte 1000: at byte %d (%v)", a, ok)
	}
	text := bytes.Replace(files["plain.ppm"], []byte("\n255\n"), []byte("\n255\nx"), 1)
	if a, ok := at(lax, text); !ok || a != int64(bytes.Index(text, []byte("\nx"))+1) {
		t.Errorf("netpbm with a letter: at byte %d (%v)", a, ok)
	}
	if !Parity() {
		return // the decoders in Go do not report where they are
	}
	// A marker where none may be: libjpeg warns, and has read no further than a block beyond it.
	marked := bytes.Clone(big)
	k := len(big) * 2 / 3
	copy(marked[k:], "\xff\xd9")
	if a, ok := at(strict, marked); !ok || a < int64(k)-2048 || a > int64(k)+64 {
		t.Errorf("jpeg with an early end at byte %d: at byte %d (%v)", k, a, ok)
	}
	if _, ok := DamagedAt(nil); ok {
		t.Error("nothing is wrong with no error")
	}
}
