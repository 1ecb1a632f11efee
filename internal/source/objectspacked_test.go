package source

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/ident"
	"larder/internal/xrand"
)

// indexBytes is what a version and the table of objects take, without what a file takes.
func indexBytes(c *Catalog, s *snapshot) int64 {
	n := int64(cap(c.objects.rows))*48 + int64(cap(c.objects.slots))*5 + int64(len(s.names)) +
		4*int64(cap(s.dirOf)+cap(s.nameEnd)+cap(s.labels)+cap(s.objs)) + 8*int64(cap(s.dead))
	n += 8 * int64(cap(s.short.dirs.from)+cap(s.short.labels.from)+cap(s.short.keys.from)+cap(s.short.objs.from))
	for _, p := range c.objects.parts {
		if p.in != nil {
			n += 12*int64(cap(p.in.at)) + 96
		}
	}
	return n
}

// packedMeta are places of samples in some files: most lie behind each other, some evenly, some before or at the same
// place, in other files or with sizes that no stretch holds.
func packedMeta(r *xrand.Rand, n int) []fileMeta {
	meta := make([]fileMeta, n)
	at, even := fileMeta{}, true
	for i := range meta {
		if i == 0 || r.IntN(60) == 0 {
			at = fileMeta{dev: uint64(r.IntN(2)), ino: uint64(r.IntN(3)), mtime: int64(r.IntN(2)), size: int64(1 + r.IntN(3))}
			even = r.IntN(2) == 0
			if r.IntN(3) == 0 {
				at.off = 1<<41 + int64(r.IntN(3))<<32
			}
		}
		meta[i] = at
		at.off += at.size
		if !even {
			at.off, at.size = at.off+int64(r.IntN(3)), int64(r.IntN(4))
		}
		switch r.IntN(80) {
		case 0:
			at.off -= int64(r.IntN(3)) * min(at.off, 9)
		case 1:
			at.size = 1<<32 + int64(r.IntN(2))
		case 2:
			meta[i].size = 1<<32 - 1
		}
	}
	return meta
}

// TestStretchesModel: whatever lies where, objects get the ids that a plain table of identities gives them, one after
// the other, and the table says what they are.
func TestStretchesModel(t *testing.T) {
	stretches := 0
	rapid.Check(t, func(rt *rapid.T) {
		type key struct {
			f   fileMeta
			ord uint32
		}
		var table objectTable
		model := map[key]ident.ObjectID{}
		r := xrand.New(rapid.Uint64().Draw(rt, "seed"))
		for root := range uint32(rapid.IntRange(1, 5).Draw(rt, "roots")) {
			meta := packedMeta(r, r.IntN(400))
			s := &snapshot{dirOf: make([]uint32, len(meta)), labels: []int32{}, dead: make([]uint64, len(meta)/64+1)}
			for range len(meta) / 50 {
				s.dead[r.IntN(len(s.dead))] |= 1 << r.IntN(64)
			}
			s.assignObjects(&table, root, nil, meta)
			used := map[ident.ObjectID]bool{}
			for i, f := range meta {
				if !s.Live(sampleID(i)) {
					continue
				}
				for ord := uint32(0); ; ord++ {
					id, ok := model[key{f, ord}]
					if !ok {
						id = ident.ObjectID(len(model))
						model[key{f, ord}] = id
					}
					if used[id] {
						continue
					}
					used[id] = true
					if s.objs[i] != id {
						rt.Fatalf("sample %d of root %d, %+v, is object %d, want %d", i, root, f, s.objs[i], id)
					}
					if o, _ := table.get(id); !ok && (o.root != root || o.sample != sampleID(i) || o.ordinal != ord) {
						rt.Fatalf("object %d is %+v, want sample %d of root %d, number %d", id, o, i, root, ord)
					}
					break
				}
			}
		}
		for k, id := range model {
			if m, ok := table.meta(id); !ok || m != k.f {
				rt.Fatalf("object %d is %+v, want %+v", id, m, k.f)
			}
		}
		if _, ok := table.get(ident.ObjectID(len(model))); ok || table.len() != len(model) {
			rt.Fatalf("%d objects, want %d", table.len(), len(model))
		}
		stretches += len(table.parts)
	})
	if stretches == 0 {
		t.Error("no stretch was made")
	}
}

