package trace

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"

	"larder/internal/errs"
	"larder/internal/ident"
)

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// drawn is any valid trace.
func drawn(rt *rapid.T) *Trace {
	t := &Trace{Name: rapid.StringN(0, 20, 60).Draw(rt, "name"), Seed: rapid.Uint64().Draw(rt, "seed"),
		Objects: rapid.IntRange(1, 300).Draw(rt, "objects")}
	for i := range rapid.IntRange(1, 5).Draw(rt, "jobs") {
		d := func(what string) time.Duration {
			return time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(rt, what))
		}
		j := Job{Name: fmt.Sprint(i), Order: "strict", Arrive: d("arrive"), Leave: d("leave"), Step: d("step"),
			Batch: rapid.IntRange(0, 100).Draw(rt, "batch"), Looks: rapid.Bool().Draw(rt, "looks")}
		j.Subset = Ranges(slices.Compact(slices.Sorted(slices.Values(rapid.SliceOfN(rapid.Uint32Range(0, uint32(t.Objects-1)),
			0, 20).Draw(rt, "subset")))))
		t.Jobs = append(t.Jobs, j)
	}
	if rapid.Bool().Draw(rt, "sized") {
		t.Sizes = rapid.SliceOfN(rapid.Uint32(), t.Objects, t.Objects).Draw(rt, "sizes")
	}
	if rapid.Bool().Draw(rt, "costs") {
		for range t.Objects {
			t.Decode = append(t.Decode, time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(rt, "decode")))
			t.Augment = append(t.Augment, time.Duration(rapid.Int64Range(0, 1000).Draw(rt, "augment")))
		}
	}
	if rapid.Bool().Draw(rt, "decoded") {
		t.Decoded = rapid.SliceOfN(rapid.Uint32(), t.Objects, t.Objects).Draw(rt, "decoded sizes")
	}
	if rapid.Bool().Draw(rt, "world") {
		t.World = drawnWorld(rt, len(t.Jobs))
	}
	begun := make([]bool, len(t.Jobs))
	for range rapid.IntRange(0, 400).Draw(rt, "picks") {
		j := rapid.IntRange(0, len(t.Jobs)-1).Draw(rt, "job")
		t.Pick.Add(j, rapid.Uint32Range(0, uint32(t.Objects-1)).Draw(rt, "x"), !begun[j] ||
			rapid.IntRange(0, 9).Draw(rt, "begins") == 0)
		begun[j] = true
		if rapid.IntRange(0, 5).Draw(rt, "moves") == 0 {
			t.Moves = append(t.Moves, Move{uint64(rapid.IntRange(0, 0).Draw(rt, "0") + t.Pick.Len()),
				uint32(j) % uint32(t.Objects), ident.Form(j) % ident.NumForms, j%2 == 0})
		}
	}
	return t
}

func drawnWorld(rt *rapid.T, jobs int) *World {
	w := &World{Workers: rapid.IntRange(1, 64).Draw(rt, "workers"), Cores: rapid.IntRange(1, 64).Draw(rt, "cores"),
		StorageLimit: rapid.Int64Range(0, 1<<40).Draw(rt, "limit"),
		Bandwidth:    rapid.Float64Range(0, 1e12).Draw(rt, "bandwidth"), Latency: time.Duration(rapid.Int64Range(0,
			1e9).Draw(rt,
			"latency")), InPlace: rapid.Float64Range(0, 2).Draw(rt, "in place"),
		Tiers: Tiers{Total: rapid.Int64Range(0, 1<<50).Draw(rt, "total"), Encoded: -1,
			Decoded: rapid.Int64Range(-1, 1<<40).Draw(rt, "decoded"), Policy: []string{"need", "lru", ""}, Model: "seneca"},
		Lost: rapid.Uint64().Draw(rt, "lost"), Counted: Counted{Reads: rapid.Uint64().Draw(rt, "reads")}}
	for range jobs {
		w.Jobs = append(w.Jobs, JobWorld{Ranks: rapid.IntRange(1, 8).Draw(rt, "ranks"), Prefetch: 2,
			Recipe: rapid.StringN(0, 20, 60).Draw(rt, "recipe"), Share: rapid.Bool().Draw(rt, "share"),
			Seed: rapid.Uint64().Draw(rt, "job seed"), Augmented: rapid.Int64Range(0, 1<<30).Draw(rt, "augmented")})
	}
	return w
}

