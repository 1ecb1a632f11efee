package packed

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

type member struct{ name, body string }

func tarOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		if err := w.WriteHeader(&tar.Header{Name: m.name, Size: int64(len(m.body)), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type other struct{ *bytes.Reader }

func (other) Close() error { return nil }
func (o other) Len() int64 { return o.Size() }

// scan scans bytes as one file; beside is what lies next to it.
func scan(f Format, b, beside []byte) ([]Sample, Found, error) {
	var out []Sample
	file := File{ReaderAt: bytes.NewReader(b), Path: "/d/train-images-idx3-ubyte", Size: int64(len(b)),
		Beside: func(string) (Other, error) { return other{bytes.NewReader(beside)}, nil }}
	found, err := f.Scan(context.Background(), Address{}, file, func(s Sample) error {
		if s.Off < 0 || s.Size < 1 || s.Off > int64(len(b))-s.Size {
			return fmt.Errorf("sample %+v of %d bytes", s, len(b))
		}
		out = append(out, s)
		return nil
	})
	return out, found, err
}

func TestTarMembersOfOneKeyAreOneSample(t *testing.T) {
	b := tarOf(t, member{"a/0001.jpg", "JPEG"}, member{"a/0001.cls", "3\n"}, member{"a/0001.json", "{}"},
		member{"a/.hidden.jpg", "x"}, member{"__meta__", "y"}, member{"a/0002.seg.png", "PNG!!"}, member{"a/0002.cls", "cat"},
		member{"a/0003.json", "{}"})
	got, found, err := scan(wds{}, b, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Key != "a/0001" || got[0].Label != 3 || got[1].Key != "a/0002" || got[1].Class != "cat" {
		t.Fatalf("got %+v", got)
	}
	for i, want := range []string{"JPEG", "PNG!!"} {
		if s := string(b[got[i].Off:][:got[i].Size]); s != want {
			t.Errorf("sample %d has the bytes %q, not %q", i, s, want)
		}
	}
	if found.Without != 1 || found.Skipped[".json"] != 2 || found.Skipped["members without a key"] != 1 {
		t.Errorf("found %+v", found)
	}
}

// TestTarMembersLeadNowhere: names that climb out of a folder are keys and nothing else, for nothing is unpacked by its
// name; links and devices are counted and left out; a member without a label is a sample without one.
func TestTarMembersLeadNowhere(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "../../etc/passwd.jpg", Size: 4, Mode: 0o644, Typeflag: tar.TypeReg},
		{Name: "/etc/shadow.jpg", Size: 4, Mode: 0o644, Typeflag: tar.TypeReg},
		{Name: "linked.jpg", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink},
		{Name: "same.jpg", Linkname: "../../etc/passwd.jpg", Typeflag: tar.TypeLink},
		{Name: "folder.jpg/", Typeflag: tar.TypeDir},
		{Name: "device.jpg", Typeflag: tar.TypeChar},
		{Name: "pipe.jpg", Typeflag: tar.TypeFifo},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, "JPEG"[:h.Size]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, found, err := scan(wds{}, b.Bytes(), nil)
	if err != nil || len(got) != 2 || got[0].Key != "../../etc/passwd" || got[1].Key != "/etc/shadow" {
		t.Fatalf("got %+v, %v", got, err)
	}
	for _, s := range got {
		if at := b.Bytes()[s.Off:][:s.Size]; string(at) != "JPEG" || s.Label != -1 || s.Class != "" {
			t.Errorf("%s is %q, label %d, class %q", s.Key, at, s.Label, s.Class)
		}
	}
	if found.Skipped["links and devices"] != 4 { // folders are not counted
		t.Errorf("left out: %v", found.Skipped)
	}
}

func TestBadTarsSayWhere(t *testing.T) {
	good := tarOf(t, member{"1.jpg", "JPEG"}, member{"1.cls", "0"})
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"twice":  {tarOf(t, member{"1.jpg", "J"}, member{"2.jpg", "J"}, member{"1.jpg", "J"}), `key "1" comes twice`},
		"images": {tarOf(t, member{"1.jpg", "J"}, member{"1.png", "J"}), `is the second image of sample "1"`},
		"empty":  {tarOf(t, member{"1.jpg", ""}), `member "1.jpg" at byte 512 is empty`},
		"label":  {tarOf(t, member{"1.jpg", "J"}, member{"1.cls", strings.Repeat("x", 2000)}), "is a label of 2000 bytes"},
		"utf8":   {tarOf(t, member{"1.jpg", "J"}, member{"1.cls", "\xff"}), "is a label that is not UTF-8"},
		"noise":  {bytes.Repeat([]byte("noise"), 300), "after byte 0"},
		"cut":    {good[:700], "is cut after"},
	} {
		if _, _, err := scan(wds{}, c.b, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// mdsOf writes a shard as streaming.base.format.mds.MDSWriter does.
func mdsOf(rows [][]byte, labels []int64, extra string) []byte {
	head, _ := json.Marshal(map[string]any{"column_names": []string{"image", "label", "text"},
		"column_encodings": []string{"jpeg", "int", "str"}, "column_sizes": []any{nil, 8, nil}, "format": "mds",
		"version": 2})
	n := len(rows)
	at := 4 + 4*(n+1) + len(head)
	b := binary.LittleEndian.AppendUint32(nil, uint32(n))
	var data []byte
	for i := range rows {
		b = binary.LittleEndian.AppendUint32(b, uint32(at+len(data)))
		data = binary.LittleEndian.AppendUint32(data, uint32(len(rows[i])))
		data = binary.LittleEndian.AppendUint32(data, uint32(len(extra)))
		data = append(data, rows[i]...)
		data = binary.LittleEndian.AppendUint64(data, uint64(labels[i]))
		data = append(data, extra...)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(at+len(data)))
	return append(append(b, head...), data...)
}

func TestMDSColumns(t *testing.T) {
	rows := [][]byte{[]byte("first"), []byte("second image")}
	b := mdsOf(rows, []int64{7, 0}, "caption")
	got, found, err := scan(mds{}, b, nil)
	if err != nil || len(got) != 2 {
		t.Fatalf("got %+v, %v", got, err)
	}
	for i, s := range got {
		if !bytes.Equal(b[s.Off:][:s.Size], rows[i]) || s.Label != []int64{7, 0}[i] {
			t.Errorf("sample %d is %+v", i, s)
		}
	}
	if found.Skipped["column text"] != 2 {
		t.Errorf("found %+v", found)
	}
	for cut := range len(b) {
		if _, _, err := scan(mds{}, b[:cut], nil); err == nil {
			t.Fatalf("a shard cut at byte %d of %d was accepted", cut, len(b))
		}
	}
}

func cifarOf(classes, rows int) []byte {
	var b []byte
	for i := range rows {
		if classes == 100 {
			b = append(b, byte(i%20))
		}
		b = append(b, byte(i%classes))
		for p := range pixels {
			b = append(b, byte(i+p))
		}
	}
	return b
}

func TestCIFARRows(t *testing.T) {
	for _, classes := range []int{10, 100} {
		b := cifarOf(classes, 12)
		got, _, err := scan(cifar{classes}, b, nil)
		if err != nil || len(got) != 12 {
			t.Fatalf("%d classes: got %d samples, %v", classes, len(got), err)
		}
		for i, s := range got {
			raw := append(make([]byte, len(ppmHead)), b[s.Off:][:s.Size]...)
			img, err := cifar{classes}.Image(raw)
			if err != nil || s.Label != int64(i%classes) || !bytes.HasPrefix(img, []byte(ppmHead)) {
				t.Fatalf("sample %d: %+v %v", i, s, err)
			}
			for p := range plane {
				for c := range 3 {
					if got, want := img[len(ppmHead)+3*p+c], byte(i+c*plane+p); got != want {
						t.Fatalf("sample %d, pixel %d, channel %d: %d, not %d", i, p, c, got, want)
					}
				}
			}
		}
		if _, _, err := scan(cifar{classes}, b[:len(b)-1], nil); err == nil {
			t.Error("a row that is cut was accepted")
		}
		b[map[int]int{10: 0, 100: 1}[classes]] = 200
		if _, _, err := scan(cifar{classes}, b, nil); err == nil || !strings.Contains(err.Error(), "label 200") {
			t.Errorf("a label of 200: %v", err)
		}
	}
}

func idxOf(dims ...uint32) []byte {
	b := []byte{0, 0, 8, byte(len(dims))}
	n := uint32(1)
	for _, d := range dims {
		b = binary.BigEndian.AppendUint32(b, d)
		n *= d
	}
	for i := range n {
		b = append(b, byte(i*7))
	}
	return b
}

func TestIDXImagesAndLabels(t *testing.T) {
	images, labels := idxOf(5, 28, 28), idxOf(5)
	got, _, err := scan(idx{}, images, labels)
	if err != nil || len(got) != 5 {
		t.Fatalf("got %d samples, %v", len(got), err)
	}
	for i, s := range got {
		raw := append(make([]byte, pgmBytes), images[s.Off:][:s.Size]...)
		img, err := idx{}.Image(raw)
		if err != nil || s.Label != int64(byte(i*7)) || !bytes.Equal(img[pgmBytes:], images[16+784*i:][:784]) {
			t.Fatalf("sample %d: %+v, %v", i, s, err)
		}
	}
	for name, c := range map[string][2][]byte{"labels": {images, idxOf(4)}, "cut": {images[:100], labels},
		"oblong": {idxOf(5, 28, 27), labels}, "dims": {idxOf(5, 28), labels}} {
		if _, _, err := scan(idx{}, c[0], c[1]); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestIDXLabelsAreThoseOfTheirImages: labels are read in blocks, and the last block is shorter.
func TestIDXLabelsAreThoseOfTheirImages(t *testing.T) {
	const n = 70_000
	got, _, err := scan(idx{}, idxOf(n, 1, 1), idxOf(n))
	if err != nil || len(got) != n {
		t.Fatalf("%d samples, %v", len(got), err)
	}
	for i, s := range got {
		if s.Label != int64(byte(i*7)) {
			t.Fatalf("image %d has label %d, not %d", i, s.Label, byte(i*7))
		}
	}
}

// TestMDSOffsetsInPieces: a shard of more samples than offsets are read at once.
func TestMDSOffsetsInPieces(t *testing.T) {
	const n = offsetsAtOnce + 3
	rows, labels := make([][]byte, n), make([]int64, n)
	for i := range rows {
		rows[i], labels[i] = []byte{byte(i)}, int64(i)
	}
	b := mdsOf(rows, labels, "")
	got, _, err := scan(mds{}, b, nil)
	if err != nil || len(got) != n {
		t.Fatalf("%d samples, %v", len(got), err)
	}
	for i, s := range got {
		if s.Label != int64(i) || b[s.Off] != byte(i) {
			t.Fatalf("sample %d is %+v", i, s)
		}
	}
}

func TestKindsAreBounded(t *testing.T) {
	members := []member{{"a.jpg", "J"}}
	for i := range 200 {
		members = append(members, member{fmt.Sprintf("a.%06d.x%d", i, i), "x"}, member{fmt.Sprintf("a.%06d.xml", i), "x"})
	}
	_, found, err := scan(wds{}, tarOf(t, members...), nil)
	if err != nil || len(found.Skipped) > maxKinds+1 || found.Skipped[".xml"] != 200 {
		t.Errorf("%d kinds, %d .xml, %v", len(found.Skipped), found.Skipped[".xml"], err)
	}
}

func TestSparseMembersAreRefused(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	h := &tar.Header{Name: "1.jpg", Size: 1, Mode: 0o644, Format: tar.FormatPAX}
	h.PAXRecords = map[string]string{"LARDER.test": "x"}
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("J")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	sparse := bytes.Replace(b.Bytes(), []byte("LARDER.test"), []byte("GNU.sparse."), 1)
	if _, _, err := scan(wds{}, sparse, nil); err == nil {
		t.Error("a sparse member was accepted")
	}
}

func TestPipesDoNotHang(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "index.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := (mds{}).Files(Address{Path: dir}); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a pipe as the index: %v", err)
	}
}

func TestExpand(t *testing.T) {
	for in, want := range map[string][]string{
		"/a/x.tar":          {"/a/x.tar"},
		"/a/{08..11}.tar":   {"/a/08.tar", "/a/09.tar", "/a/10.tar", "/a/11.tar"},
		"/{a,b}/{0..1}.tar": {"/a/0.tar", "/a/1.tar", "/b/0.tar", "/b/1.tar"},
	} {
		if got, err := expand(in); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
	for _, bad := range []string{"/{0..", "/{1..0}", "/{a}", "/{{0..1}}", "/{0..99999999}", "/{a..b}",
		"/{" + strings.Repeat("0", 99) + "1..2}", "/{0..1}" + strings.Repeat("x", 5000),
		strings.Repeat("{0..999}", 3)} {
		if _, err := expand(bad); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

func TestAddresses(t *testing.T) {
	for in, want := range map[string]string{
		"wds:/a/b c/{0..1}.tar::/x/y.tar": "wds:/a/b c/{0..1}.tar::/x/y.tar", "idx:/d?split=test": "idx:/d?split=test",
		"mds:/d/": "mds:/d", "cifar10:/é": "cifar10:/é",
	} {
		scheme, rest, _ := strings.Cut(in, ":")
		if a, err := ParseAddress(scheme, rest); err != nil || a.String() != want {
			t.Errorf("%s: %s, %v", in, a, err)
		}
	}
	for _, bad := range []string{"wds:", "wds:/a::", "wds:~/x", "wds:s3://b/x.tar", "wds:/a?split=test",
		"idx:/d?spilt=test",
		"idx:/d?split=val", "tokens:/d/a.bin?seq_len=64&seq_len=5", "mds:/a\x00"} {
		scheme, rest, _ := strings.Cut(bad, ":")
		if a, err := ParseAddress(scheme, rest); err == nil {
			t.Errorf("%q was read as %s", bad, a)
		}
	}
}

func TestPicklesAndCompressionAreRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "cifar-10-batches-py"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := (cifar{10}).Files(Address{Path: dir}); err == nil || !strings.Contains(err.Error(), "pickles") {
		t.Errorf("the Python version of CIFAR: %v", err)
	}
	if _, _, err := (wds{}).Files(Address{Path: dir + "/train"}); err == nil ||
		!strings.Contains(err.Error(), "does not exist") {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "plain"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := (wds{}).Files(Address{Path: dir + "/plain"}); err == nil || !strings.Contains(err.Error(), ".tar") {
		t.Errorf("a file without .tar: %v", err)
	}
	if _, _, err := (wds{}).Files(Address{Path: dir + "/{0..1}.tar.xz"}); err == nil ||
		!strings.Contains(err.Error(), "compressed") {
		t.Errorf("a compressed tar: %v", err)
	}
	index := `{"version":2,"shards":[{"format":"mds","compression":"zstd","raw_data":{"basename":"shard.00000.mds"}}]}`
	if err := os.WriteFile(filepath.Join(dir, "index.json"), []byte(index), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := (mds{}).Files(Address{Path: dir}); err == nil || !strings.Contains(err.Error(), "compressed (zstd)") {
		t.Errorf("a compressed shard: %v", err)
	}
	for _, name := range []string{"../x.mds", "/etc/passwd", "a/../b", "", "x\x00"} {
		b, _ := json.Marshal(name)
		index := `{"version":2,"shards":[{"format":"mds","raw_data":{"basename":` + string(b) + `}}]}`
		if err := os.WriteFile(filepath.Join(dir, "index.json"), []byte(index), 0o600); err != nil {
			t.Fatal(err)
		}
		if files, _, err := (mds{}).Files(Address{Path: dir}); err == nil {
			t.Errorf("a shard named %q was accepted: %v", name, files)
		}
	}
}

// FuzzScan scans anything in every format: an error or samples that lie in the file, never more memory than that.
// imageFormats are those whose samples may be an image and a label.
var imageFormats = []Format{wds{}, mds{}, cifar{classes: 10}, cifar{classes: 100}, idx{}}

func FuzzScan(f *testing.F) {
	f.Add(tarOf(f, member{"1.jpg", "JPEG"}, member{"1.cls", "3"}), []byte{})
	f.Add(mdsOf([][]byte{[]byte("x"), []byte("yz")}, []int64{1, 2}, "t"), []byte{})
	f.Add(cifarOf(10, 2), []byte{})
	f.Add(idxOf(3, 5, 5), idxOf(3))
	f.Fuzz(func(t *testing.T, b, beside []byte) {
		for _, format := range imageFormats {
			got, _, err := scan(format, b, beside)
			if err != nil {
				continue
			}
			for _, s := range got {
				raw := append(make([]byte, format.Overhead()), b[s.Off:][:s.Size]...)
				if img, err := format.Image(raw); err == nil && len(img) != len(raw) {
					t.Fatalf("%s: an image of %d bytes for %d", format.Scheme(), len(img), len(raw))
				}
			}
		}
	})
}

func TestScanEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	b := cifarOf(10, 1)
	big := bytes.Repeat(b, 2048)
	_, err := cifar{10}.Scan(ctx, Address{}, File{ReaderAt: bytes.NewReader(big), Size: int64(len(big))},
		func(Sample) error { return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestDamage cuts and flips a file of each format at 200 places: an error, or samples that lie in the file, in little
// memory. The files have at least 2 KiB, so that the places are distinct.
func TestDamage(t *testing.T) {
	texts, labels := [][]byte{[]byte("first"), bytes.Repeat([]byte("x"), 900)}, []int64{7, 0}
	for i := range 12 {
		texts, labels = append(texts, bytes.Repeat([]byte{byte('a' + i)}, 90+i)), append(labels, int64(i))
	}
	files := map[string][2][]byte{
		"wds":     {tarOf(t, member{"1.jpg", strings.Repeat("J", 700)}, member{"1.cls", "3"}, member{"2.png", "P"}), nil},
		"mds":     {mdsOf(texts, labels, "caption"), nil},
		"cifar10": {cifarOf(10, 3), nil}, "cifar100": {cifarOf(100, 3), nil},
		"idx": {idxOf(80, 6, 6), idxOf(80)},
	}
	rows := map[string]int{"cifar10": 3073, "cifar100": 3074} // a cut between rows cannot be seen
	// Pixels have no checksums: what is found is a damaged header, an offset or a label that is none.
	found := map[string]int{"wds": 50, "mds": 10}
	for _, f := range formats {
		whole, ok := files[f.Scheme()]
		if !ok {
			continue
		}
		if len(whole[0]) < leastOfCorpus {
			t.Errorf("%s: a file of %d bytes, and %d are the least", f.Scheme(), len(whole[0]), leastOfCorpus)
		}
		good, _, err := scan(f, whole[0], whole[1])
		if err != nil {
			t.Fatal(err)
		}
		end := len(whole[0])
		if f.Scheme() == "wds" {
			end -= 1024 // the zeros at the end
		}
		var before, after runtime.MemStats
		measured := func(b []byte) ([]Sample, error) {
			runtime.ReadMemStats(&before)
			got, _, err := scan(f, b, whole[1])
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
				t.Errorf("%s: %d bytes were allocated for a file of %d", f.Scheme(), n, len(b))
			}
			return got, err
		}
		refused := 0
		for i := 0; i < damages; i += every() {
			at := i * end / damages
			between := rows[f.Scheme()] > 0 && at%rows[f.Scheme()] == 0
			if got, err := measured(whole[0][:at]); err == nil && !between {
				t.Errorf("%s cut at byte %d of %d: %d samples", f.Scheme(), at, len(whole[0]), len(got))
			}
			b := bytes.Clone(whole[0])
			b[at] ^= 1 << (i % 8)
			got, err := measured(b)
			if err != nil {
				refused++
			} else if len(got) > len(good)+1 {
				t.Errorf("%s with a bit of byte %d flipped: %d samples", f.Scheme(), at, len(got))
			}
		}
		pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("4d", 32) + "\nsize 9\n"
		for _, b := range [][]byte{append(bytes.Clone(whole[0]), 'x'), []byte(pointer)} {
			indexed := f.Scheme() == "mds" && len(b) > len(whole[0]) // index.json says how long a shard is
			if got, err := measured(b); err == nil && !indexed {
				t.Errorf("%s, %.20q of %d bytes: %d samples", f.Scheme(), b, len(b), len(got))
			}
		}
		tried := damages / every()
		if every() == 1 && refused < found[f.Scheme()] {
			t.Errorf("%s: %d of %d flips refused, and of %d %d are the least", f.Scheme(), refused, tried, damages,
				found[f.Scheme()])
		}
		t.Logf("%s: %d cuts refused, %d of %d flips", f.Scheme(), tried, refused, tried)
	}
}
