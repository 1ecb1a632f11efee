package resume

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/errs"
	"larder/internal/xrand"
)

func token(change ...func(*Token)) Token {
	t := Token{Job: "lr-0.1 ü", Log: "0123456789abcdef", ID: 7, Epoch: 3, Step: 120, Instance: 4,
		Order: strings.Repeat("0f", 16), Dataset: "imagefolder:/data/a", Files: "00ff00ff00ff00ff", Samples: 1000}
	for _, f := range change {
		f(&t)
	}
	return t
}

func TestTokenRoundTrip(t *testing.T) {
	for _, k := range []Token{token(), token(func(k *Token) { k.Step, k.Order = 0, "" }), token(func(k *Token) {
		k.Delivered, k.Sketch = Pack(1000, []uint32{1, 5, 999}), new(Sketch).Text()
	}), token(func(k *Token) { k.Before = 70 })} {
		got, err := Parse(k.Text())
		if err != nil {
			t.Fatal(err)
		}
		k.Version, k.Sum = 1, got.Sum
		if k.Before > 0 { // an older larder must see that the token is newer
			k.Version = 2
		}
		if !reflect.DeepEqual(*got, k) {
			t.Errorf("%+v became %+v", k, *got)
		}
		var fields map[string]any // as other languages read it, and write it again in another order and other escapes
		if err := json.Unmarshal([]byte(k.Text()), &fields); err != nil {
			t.Fatal(err)
		}
		b, _ := json.MarshalIndent(fields, "", "  ")
		if _, err := Parse(string(b)); err != nil {
			t.Errorf("written again: %v", err)
		}
	}
	if n := len(token().Text()); n > 400 {
		t.Errorf("a token has %d bytes", n)
	}
}

// Any field that is changed, added or left out is seen.
func TestTokenEdited(t *testing.T) {
	for _, before := range []uint32{0, 8} {
		edited(t, token(func(k *Token) {
			k.Delivered, k.Sketch, k.Before = Pack(1000, []uint32{1, 5}), new(Sketch).Text(), before
		}))
	}
	if _, err := Parse(strings.Replace(token().Text(), `"sum"`, `"before":3,"sum"`, 1)); !errs.Is(err, errs.Token) {
		t.Errorf("version 1 with before: %v", err)
	}
}

func edited(t *testing.T, k Token) {
	t.Helper()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(k.Text()), &fields); err != nil {
		t.Fatal(err)
	}
	tried := 0
	for name, was := range fields {
		for _, v := range []string{`"0123456789abcdee"`, `"0123456789abcdee0123456789abcdee"`, "1000000", "0", "-1", "1.5",
			`""`, "null", "[]", `"x\ny"`, "4294967296", strings.Repeat("[", 20000)} {
			if v == string(was) || v == "null" && name == "version" {
				continue
			}
			text := strings.Replace(k.Text(), `"`+name+`":`+string(was), `"`+name+`":`+v, 1)
			_, err := Parse(text)
			if err == nil || !errs.Is(err, errs.Token) && !errs.Is(err, errs.Unsupported) || errs.From(err).Hint == "" {
				t.Errorf("%s as %.40s: %v", name, v, err)
			}
			tried++
		}
	}
	if tried < 100 {
		t.Errorf("only %d edits", tried)
	}
	for _, text := range []string{"", "{}", "3", `"x"`, "null", `{"version":1}`, `{"version":"1"}`, k.Text() + "{}",
		k.Text() + " x", "\xff" + k.Text(), strings.Repeat("x", MaxToken+1), `{"version":1e400}`} {
		if _, err := Parse(text); !errs.Is(err, errs.Token) {
			t.Errorf("%.60q: %v", text, err)
		}
	}
	if _, err := Parse(`{"version": 3, "anything": {}}`); !errs.Is(err, errs.Unsupported) {
		t.Errorf("a newer version: %v", err)
	}
}

func TestSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 300).Draw(t, "n")
		var in []uint32
		for i := range n {
			if rapid.IntRange(0, 3).Draw(t, "in") == 0 {
				in = append(in, uint32(i))
			}
		}
		got, err := Unpack(Pack(n, in), n)
		if err != nil || !slices.Equal(got, in) {
			t.Fatalf("%v became %v, %v", in, got, err)
		}
		if n >= 16 {
			if got, err := Unpack(Pack(n, in), n-8); err == nil {
				t.Fatalf("a set of %d read as one of %d: %v", n, n-8, got)
			}
		}
	})
	for _, bad := range []string{"", "AA", "AA==", "!", base64.StdEncoding.EncodeToString([]byte{2, 0}),
		base64.StdEncoding.EncodeToString([]byte{1, 9, 9}), base64.StdEncoding.EncodeToString([]byte{0, 0xff})} {
		if _, err := Unpack(bad, 7); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// The set of a portable token of 1.28 million samples is at most 160 kB, whatever part of them was delivered, and a
// token of them not much more.
func TestPortableSize(t *testing.T) {
	const n = 1_280_000
	r := xrand.New(1, 1)
	order := make([]uint32, n)
	for i := range order {
		order[i] = uint32(i)
	}
	r.Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, part := range []int{0, n / 1000, n / 10, n / 4, n / 2, n * 9 / 10, n - 1, n} {
		text := Pack(n, order[:part])
		size := base64.StdEncoding.DecodedLen(len(text))
		t.Logf("%d of %d: %d bytes, %d as text", part, n, size, len(text))
		if size > 160_010 {
			t.Errorf("%d of %d delivered: %d bytes", part, n, size)
		}
		k := token(func(k *Token) { k.Samples, k.Delivered, k.Sketch = n, text, new(Sketch).Text() })
		if len(k.Text()) > 220_000 {
			t.Errorf("a token of %d bytes", len(k.Text()))
		}
		got, err := Unpack(text, n)
		want := slices.Sorted(slices.Values(order[:part]))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%d of %d: %v", part, n, err)
		}
	}
}