// TestManyStretchesOfOneFile: a file whose samples come one by one keeps few stretches, and loses no object.
func TestManyStretchesOfOneFile(t *testing.T) {
	var table objectTable
	n := 0
	for round := range 2 {
		for k := range 3 * maxStretches {
			meta := make([]fileMeta, minStretch)
			for i := range meta {
				meta[i] = fileMeta{ino: 1, off: int64(k*100 + i), size: 1}
			}
			s := &snapshot{dirOf: make([]uint32, len(meta)), labels: []int32{}, dead: make([]uint64, 1)}
			s.assignObjects(&table, 0, nil, meta)
			for i, o := range s.objs {
				if want := ident.ObjectID(k*minStretch + i); o != want {
					t.Fatalf("round %d: sample %d of %d is object %d, want %d", round, i, k, o, want)
				}
			}
		}
		n = table.len()
	}
	if files := table.files[fileVersion{ino: 1}]; len(files) != maxStretches || n != 3*maxStretches*minStretch {
		t.Errorf("%d stretches, %d objects", len(files), n)
	}
}

// TestReadersWhileStretchesAreMade: what readers see is whole.
func TestReadersWhileStretchesAreMade(t *testing.T) {
	var table objectTable
	const files, each = 400, 50
	var over atomic.Bool
	wrong := make(chan string, 1)
	go func() {
		defer close(wrong)
		for !over.Load() {
			if k := table.len(); k > 0 {
				m, ok := table.meta(ident.ObjectID(k - 1))
				if !ok || m.dev != 7 || m.ino != uint64(k-1)/each || m.off != 3*(int64(k-1)%each) {
					wrong <- fmt.Sprintf("object %d is %+v", k-1, m)
					return
				}
			}
		}
	}()
	for f := range files {
		meta := make([]fileMeta, each)
		for i := range meta {
			meta[i] = fileMeta{dev: 7, ino: uint64(f), off: int64(3 * i), size: 3}
		}
		s := &snapshot{dirOf: make([]uint32, each), labels: []int32{}, dead: make([]uint64, 1)}
		s.assignObjects(&table, 0, nil, meta)
	}
	over.Store(true)
	if w, bad := <-wrong; bad {
		t.Error(w)
	}
}

// TestShortColumns: a version says the same with short columns, and has its own columns again when it is widened.
func TestShortColumns(t *testing.T) {
	short := 0
	rapid.Check(t, func(rt *rapid.T) {
		r := xrand.New(rapid.Uint64().Draw(rt, "seed"))
		n := rapid.IntRange(1, 200).Draw(rt, "n")
		s := &snapshot{uri: "wds:/r", root: "/r", labels: make([]int32, n), dirOf: make([]uint32, n),
			nameEnd: make([]uint32, n), dead: make([]uint64, (n+63)/64), objs: make([]ident.ObjectID, n), classes: []string{}}
		for d := range 5 {
			s.dirs = append(s.dirs, dirRow{rel: fmt.Sprint(d, ".tar"), live: true, dev: 1, ino: uint64(d), size: 1 << 40})
		}
		var names strings.Builder
		rows, key := r.IntN(3) > 0, []uint64{0, 99_999_990, math.MaxUint32 - 5}[r.IntN(3)]
		mixed := r.IntN(4) == 0 // some keys are not those of rows
		meta := make([]fileMeta, n)
		next := ident.ObjectID(r.IntN(9))
		for i := range n {
			if i > 0 {
				s.dirOf[i], s.labels[i] = s.dirOf[i-1], s.labels[i-1]
			}
			if r.IntN(30) == 0 {
				s.dirOf[i], s.labels[i], key, next = uint32(r.IntN(5)), int32(r.IntN(4)-1), uint64(r.IntN(9)), next+5
			}
			switch {
			case rows && (!mixed || r.IntN(60) > 0):
				names.Write(appendRowKey(nil, key))
			default:
				names.WriteString([]string{"a", "00001", "000000001", "0000000x", "4294967296", "-0000001"}[r.IntN(6)])
			}
			key, next = key+1, next+1
			s.nameEnd[i], s.objs[i] = uint32(names.Len()), next
			d := &s.dirs[s.dirOf[i]]
			meta[i] = fileMeta{dev: d.dev, ino: d.ino, off: int64(i), size: 1}
		}
		s.names = names.String()
		s.seal(meta)
		got := s.shortened()
		if got.dirOf == nil && got.names == "" && len(got.labels) == 0 && got.objs == nil {
			short++
		}
		for i := range n {
			id := sampleID(i)
			if got.Key(id) != s.Key(id) || got.Label(id) != s.Label(id) || got.object(id) != s.object(id) ||
				got.path(id) != s.path(id) || got.dir(id) != s.dir(id) {
				rt.Fatalf("sample %d: %q, label %d, object %d; want %q, %d, %d", i, got.Key(id), got.Label(id), got.object(id),
					s.Key(id), s.Label(id), s.object(id))
			}
		}
		if got.Len() != n || !bytes.Equal(encodeIndex(got, meta), encodeIndex(s, meta)) {
			rt.Fatalf("it is saved as another version; %d samples of %d", got.Len(), n)
		}
		wide := got.widened()
		wide.objs, wide.short = s.objs, s.short
		if !reflect.DeepEqual(wide, s) {
			rt.Fatalf("widened to %+v, want %+v", wide, s)
		}
	})
	if short == 0 {
		t.Error("no version had short columns alone")
	}
}