// A trace with a world is of version 2, whose bytes are a promise too.
func TestGoldenFileOfAWorld(t *testing.T) {
	a := &Trace{Name: "w", Seed: 7, Objects: 3,
		Jobs: []Job{{Name: "a", Order: "stratified", Step: 300, Batch: 2, Epochs: 1, Looks: true}}, Sizes: []uint32{10, 500,
			10}, Decoded: []uint32{60, 3000, 60},
		World: &World{Workers: 2, Cores: 2, StorageLimit: 1000, Bandwidth: 900.5, Latency: 3, Memory: 8e9, Finish: 4,
			InPlace: .75, Tiers: Tiers{Total: 100, Encoded: -1, Decoded: 50, Policy: []string{"need", "need", "need"},
				Model: "bottleneck"},
			Jobs: []JobWorld{{Ranks: 1, Prefetch: 2, Recipe: "r", Augmented: 48}}, Counted: Counted{Reads: 3, Decodes: 3,
				Augments: 3, Samples: 3}}}
	a.Pick.Add(0, 2, true)
	var b bytes.Buffer
	if err := Write(&b, a); err != nil {
		t.Fatal(err)
	}
	got := hex.EncodeToString(b.Bytes())
	golden, err := os.ReadFile("testdata/world.hex")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(got, "4c41524445525452"+"02000000"+"00000000") || got != strings.TrimSpace(string(golden)) {
		t.Errorf("got  %s\nwant %s", got, golden)
	}
	if again, err := Read(&b, "t", 0); err != nil || !Equal(a, again) {
		t.Errorf("it is read as another one: %v", err)
	}
}

func TestHostileWorlds(t *testing.T) {
	jobs := []Job{{Name: "a"}}
	good := World{Workers: 1, Cores: 1, Jobs: []JobWorld{{Ranks: 1, Prefetch: 2}}}
	file := func(version byte, world []byte) []byte {
		h := append([]byte(magic), version, 0, 0, 0, 0, 0, 0, 0)
		sum := xxhash.Sum64(h)
		for i, c := range [][]byte{appendDemand(nil, &Trace{Objects: 3, Jobs: jobs}), world, {0, 0}} {
			b := append([]byte{[]byte{chunkDemand, chunkWorld, chunkEnd}[i]}, binary.AppendUvarint(nil, uint64(len(c)))...)
			b = append(b, c...)
			sum = chain(sum, b)
			h = append(h, binary.LittleEndian.AppendUint64(b, sum)...)
		}
		return h
	}
	raw := must[[]byte](t)(good.marshal())
	if got, err := Read(bytes.NewReader(file(2, raw)), "t", 0); err != nil || got.World == nil {
		t.Fatal(err)
	}
	for what, f := range map[string][]byte{
		"in version 1":    file(1, raw),
		"no JSON":         file(2, []byte("{")),
		"nothing":         file(2, nil),
		"an unknown key":  file(2, []byte(`{"workers":1,"cores":1,"jobs":[{"ranks":1,"prefetch":2}],"zzqq":1}`)),
		"two of them":     file(2, append(slices.Clone(raw), raw...)),
		"no workers":      file(2, []byte(`{"workers":0,"cores":1,"jobs":[{"ranks":1,"prefetch":2}]}`)),
		"no jobs":         file(2, []byte(`{"workers":1,"cores":1}`)),
		"a negative rate": file(2, []byte(`{"workers":1,"cores":1,"memory_bandwidth":-1,"jobs":[{"ranks":1,"prefetch":2}]}`)),
		"two policies": file(2,
			[]byte(`{"workers":1,"cores":1,"tiers":{"policy":["a","b"]},"jobs":[{"ranks":1,"prefetch":2}]}`)),
		"no ranks": file(2, []byte(`{"workers":1,"cores":1,"jobs":[{"ranks":0,"prefetch":2}]}`)),
	} {
		if _, err := Read(bytes.NewReader(f), "t", 1<<30); !errs.Is(err, errs.Invalid) ||
			!strings.Contains(err.Error(), "at byte ") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestFileHoldsTheTrace(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a := drawn(rt)
		var b bytes.Buffer
		if err := Write(&b, a); err != nil {
			rt.Fatal(err)
		}
		got, err := Read(bytes.NewReader(b.Bytes()), "t", 0)
		if err != nil || !Equal(a, got) {
			rt.Fatalf("%v\nwrote %+v\nread  %+v", err, a, got)
		}
	})
}

