package source

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"larder/internal/store"
	"larder/internal/xrand"
	"larder/tiers/disk"
)

// noise is so much text that does not compress to nothing.
func noise(r *xrand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = "0123456789abcdefghijklmnopqrstuv"[r.IntN(32)]
	}
	return string(b)
}

// wholeSets are datasets whose index reads all bytes of their files: what follows the place in their uri, and these.
func wholeSets(t *testing.T) map[string]map[string]string {
	t.Helper()
	r := xrand.New(3, 1)
	tarOf := func(n, size int) string {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for i := range n {
			for _, m := range [][2]string{{"jpg", noise(r, size+r.IntN(size))}, {"cls", fmt.Sprint(i % 7)}} {
				head := &tar.Header{Name: fmt.Sprintf("%04d.%s", i, m[0]), Size: int64(len(m[1])), Mode: 0o644}
				must(t, w.WriteHeader(head))
				_, err := io.WriteString(w, m[1])
				must(t, err)
			}
		}
		must(t, w.Close())
		return b.String()
	}
	var lines, rows, text strings.Builder
	rows.WriteString("x,y\n")
	for i := range 3000 {
		s := noise(r, 60+r.IntN(300))
		fmt.Fprintf(&lines, "{\"x\": %d, \"y\": %q}\n", i, s)
		fmt.Fprintf(&rows, "%d,\"%s\n%s\"\n", i, s, s)
		fmt.Fprintln(&text, s)
	}
	z, err := zstd.NewWriter(nil)
	must(t, err)
	return map[string]map[string]string{
		"wds:%s/small-{0..1}.tar": {"small-0.tar": tarOf(300, 1000), "small-1.tar": tarOf(200, 1500)},
		"wds:%s/large.tar":        {"large.tar": tarOf(12, 80_000)},
		"wds:%s/z.tar.gz":         {"z.tar.gz": string(gzipOf(t, []byte(tarOf(300, 1000))))},
		"jsonl:%s":                {"a.jsonl": lines.String(), "b.jsonl": "{\"x\": 1, \"y\": \"one\"}\n"},
		"jsonl:%s/z.jsonl.gz":     {"z.jsonl.gz": string(gzipOf(t, []byte(lines.String())))},
		"csv:%s/c.csv":            {"c.csv": rows.String()},
		"csv:%s/c.csv.zst":        {"c.csv.zst": string(z.EncodeAll([]byte(rows.String()), nil))},
		"text:%s/t.txt":           {"t.txt": text.String()},
	}
}

// TestBytesOfAnIndexAreKept: with a disk tier, each byte of an object whose index reads all of it is fetched once by
// the index and the first epoch together, and none later, nor after a start.
func TestBytesOfAnIndexAreKept(t *testing.T) {
	for uri, files := range wholeSets(t) { // order-free: each by itself
		b, root, tierDir, indexDir := newBucket(t), t.TempDir(), t.TempDir(), t.TempDir()
		size := int64(0)
		for name, content := range files { // order-free: files of one folder
			b.put(t, "set/"+name, content)
			write(t, root, name, content)
			size += int64(len(content))
		}
		local, _ := open(t, "")
		d, err := local.Add(t.Context(), "", fmt.Sprintf(uri, root))
		must(t, err)
		want := recordsOf(t, local, d)
		plain, err := b.open(t, "").Add(t.Context(), "", fmt.Sprintf(uri, "s3://data/set"))
		must(t, err)
		without := fetched(b)
		recordsOf(t, plain.cat, plain)
		t.Logf("%s: index %.3f, and epoch %.3f of the object's bytes without a disk tier", uri,
			float64(without.Bytes)/float64(size), float64(fetched(b).Bytes-without.Bytes)/float64(size))
		before := fetched(b)
		for start := range 2 {
			tier, err := disk.Open(disk.Config{Dir: tierDir, Size: 64 << 20})
			must(t, err)
			c, err := OpenCatalog(CatalogConfig{IndexDir: indexDir, Stores: b.stores, Kept: tier, Spool: tier,
				Logger: slog.New(slog.DiscardHandler)})
			must(t, err)
			d, err := c.Add(t.Context(), "", fmt.Sprintf(uri, "s3://data/set"))
			must(t, err)
			for epoch := range 2 {
				if got := recordsOf(t, c, d); !slices.Equal(got, want) {
					t.Errorf("%s: other samples than of the folder in epoch %d after start %d", uri, epoch, start)
				}
				tier.Flush()
				now := fetched(b)
				if n := now.Bytes - before.Bytes; float64(n) > 1.02*float64(size) {
					t.Errorf("%s: %d bytes were fetched of %d", uri, n, size)
				}
				if start+epoch > 0 && now.Reads != before.Reads {
					t.Errorf("%s: %d requests in epoch %d after start %d", uri, now.Reads-before.Reads, epoch, start)
				}
				before.Reads = now.Reads
			}
			must(t, errors.Join(c.Close(), tier.Close()))
		}
	}
}

