package packed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"larder/internal/record"
)

// Codes of the samples in a .wav file.
const (
	wavePCM        = 1
	waveFloat      = 3
	waveExtensible = 0xfffe
)

// wave reads a .wav file: float32 of [channels, frames] from -1 to 1, and the sample rate. For the rate alone it
// decodes no samples, and checks the rest.
func wave(b []byte, rateOnly bool) (samples, rate record.Content, err error) {
	le := binary.LittleEndian
	if len(b) < 12 || string(b[:4]) != "RIFF" || string(b[8:12]) != "WAVE" {
		return samples, rate, errors.New("it is no RIFF/WAVE file")
	}
	var code, channels, bits int
	var hertz uint32
	for rest := b[12:]; len(rest) >= 8; {
		id, n := string(rest[:4]), int64(le.Uint32(rest[4:]))
		rest = rest[8:]
		if n > int64(len(rest)) {
			if id != "data" || n < math.MaxUint32-1 { // a stream of unknown length
				return samples, rate, fmt.Errorf("its part %q says %d bytes, and %d are left: it is cut", id, n, len(rest))
			}
			n = int64(len(rest))
		}
		part := rest[:n]
		switch id {
		case "fmt ":
			if n < 16 {
				return samples, rate, fmt.Errorf("its format has %d bytes", n)
			}
			code, channels, bits = int(le.Uint16(part)), int(le.Uint16(part[2:])), int(le.Uint16(part[14:]))
			hertz = le.Uint32(part[4:])
			if code == waveExtensible && n >= 26 {
				code = int(le.Uint16(part[24:]))
			}
		case "data":
			rate.Data = le.AppendUint64(nil, uint64(hertz))
			frames, err := waveFrames(part, code, channels, bits)
			if err != nil || rateOnly {
				return samples, rate, err
			}
			samples.Dims = []int64{int64(channels), int64(frames)}
			samples.Data = waveData(part, waveSample(code, bits), bits/8, frames, channels)
			return samples, rate, nil
		}
		rest = rest[min(n+n&1, int64(len(rest))):]
	}
	return samples, rate, errors.New("it has no samples")
}

// waveFrames is how many samples each channel has.
func waveFrames(b []byte, code, channels, bits int) (int, error) {
	if channels < 1 || channels > 1024 || waveSample(code, bits) == nil {
		return 0, fmt.Errorf("%d channels of %d bits in the format %d; larder reads PCM of 8 to 32 bits and floats",
			channels, bits, code)
	}
	frames := len(b) / (bits / 8) / channels
	return frames, checkSound(uint64(frames), channels)
}

// waveData turns interleaved samples of size bytes into float32, one channel behind the other.
func waveData(b []byte, one func([]byte) float32, size, frames, channels int) []byte {
	out := make([]byte, 4*frames*channels)
	for i := range frames {
		for c := range channels {
			v := one(b[(i*channels+c)*size:])
			binary.LittleEndian.PutUint32(out[4*(c*frames+i):], math.Float32bits(v))
		}
	}
	return out
}

// waveSample reads one sample; nil = the format is not known. Whole numbers are divided by the largest one, as
// torchaudio and soundfile do.
func waveSample(code, bits int) func([]byte) float32 {
	le := binary.LittleEndian
	switch {
	case code == wavePCM && bits == 8:
		return func(b []byte) float32 { return float32(int(b[0])-128) / (1 << 7) }
	case code == wavePCM && bits == 16:
		return func(b []byte) float32 { return float32(int16(le.Uint16(b))) / (1 << 15) }
	case code == wavePCM && bits == 24:
		return func(b []byte) float32 {
			return float32(int32(uint32(b[0])<<8|uint32(b[1])<<16|uint32(b[2])<<24)>>8) / (1 << 23)
		}
	case code == wavePCM && bits == 32:
		return func(b []byte) float32 { return float32(float64(int32(le.Uint32(b))) / (1 << 31)) }
	case code == waveFloat && bits == 32:
		return func(b []byte) float32 { return math.Float32frombits(le.Uint32(b)) }
	case code == waveFloat && bits == 64:
		return func(b []byte) float32 { return float32(math.Float64frombits(le.Uint64(b))) }
	}
	return nil
}