// More than one chunk of everything, and how compact it is: 17 + 3 bits a pick, and little more.
func TestLargeFile(t *testing.T) {
	a := must[*Trace](t)(Generate(Spec{Family: "staggered", Samples: 100_000, Jobs: 4, Epochs: 1, Seed: 5,
		Bytes: 1000}, 0))
	for i := range uint64(200_000) {
		a.Moves = append(a.Moves, Move{i * 2, uint32(i) % 1000, ident.Decoded, i%3 == 0})
	}
	var b bytes.Buffer
	if err := Write(&b, a); err != nil {
		t.Fatal(err)
	}
	got := must[*Trace](t)(Read(bytes.NewReader(b.Bytes()), "t", 0))
	if !Equal(a, got) {
		t.Fatal("what was read is not what was written")
	}
	a.Moves, a.Sizes = nil, nil
	b.Reset()
	_ = Write(&b, a)
	if per := float64(8*b.Len()) / 400_000; per > 20.1 {
		t.Errorf("%.2f bits a pick", per)
	}
}

// The bytes are a promise: a file of version 1 stays readable.
func TestGoldenFile(t *testing.T) {
	a := &Trace{Name: "tiny", Seed: 7, Objects: 3, Jobs: []Job{{Name: "a", Order: "fixed", Arrive: 5, Step: 300, Batch: 2,
		Epochs: 1, Subset: []Range{{0, 1}, {2, 3}}}}, Sizes: []uint32{10, 500, 10}}
	a.Pick.Add(0, 2, true)
	a.Pick.Add(0, 0, false)
	a.Moves = []Move{{1, 2, ident.Decoded, true}, {2, 2, ident.Decoded, false}}
	var b bytes.Buffer
	if err := Write(&b, a); err != nil {
		t.Fatal(err)
	}
	const want = "4c41524445525452" + "01000000" + "00000000"
	got := hex.EncodeToString(b.Bytes())
	golden, err := os.ReadFile("testdata/tiny.hex")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(got, want) || got != strings.TrimSpace(string(golden)) {
		t.Errorf("got  %s\nwant %s", got, golden)
	}
}

// Whatever byte is changed, added or missing: an error with an offset, never another trace.
func TestDamageIsNoticed(t *testing.T) {
	a := must[*Trace](t)(Generate(Spec{Family: "crossed", Samples: 40, Jobs: 3, Epochs: 2, Seed: 5, Bytes: 100}, 0))
	a.Moves = []Move{{3, 1, ident.Encoded, true}}
	var b bytes.Buffer
	if err := Write(&b, a); err != nil {
		t.Fatal(err)
	}
	good := b.Bytes()
	refused := func(what string, raw []byte) {
		t.Helper()
		got, err := Read(bytes.NewReader(raw), "f.trace", 1<<30)
		if !errs.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "at byte ") || errs.From(err).Hint == "" {
			t.Errorf("%s: %v, %v", what, got != nil, err)
		}
	}
	for i := range good {
		raw := slices.Clone(good)
		raw[i] ^= 0x41
		refused(fmt.Sprintf("byte %d changed", i), raw)
		refused(fmt.Sprintf("cut at %d", i), good[:i])
	}
	refused("a byte more", append(slices.Clone(good), 0))
	refused("twice", append(slices.Clone(good), good...))
	refused("another format", []byte("time,object\n1,2\n"))
}

