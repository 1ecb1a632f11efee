package packed

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/mewkiz/flac"
	"github.com/mewkiz/flac/frame"
	flacmeta "github.com/mewkiz/flac/meta"

	"larder/internal/xrand"
)

// flacOf writes frames of up to 1000 samples. The tests against libsndfile's files are python/tests/record_files.py.
func flacOf(t testing.TB, bits int, samples [][]int32) []byte {
	t.Helper()
	var out bytes.Buffer
	n := len(samples[0])
	info := &flacmeta.StreamInfo{BlockSizeMin: 16, BlockSizeMax: 1000, SampleRate: 16_000, NChannels: uint8(len(samples)),
		BitsPerSample: uint8(bits), NSamples: uint64(n)}
	e, err := flac.NewEncoder(&out, info)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < n; at += 1000 {
		size := min(1000, n-at)
		f := &frame.Frame{Header: frame.Header{BlockSize: uint16(size), SampleRate: 16_000, BitsPerSample: uint8(bits),
			Channels: frame.Channels(len(samples) - 1), Num: uint64(at / 1000)}}
		for _, c := range samples {
			f.Subframes = append(f.Subframes, &frame.Subframe{SubHeader: frame.SubHeader{Pred: frame.PredVerbatim},
				Samples: slices.Clone(c[at : at+size]), NSamples: size})
		}
		if err := e.WriteFrame(f); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestFLAC(t *testing.T) {
	r := xrand.New(5)
	for _, bits := range []int{8, 16, 24} {
		for _, channels := range []int{1, 2, 3} {
			samples := make([][]int32, channels)
			for c := range samples {
				for range 2345 {
					samples[c] = append(samples[c], int32(r.Uint64()<<(64-bits)>>32)>>(32-bits))
				}
			}
			got, rate, err := flacSound(flacOf(t, bits, samples), false)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.Dims, []int64{int64(channels), 2345}) || leUint(rate.Data) != 16_000 {
				t.Errorf("%d bits: %v at %d Hz", bits, got.Dims, leUint(rate.Data))
			}
			for c := range samples {
				for i, x := range samples[c] {
					v := math.Float32frombits(binary.LittleEndian.Uint32(got.Data[4*(c*2345+i):]))
					if want := float32(float64(x) / float64(int64(1)<<(bits-1))); v != want {
						t.Fatalf("%d bits, channel %d, sample %d: %v, not %v", bits, c, i, v, want)
					}
				}
			}
		}
	}
}

// TestDamagedFLAC: a file cut or flipped at 200 places each is an error, or sound of the size that it has; and a head
// that promises hours takes no memory for them.
func TestDamagedFLAC(t *testing.T) {
	r := xrand.New(6)
	samples := [][]int32{nil, nil}
	for c := range samples {
		for range 3000 {
			samples[c] = append(samples[c], int32(r.Uint64()%1000))
		}
	}
	whole := flacOf(t, 16, samples)
	errors := 0
	var before, after runtime.MemStats
	for i := range 400 {
		b := bytes.Clone(whole)
		if i < 200 {
			b = b[:i*len(b)/200]
		} else {
			b[r.Uint64()%uint64(len(b))] ^= 1 << (r.Uint64() % 8)
		}
		runtime.ReadMemStats(&before)
		got, _, err := flacSound(b, false)
		runtime.ReadMemStats(&after)
		if err != nil {
			errors++
		} else if fmt.Sprint(got.Dims) != "[2 3000]" {
			t.Errorf("damage %d gave %v", i, got.Dims)
		}
		if i < 200 && err == nil {
			t.Errorf("cut to %d of %d bytes", len(b), len(whole))
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
			t.Errorf("damage %d took %d bytes", i, n)
		}
	}
	if errors < 390 { // a frame has a checksum
		t.Errorf("%d of 400 were found", errors)
	}
	b := bytes.Clone(whole)
	b[21] |= 0x0f // the length in the head
	for _, rateOnly := range []bool{false, true} {
		if _, _, err := flacSound(b, rateOnly); err == nil || !strings.Contains(err.Error(), "are the most") {
			t.Errorf("%v", err)
		}
	}
}

func FuzzFLAC(f *testing.F) {
	f.Add(flacOf(f, 16, [][]int32{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, rate, err := flacSound(b, false)
		if err == nil && int64(len(got.Data)) != 4*got.Dims[0]*got.Dims[1] {
			t.Fatalf("%v of %d bytes", got.Dims, len(got.Data))
		}
		none, alone, erra := flacSound(b, true) // what decodes has a head
		if err == nil && (erra != nil || none.Data != nil || leUint(alone.Data) != leUint(rate.Data)) {
			t.Fatalf("its rate alone: %v, %v", alone, erra)
		}
	})
}
