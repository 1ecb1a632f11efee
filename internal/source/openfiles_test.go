package source

import (
	"slices"
	"strings"
	"testing"
)

// Open files count as what they hold; those that were used last stay, whatever that is.
func TestOpenFilesCountWhatTheyHold(t *testing.T) {
	root := t.TempDir()
	const documents = 100_000
	write(t, root, "t.bin", strings.Repeat("\x01\x00", 2*documents))
	write(t, root, "t.idx", megatronIndex(slices.Repeat([]int32{2}, documents)...))
	write(t, root, "p/a.parquet", parquetFile(t, 30))
	c, err := OpenCatalog(CatalogConfig{})
	must(t, err)
	defer c.Close()
	for uri, x := range map[string]struct{ least, most int64 }{
		"tokens:" + root + "/t.bin?seq_len=64&doc=idx": {8 * documents, 16 * documents},
		"tokens:" + root + "/t.bin?seq_len=64":         {0, 0},
		"parquet:" + root + "/p":                       {300, 1 << 20},
	} {
		d, err := c.Add(t.Context(), "", uri)
		must(t, err)
		c.files.close()
		c.files.closed = false
		_, err = c.Read(t.Context(), d.Object(0), nil)
		must(t, err)
		if n := c.files.bytes - ofLocal; n < x.least || n > x.most {
			t.Errorf("%s: counts as %d bytes, want %d to %d", uri, n, x.least, x.most)
		}
	}

	var o openFiles
	for i := range 2 * fewIdle {
		f, err := o.use(t.Context(), openKey{mark: uint64(i)}, func(f *openFile) error {
			f.bytes = maxIdle + 1
			return nil
		})
		must(t, err)
		o.done(f, false)
	}
	if len(o.idle) != fewIdle || o.bytes != fewIdle*(maxIdle+1) || o.idle[0].key.mark != fewIdle {
		t.Errorf("%d files of %d bytes stay open, the first is %d", len(o.idle), o.bytes, o.idle[0].key.mark)
	}
	small := int64(1 << 10)
	for i := range 200 {
		f, err := o.use(t.Context(), openKey{mark: uint64(1000 + i)}, func(f *openFile) error {
			f.bytes = small
			return nil
		})
		must(t, err)
		o.done(f, false)
	}
	if len(o.idle) != 200 || o.bytes != 200*small {
		t.Errorf("%d small files of %d bytes stay open", len(o.idle), o.bytes)
	}
}
