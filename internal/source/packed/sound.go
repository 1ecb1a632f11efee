package packed

import (
	"bytes"
	"fmt"
	"slices"

	"larder/internal/record"
)

// A column of bytes holds files of sound where Hugging Face's feature Audio says so and the first value is one that is
// read, or where ?audio= names it. Bytes that only look like sound stay bytes.

// sound is what a field has of a file of sound; 0 = it is none.
type sound uint8

const (
	soundSamples sound = iota + 1 // float32 of [channels, frames]
	soundRate                     // int64, Hz
)

// isSoundFile reports whether bytes begin as a .wav or a .flac does.
func isSoundFile(b []byte) bool {
	return bytes.HasPrefix(b, []byte("fLaC")) || len(b) >= 12 && string(b[:4]) == "RIFF" && string(b[8:12]) == "WAVE"
}

// hasSound reports whether a schema has a column as sound.
func hasSound(s *record.Schema, name string) bool {
	return slices.ContainsFunc(s.Fields, func(f record.Field) bool {
		return f.Name == name && f.Kind == record.Array && f.DType == record.Float32 ||
			f.Name == rateName(name) && f.Kind == record.Scalar && f.DType == record.Int64
	})
}

// sounds adds the fields of a column of sound, as a tar has them; false = it is none.
func (b *columnBuilder) sounds(c *arrowColumn, name string) (bool, error) {
	is := b.a.wants("audio", name)
	if feature, ok := b.features[name]; !is && ok && feature.Type == "Audio" && !b.a.wants("raw", name) {
		var err error
		if is, err = b.isSound(c); err != nil {
			return false, err
		}
	}
	if !is {
		return false, nil
	}
	samples, rate := *c, *c
	samples.field, samples.sound = looseArray(name, record.Float32, 2), soundSamples
	rate.field, rate.sound = scalarField(rateName(name), record.Int64), soundRate
	b.out = append(b.out, samples, rate)
	return true, nil
}

// heard decodes a file of sound. Errors follow the name of the column.
func (c *arrowColumn) heard(b []byte) (record.Content, error) {
	read := wave
	if bytes.HasPrefix(b, []byte("fLaC")) {
		read = flacSound
	}
	samples, rate, err := read(b)
	switch {
	case err != nil:
		return record.Content{}, fmt.Errorf("is no sound that is read (wav, flac): %w", err)
	case c.sound == soundRate:
		return rate, nil
	}
	return samples, nil
}
