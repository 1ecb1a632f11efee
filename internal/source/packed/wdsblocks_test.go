package packed

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"testing"

	"larder/internal/spool"
)

var errStore = errors.New("the store does not answer")

// fails is a file that can be read up to a byte.
type fails struct {
	*bytes.Reader

	at int64
}

func (f fails) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) <= f.at || off+int64(len(p)) > f.Size() && f.at >= f.Size() {
		return f.Reader.ReadAt(p, off)
	}
	n, _ := f.Reader.ReadAt(p[:max(0, f.at-off)], off)
	return n, errStore
}

// Wherever in a compressed tar its store fails, that is the cause: it makes no sample bad.
func TestAStoreThatFailsIsTheCauseInCompressedTars(t *testing.T) {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.NoCompression) // so that each byte of the file is one of the tar
	w := tar.NewWriter(z)
	for _, m := range [][2]string{{"a.jpg", "image"}, {"a.cls", "1"}, {"b.cls", "2"}, {"b.jpg", "other"}} {
		err := w.WriteHeader(&tar.Header{Name: m[0], Size: int64(len(m[1])), Mode: 0o600})
		if _, werr := w.Write([]byte(m[1])); err != nil || werr != nil {
			t.Fatal(err, werr)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	read := func(at int) ([]byte, error) {
		f := File{ReaderAt: fails{bytes.NewReader(b.Bytes()), int64(at)}, Path: "a.tar.gz", Size: int64(b.Len()), ID: "a",
			Spool: spool.NewMemory(1 << 20)}
		return wds{}.openBlock(Address{Scheme: "wds"}, f).Record(t.Context(), nil, Sample{Off: 1, Size: 5})
	}
	if got, err := read(b.Len()); string(got) != "other" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	for at := range b.Len() {
		if _, err := read(at); !errors.Is(err, errStore) {
			t.Fatalf("it fails at byte %d of %d: %v", at, b.Len(), err)
		}
	}
}