// fetched is what the bucket has given so far.
func fetched(b *bucketOf) store.Counters { return b.stores.Counters()[0] }

// TestBytesOfAnIndexMakeRoom: of a compressed file the disk tier needs what is unpacked; the bytes that the index read
// leave for that.
func TestBytesOfAnIndexMakeRoom(t *testing.T) {
	var lines strings.Builder
	r := xrand.New(3, 2)
	for range 4000 {
		fmt.Fprintln(&lines, noise(r, 300))
	}
	b := newBucket(t)
	b.put(t, "t.txt.gz", string(gzipOf(t, []byte(lines.String()))))
	tier, err := disk.Open(disk.Config{Dir: t.TempDir(), Size: 1500 << 10}) // 1.2 MB unpacked, and 0.8 MB packed
	must(t, err)
	c, err := OpenCatalog(CatalogConfig{Stores: b.stores, Kept: tier, Spool: tier, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	d, err := c.Add(t.Context(), "", "text:s3://data/t.txt.gz")
	must(t, err)
	recordsOf(t, c, d)
	tier.Flush()
	before := fetched(b)
	recordsOf(t, c, d)
	if now := fetched(b); now.Reads != before.Reads || tier.Stats().Blocks != 1 {
		t.Errorf("%d requests in the second epoch; %+v", now.Reads-before.Reads, tier.Stats())
	}
	must(t, errors.Join(c.Close(), tier.Close()))
}

// TestTornPieces: whatever parts of an object are read, in whatever order, what is kept are its bytes.
func TestTornPieces(t *testing.T) {
	const size = 5*keptPiece + 777
	object := []byte(noise(xrand.New(3, 4), size))
	for seed := range uint64(200) {
		r := xrand.New(3, seed)
		m := &memoryKept{held: map[disk.Key][]byte{}}
		k := &keptPieces{kept: m, size: size}
		s := &indexedStore{Store: bytesStore(object), pieces: k, torn: map[int64]*tornPiece{}}
		for off := int64(0); off < size; {
			n := 1 + int64(r.IntN(2*keptPiece))
			if r.IntN(4) == 0 { // left out
				off += n
				continue
			}
			buf := make([]byte, n)
			got, err := s.ReadRange(t.Context(), store.Info{}, off, buf)
			if want := min(n, size-off); int64(got) != want || !bytes.Equal(buf[:got], object[off:off+want]) ||
				(err != nil) != (want < n) {
				t.Fatalf("seed %d: %d bytes at %d: %d, %v", seed, n, off, got, err)
			}
			off += n
		}
		for key, b := range m.held { // order-free
			if !bytes.Equal(b, object[key.Off:key.Off+key.Size]) || key.Off%keptPiece != 0 {
				t.Fatalf("seed %d: other bytes at %d", seed, key.Off)
			}
		}
		all := make([]byte, size)
		if whole := k.get(disk.Whom{}, all, 0); whole != (len(m.held) == 6) || whole && !bytes.Equal(all, object) {
			t.Fatalf("seed %d: %d pieces are kept, and the object is there: %v", seed, len(m.held), whole)
		}
		if len(s.torn) > maxTorn {
			t.Fatalf("seed %d: %d pieces wait", seed, len(s.torn))
		}
	}
}

// memoryKept keeps all that it is given.
type memoryKept struct{ held map[disk.Key][]byte }

func (m *memoryKept) Get(_ disk.Whom, k disk.Key, buf []byte) bool {
	return copy(buf, m.held[k]) == len(buf)
}
func (m *memoryKept) Has(k disk.Key) bool                   { return m.held[k] != nil }
func (m *memoryKept) Put(_ disk.Whom, k disk.Key, b []byte) { m.held[k] = bytes.Clone(b) }

// bytesStore is a store of one object; nothing else of it is asked for.
func bytesStore(b []byte) store.Store { return rangesOf{b: b} }

type rangesOf struct {
	store.Store

	b []byte
}

func (r rangesOf) ReadRange(_ context.Context, _ store.Info, off int64, buf []byte) (int, error) {
	return bytes.NewReader(r.b).ReadAt(buf, off)
}
