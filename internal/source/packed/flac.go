package packed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/mewkiz/flac"

	"larder/internal/record"
)

// flacInfo is where the first block of a .flac says its type and length.
const flacInfo = "fLaC\x00\x00\x00\x22"

// flacSound reads a .flac file: float32 of [channels, frames] from -1 to 1, and the sample rate, as wave does. For the
// rate alone it reads the head of the file.
func flacSound(b []byte, rateOnly bool) (samples, rate record.Content, err error) {
	defer func() { // the library has bounds of its own; what it does not foresee is damage, too
		if r := recover(); r != nil {
			err = fmt.Errorf("it is no FLAC that can be decoded: %v", r)
		}
	}()
	if len(b) < len(flacInfo) || string(b[:4]) != flacInfo[:4] || b[4]&0x7f != 0 || string(b[5:8]) != flacInfo[5:] {
		return samples, rate, errors.New("it is no FLAC file; FLAC in Ogg, and files with an ID3 tag before it, are not read")
	}
	s, err := flac.New(bytes.NewReader(b))
	if err != nil {
		return samples, rate, fmt.Errorf("its head: %w", err)
	}
	channels, bits := int(s.Info.NChannels), int(s.Info.BitsPerSample)
	if bits > 24 || channels < 1 || s.Info.SampleRate == 0 {
		return samples, rate, fmt.Errorf("%d channels of %d bits at %d Hz; larder reads FLAC of 4 to 24 bits", channels, bits,
			s.Info.SampleRate)
	}
	rate.Data = binary.LittleEndian.AppendUint64(nil, uint64(s.Info.SampleRate))
	if err := checkSound(s.Info.NSamples, channels); err != nil || rateOnly {
		return samples, rate, err
	}
	each, n, err := flacFrames(s)
	if err != nil {
		return samples, rate, err
	}
	data := make([]byte, 0, 4*channels*n)
	for _, c := range each {
		data = append(data, c...)
	}
	return record.Content{Dims: []int64{int64(channels), int64(n)}, Data: data}, rate, nil
}

// flacFrames decodes all frames: the float32 of each channel, and how many there are in one.
func flacFrames(s *flac.Stream) (each [][]byte, n int, err error) {
	channels := int(s.Info.NChannels)
	most := maxSound / 4 / channels
	each = make([][]byte, channels)
	scale := 1 / float32(int64(1)<<(s.Info.BitsPerSample-1)) // a power of two: exact
	for {
		f, err := s.ParseNext()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, 0, fmt.Errorf("behind sample %d: %w", n, err)
		}
		if len(f.Subframes) != channels || f.BitsPerSample != s.Info.BitsPerSample {
			return nil, 0, fmt.Errorf("behind sample %d: %d channels of %d bits, and its head says %d of %d", n,
				len(f.Subframes), f.BitsPerSample, channels, s.Info.BitsPerSample)
		}
		if n += int(f.BlockSize); n > most {
			return nil, 0, fmt.Errorf("it has more than %d samples", most)
		}
		for c, sub := range f.Subframes {
			if len(sub.Samples) != int(f.BlockSize) {
				return nil, 0, fmt.Errorf("behind sample %d: a frame of %d samples has %d", n, f.BlockSize, len(sub.Samples))
			}
			for _, x := range sub.Samples {
				each[c] = binary.LittleEndian.AppendUint32(each[c], math.Float32bits(float32(x)*scale))
			}
		}
	}
	if total := s.Info.NSamples; total != 0 && total != uint64(n) {
		return nil, 0, fmt.Errorf("it has %d samples, and its head says %d: it is cut", n, total)
	}
	return each, n, nil
}