// Chunks with right checksums and wrong content: what only a hostile writer makes.
func TestHostileChunks(t *testing.T) {
	demand := appendDemand(nil, &Trace{Objects: 10, Jobs: []Job{{Name: "a"}}})
	sized := appendDemand(nil, &Trace{Objects: 10, Jobs: []Job{{Name: "a"}}, Sizes: []uint32{}})
	file := func(chunks ...[]byte) []byte {
		h := append([]byte(magic), 1, 0, 0, 0, 0, 0, 0, 0)
		sum := xxhash.Sum64(h)
		for _, c := range chunks {
			b := append([]byte{c[0]}, binary.AppendUvarint(nil, uint64(len(c)-1))...)
			b = append(b, c[1:]...)
			sum = chain(sum, b)
			h = append(h, binary.LittleEndian.AppendUint64(b, sum)...)
		}
		return h
	}
	c := func(kind byte, parts ...[]byte) []byte { return append([]byte{kind}, bytes.Join(parts, nil)...) }
	end := c(chunkEnd, []byte{2, 0})
	picks := func(objects []uint32, jobs []uint16) []byte { return c(chunkPicks, appendPicks(nil, objects, jobs)) }
	ok := picks([]uint32{1, 9}, []uint16{Begins, 0})
	if got, err := Read(bytes.NewReader(file(c(chunkDemand, demand), ok, end)), "t", 0); err != nil ||
		got.Pick.Len() != 2 {
		t.Fatalf("what the cases below are made of is refused: %v", err)
	}
	for what, chunks := range map[string][][]byte{
		"nothing before picks": {ok, end},
		"two demands":          {c(chunkDemand, demand), c(chunkDemand, demand), ok, end},
		"an unknown kind":      {c(chunkDemand, demand), c(77, nil), ok, end},
		"sizes after picks": {c(chunkDemand, sized), ok,
			c(chunkObjects, appendObjects(nil, &Trace{Sizes: make([]uint32, 10)}, 0, 10)), end},
		"no sizes": {c(chunkDemand, sized), ok, end},
		"sizes never announced": {c(chunkDemand, demand),
			c(chunkObjects, appendObjects(nil, &Trace{Sizes: make([]uint32, 10)}, 0, 10)), ok, end},
		"too many sizes": {c(chunkDemand, sized),
			c(chunkObjects, appendObjects(nil, &Trace{Sizes: make([]uint32, 11)}, 0, 11)), ok, end},
		"an object that there is not": {c(chunkDemand, demand), picks([]uint32{1, 10}, []uint16{Begins, 0}), end},
		"a job that there is not":     {c(chunkDemand, demand), picks([]uint32{1, 2}, []uint16{Begins, 1}), end},
		"a pick of no epoch":          {c(chunkDemand, demand), picks([]uint32{1, 2}, []uint16{0, Begins}), end},
		"a wrong count":               {c(chunkDemand, demand), ok, c(chunkEnd, []byte{3, 0})},
		"an event after the end": {c(chunkDemand, demand), ok, c(chunkMoves, appendMoves(nil, []Move{{At: 3}}, 0)),
			c(chunkEnd, []byte{2, 1})},
		"no rows":                 {c(chunkDemand, demand), c(chunkPicks, []byte{0}), end},
		"a width of 65":           {c(chunkDemand, demand), c(chunkPicks, []byte{1, 0, 65}), end},
		"a row less than it says": {c(chunkDemand, demand), c(chunkPicks, []byte{200, 1, 0, 4}), end},
		"a byte too many":         {c(chunkDemand, demand, []byte{0}), ok, end},
		"no job":                  {c(chunkDemand, appendDemand(nil, &Trace{Objects: 10})), c(chunkEnd, []byte{0, 0})},
		"ranges that overlap the end": {
			c(chunkDemand, appendDemand(nil, &Trace{Objects: 10, Jobs: []Job{{Subset: []Range{{4, 11}}}}})), c(chunkEnd,
				[]byte{0, 0})},
	} {
		if _, err := Read(bytes.NewReader(file(chunks...)), "t", 1<<30); !errs.Is(err, errs.Invalid) ||
			!strings.Contains(err.Error(), "at byte ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	huge := append(file(c(chunkDemand, demand)), chunkPicks, 0xff, 0xff, 0xff, 0xff, 0x0f)
	if _, err := Read(bytes.NewReader(huge), "t", 0); !errs.Is(err, errs.Invalid) ||
		!strings.Contains(err.Error(), "a chunk claims 4294967295 bytes") {
		t.Errorf("a chunk of 4 GiB: %v", err)
	}
	var many [][]byte // constant columns cost nothing in the file
	for range 100 {
		many = append(many,
			c(chunkPicks, appendPicks(nil, make([]uint32, blockPicks), slices.Repeat([]uint16{Begins}, blockPicks))))
	}
	if _, err := Read(bytes.NewReader(file(append([][]byte{c(chunkDemand, demand)}, many...)...)), "t",
		1<<20); !errs.Is(err, errs.ResourceExceeded) {
		t.Errorf("6.5 M picks in 1 MiB of memory: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	for _, family := range Families() {
		var b bytes.Buffer
		a, err := Generate(Spec{Family: family, Samples: 20, Jobs: 2, Epochs: 2, Seed: 1, Bytes: 7}, 0)
		if err != nil {
			f.Fatal(err)
		}
		_ = Write(&b, a)
		f.Add(b.Bytes(), uint8(0))
		b.Reset()
		_ = Export(&b, a, "csv")
		f.Add(b.Bytes(), uint8(2))
		b.Reset()
		_ = Export(&b, a, "oracleGeneral")
		f.Add(b.Bytes(), uint8(1))
		b.Reset()
		a.World = &World{Workers: 2, Cores: 2, Jobs: []JobWorld{{Ranks: 1, Prefetch: 2},
			{Ranks: 2, Prefetch: 3, Share: true}}}
		_ = Write(&b, a)
		f.Add(b.Bytes(), uint8(0))
	}
	f.Fuzz(func(t *testing.T, raw []byte, format uint8) {
		name := Formats()[int(format)%len(Formats())]
		if name == "larder" && len(raw) > headerSize { // right checksums, so that what is behind them is reached
			raw = slices.Clone(raw)
			resum(raw)
		}
		got, err := Import(bytes.NewReader(raw), "f", name, 1<<24)
		if err != nil {
			if e := errs.From(err); e.Reason == errs.Internal || e.Hint == "" {
				t.Fatalf("%v", err)
			}
			return
		}
		if err := got.Check(); err != nil {
			t.Fatalf("what was read contradicts itself: %v", err)
		}
		var b bytes.Buffer
		if err := Write(&b, got); err != nil {
			t.Fatal(err)
		}
		if again, err := Read(&b, "f", 0); err != nil || !Equal(got, again) {
			t.Fatalf("it does not survive being written: %v", err)
		}
	})
}

// resum gives every whole chunk the checksum that it should have.
func resum(raw []byte) {
	sum := xxhash.Sum64(raw[:headerSize])
	for at := headerSize; at < len(raw); {
		n, w := binary.Uvarint(raw[at+1:])
		if w <= 0 || n > uint64(len(raw)) || at+1+w+int(n)+8 > len(raw) {
			return
		}
		body := raw[at : at+1+w+int(n)]
		sum = chain(sum, body)
		at += len(body)
		binary.LittleEndian.PutUint64(raw[at:], sum)
		at += 8
	}
}

func TestForeignFormats(t *testing.T) {
	a := must[*Trace](t)(Generate(Spec{Family: "staggered", Samples: 50, Jobs: 3, Epochs: 2, Seed: 3, Bytes: 5000}, 0))
	a.Jobs[1].Name = `two, "quoted"`
	var b bytes.Buffer
	if err := Export(&b, a, "csv"); err != nil {
		t.Fatal(err)
	}
	got := must[*Trace](t)(Import(&b, "x.csv", "csv", 0))
	if got.Jobs[1].Name != a.Jobs[1].Name || got.Jobs[1].Epochs != 2 || !slices.Equal(got.Pick.Job, a.Pick.Job) {
		t.Errorf("jobs or epochs of the CSV differ: %+v", got.Jobs)
	}
	same := func(what string, got *Trace) {
		t.Helper()
		name := map[uint32]uint32{}
		for i, x := range got.Pick.Object { // ids are dense by first occurrence: a bijection
			y := a.Pick.Object[i]
			if was, ok := name[x]; ok && was != y || got.Size(x) != a.Size(y) {
				t.Fatalf("%s: request %d is %d of size %d, was %d of size %d", what, i, x, got.Size(x), y, a.Size(y))
			}
			name[x] = y
		}
		if len(name) != 50 || got.Objects != 50 {
			t.Fatalf("%s: %d objects", what, len(name))
		}
	}
	same("csv", got)
	if err := Export(&b, a, "oracleGeneral"); err != nil {
		t.Fatal(err)
	}
	raw := slices.Clone(b.Bytes())
	if len(raw) != 24*a.Pick.Len() {
		t.Fatalf("%d bytes", len(raw))
	}
	same("oracleGeneral", must[*Trace](t)(Import(&b, "x", "oracleGeneral", 0)))
	for i := range a.Pick.Len() { // next_access_vtime, by brute force
		want := int64(-1)
		if k := slices.Index(a.Pick.Object[i+1:], a.Pick.Object[i]); k >= 0 {
			want = int64(i + 1 + k)
		}
		if got := int64(binary.LittleEndian.Uint64(raw[24*i+16:])); got != want {
			t.Fatalf("request %d: next is %d, want %d", i, got, want)
		}
	}
	for _, bad := range []struct{ format, raw, want string }{
		{"csv", "", "the file is empty"},
		{"csv", "time,object\n", "the trace is empty"},
		{"csv", "time,objct\n", `x:1: unknown column "objct"`},
		{"csv", "time,size\n", "x:1: there is no column of objects"},
		{"csv", "object,object\n", "is there twice"},
		{"csv", "object,size\n1,5\n2,-1\n", `x:3: size "-1"`},
		{"csv", "object,epoch\n1,a\n", `x:2: epoch "a"`},
		{"csv", "object,time\n1,NaN\n", `x:2: time "NaN"`},
		{"csv", "object,size\n1\n", "wrong number of fields"},
		{"oracleGeneral", "", "at byte 0: the trace is empty"},
		{"oracleGeneral", strings.Repeat("\x00", 30), "at byte 30: a record is cut off"},
		{"oracleGeneral", strings.Repeat("\x80", 24), "at byte 0: the next request is number"},
		{"json", "", "unknown format"},
	} {
		if _, err := Import(strings.NewReader(bad.raw), "x", bad.format, 0); !errs.Is(err, errs.Invalid) ||
			!strings.Contains(err.Error(), bad.want) || errs.From(err).Hint == "" {
			t.Errorf("%s %q: %v", bad.format, bad.raw, err)
		}
	}
}

// epochsOf is what each job took in each of its epochs.
func epochsOf(t *Trace) [][][]uint32 {
	out := make([][][]uint32, len(t.Jobs))
	for i, j := range t.Pick.Job {
		k := j & JobMask
		if j&Begins != 0 {
			out[k] = append(out[k], nil)
		}
		e := len(out[k]) - 1
		out[k][e] = append(out[k][e], t.Pick.Object[i])
	}
	return out
}