// Sketches of sets that differ in some files say in which, and never in others; equal sets have equal fingerprints.
func TestSketchFindsWhatDiffers(t *testing.T) {
	r := xrand.New(3, 3)
	decoded := map[int]int{}
	const trials = 400
	for trial := range trials {
		for _, d := range []int{0, 1, 5, 20, 40, 200} {
			a, b := new(Sketch), new(Sketch)
			for i := range 50 {
				e := File(fmt.Sprint("c/", trial, i), int64(r.IntN(9)), 3)
				a.Add(e)
				b.Add(e)
			}
			var onlyA, onlyB []Entry
			for i := range d {
				e := File(fmt.Sprint("d/", trial, "/", i), int64(r.IntN(1000)), int64(r.IntN(1000)))
				if i%3 == 0 {
					a.Add(e)
					onlyA = append(onlyA, e)
				} else {
					b.Add(e)
					onlyB = append(onlyB, e)
				}
			}
			if (a.Sum() == b.Sum()) != (d == 0) {
				t.Fatalf("%d differ: %s %s", d, a.Sum(), b.Sum())
			}
			back, err := ParseSketch(b.Text())
			if err != nil {
				t.Fatal(err)
			}
			here, there, ok := a.Diff(back)
			if !ok {
				continue
			}
			decoded[d]++
			same := func(x, y []Entry) bool {
				by := func(p, q Entry) int { return strings.Compare(fmt.Sprint(p), fmt.Sprint(q)) }
				slices.SortFunc(x, by)
				slices.SortFunc(y, by)
				return slices.Equal(x, y)
			}
			if !same(here, onlyA) || !same(there, onlyB) {
				t.Fatalf("%d differ, decoded %d and %d", d, len(here), len(there))
			}
		}
	}
	t.Logf("of %d: %v", trials, decoded)
	// A table of 96 cells fails on 5 differences only when all cells of two coincide: (1/32)^3 for each pair.
	for d, least := range map[int]int{0: trials, 1: trials, 5: trials - 3, 20: trials - 5, 40: trials - 20, 200: 0} {
		if decoded[d] < least {
			t.Errorf("%d differences were decoded in %d of %d trials", d, decoded[d], trials)
		}
	}
	if decoded[200] != 0 {
		t.Error("200 differences cannot be decoded")
	}
	for _, bad := range []string{"", "x", "AAAA", new(Sketch).Text() + "AAAA"} {
		if _, err := ParseSketch(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestOrders(t *testing.T) {
	o := &Orders{Job: "lr", Dataset: "imagefolder:/d", Files: "00ff00ff00ff00ff", Seed: 1<<64 - 1,
		Epochs: []EpochOrder{{0, 0, []uint32{3, 1, 2}}, {2, 5, []uint32{}}, {3, 6, []uint32{7}}}}
	var plain, packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if err := o.WriteHead(&plain, len(o.Epochs)); err != nil {
		t.Fatal(err)
	}
	for _, e := range o.Epochs {
		if err := WriteEpoch(&plain, e); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = z.Write(plain.Bytes())
	_ = z.Close()
	for _, b := range [][]byte{plain.Bytes(), packed.Bytes()} {
		got, err := ReadOrders(bytes.NewReader(b))
		if err != nil || !reflect.DeepEqual(got, o) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	lines := strings.SplitAfter(plain.String(), "\n")
	for name, text := range map[string]string{
		"empty": "", "cut": lines[0] + lines[1], "more": plain.String() + lines[3], "again": lines[0] + lines[1] + lines[1] +
			lines[1], "not": "{}\n",
		"version": strings.Replace(plain.String(), `"larder_order":1`, `"larder_order":2`,
			1), "seed": strings.Replace(plain.String(), "18446744073709551615", "x", 1),
		"negative": strings.Replace(plain.String(), "[3,1", "[-3,1", 1), "gzip": "\x1f\x8bxxxxxxxxx",
		"cut gzip": packed.String()[:packed.Len()-9],
	} {
		if _, err := ReadOrders(strings.NewReader(text)); err == nil {
			t.Errorf("%s was read", name)
		}
	}
}

func FuzzToken(f *testing.F) {
	f.Add(token().Text())
	f.Add(token(func(k *Token) { k.Delivered, k.Sketch = Pack(1000, []uint32{1, 5}), new(Sketch).Text() }).Text())
	f.Add(`{"version":2}`)
	f.Fuzz(func(t *testing.T, text string) {
		k, err := Parse(text)
		if err != nil {
			if !errs.Is(err, errs.Token) && !errs.Is(err, errs.Unsupported) {
				t.Fatalf("%v", err)
			}
			return
		}
		again, err := Parse(k.Text())
		if err != nil || !reflect.DeepEqual(k, again) {
			t.Fatalf("%+v became %+v, %v", k, again, err)
		}
		if k.Samples <= 1<<20 {
			_, _ = Unpack(k.Delivered, k.Samples)
		}
		if s, err := ParseSketch(k.Sketch); err == nil {
			_, _, _ = s.Diff(new(Sketch))
		}
	})
}

func FuzzSet(f *testing.F) {
	f.Add(Pack(100, []uint32{1, 99}), 100)
	f.Fuzz(func(t *testing.T, text string, n int) {
		if n < 0 || n > 1<<20 {
			return
		}
		got, err := Unpack(text, n)
		if err != nil {
			return
		}
		if again, err := Unpack(Pack(n, got), n); err != nil || !slices.Equal(got, again) {
			t.Fatalf("%v became %v, %v", got, again, err)
		}
	})
}

// FuzzSketch compares the sketches of two sets of files. The sets are listed in the input, three bytes a file: which of
// the two sets it is in, and what is known of it. Damage is xored into the packed sketch, two bytes a place. Inputs are
// short because the fuzzer minimizes those it keeps byte by byte: sketches as texts of 3.6 kB allowed 4 executions in
// 10 s.
func FuzzSketch(f *testing.F) {
	f.Add([]byte{1, 2, 3, 2, 4, 5, 3, 6, 7}, []byte{})
	f.Add([]byte{1, 2, 3}, []byte{9, 255})
	f.Fuzz(func(t *testing.T, files, damage []byte) {
		var sets [2]Sketch
		for ; len(files) >= 3; files = files[3:] {
			e := File(string(files[1]), int64(files[2]), 0)
			for i := range sets {
				if files[0]>>i&1 == 1 {
					sets[i].Add(e)
				}
			}
		}
		raw, err := base64.StdEncoding.DecodeString(sets[0].Text())
		if err != nil {
			t.Fatal(err)
		}
		for ; len(damage) >= 2; damage = damage[2:] {
			raw[int(damage[0])*11%len(raw)] ^= damage[1]
		}
		x, err := ParseSketch(base64.StdEncoding.EncodeToString(raw))
		if err != nil {
			t.Fatal(err)
		}
		y, err := ParseSketch(sets[1].Text())
		if err != nil || *y != sets[1] {
			t.Fatalf("a sketch is not what its text says: %v", err)
		}
		if here, there, ok := x.Diff(y); ok && len(here)+len(there) > sketchCells+1 {
			t.Fatalf("%d and %d differences", len(here), len(there))
		}
	})
}

func FuzzOrders(f *testing.F) {
	f.Add([]byte(
		"{\"larder_order\":1,\"job\":\"a\",\"dataset\":\"d\",\"files\":\"00ff00ff00ff00ff\",\"seed\":\"1\",\"epochs\":1}\n" +
			"{\"epoch\":0,\"instance\":0,\"samples\":[1]}\n"))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = ReadOrders(bytes.NewReader(b)) })
}