// TestKeysThatAreAlmostRows: samples keep their ids and keys when their dataset is indexed again, where the last key is
// not that of a row, and where 0 follows the last number of 32 bits.
func TestKeysThatAreAlmostRows(t *testing.T) {
	var keys []string
	for i := range 30 {
		keys = append(keys, fmt.Sprintf("%08d", i))
	}
	for name, keys := range map[string][]string{
		"a word at last":   append(slices.Clone(keys), "extra"),
		"around 32 bits":   append([]string{"4294967294", "4294967295"}, keys...),
		"behind a 33rd":    append([]string{"4294967295", "4294967296"}, keys...),
		"with fewer zeros": append(slices.Clone(keys), "030"),
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, root, "a-0.tar", shard(t, keys...))
			c, _ := open(t, "")
			d, err := c.Add(t.Context(), "", "wds:"+root)
			must(t, err)
			var want []string
			for i, k := range keys {
				want = append(want, fmt.Sprintf("%d a-0.tar/%s -1  image of %s", i, k, k))
			}
			if got := listing(t, c, d); !slices.Equal(got, want) {
				t.Fatalf("%q, want %q", got, want)
			}
			write(t, root, "a-1.tar", shard(t, "b"))
			d, err = c.Reindex(t.Context(), d.Name())
			must(t, err)
			want = append(want, fmt.Sprintf("%d a-1.tar/b -1  image of b", len(keys)))
			if got := listing(t, c, d); !slices.Equal(got, want) {
				t.Errorf("indexed again: %q, want %q", got, want)
			}
		})
	}
}

// TestBytesOfIndexes: memory that samples of packed files take, as allocated: what the bar of 48 bytes asks, with keys.
func TestBytesOfIndexes(t *testing.T) {
	const n = 4000
	var tar, csv bytes.Buffer
	must(t, benchTar(&tar, 0, n))
	csv.WriteString("path,label\n")
	for i := range n {
		fmt.Fprintf(&csv, "%s,%d\n", benchPath(i*i), i)
	}
	var parquet bytes.Buffer
	must(t, benchParquet(&parquet, 0, n))
	for _, c := range []struct {
		uri  string
		data []byte
		most float64
	}{
		{"wds:%s/x.tar", tar.Bytes(), 12 + 4 + 18 + 1}, // a place, the end of the key, and the key
		{"csv:%s/x.csv", csv.Bytes(), 12 + 4 + 1},      // a place and a label,
		{"parquet:%s/x.parquet", parquet.Bytes(), 12 + 4 + 1},
		{"tokens:%s/x.bin?seq_len=4", make([]byte, 8*n), 1},
	} {
		dir := t.TempDir()
		uri := fmt.Sprintf(c.uri, dir)
		path, _, _ := strings.Cut(uri[strings.IndexByte(uri, ':')+1:], "?")
		must(t, os.WriteFile(path, c.data, 0o600))
		cat, _ := open(t, "")
		d, err := cat.Add(t.Context(), "", uri)
		must(t, err)
		if got := float64(indexBytes(cat, d.snap.Load())) / float64(d.Len()); got > c.most || d.Len() < n/2 {
			t.Errorf("%s: %.1f bytes for each of %d samples, at most %.0f expected", uri, got, d.Len(), c.most)
		}
	}
}
