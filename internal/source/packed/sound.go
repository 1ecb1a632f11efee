package packed

import (
	"bytes"
	"fmt"
	"slices"

	"larder/internal/record"
)

// A file of sound gives a record two fields: its samples, and its rate in NAME_rate, unless the file of the dataset has
// a field of that name itself. wds finds sound by its extension. A column of Parquet or Arrow holds it where Hugging
// Face's feature Audio says so and the first value is one that is read; LMDB and TFRecord where values begin as sound
// does, as with images there. ?audio= says it, too.

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

// rateName is the field of the sample rate of a sound.
func rateName(name string) string { return name + "_rate" }

// soundFields are the fields of a sound, as a tar has them.
func soundFields(name string) (samples, rate record.Field) {
	return looseArray(name, record.Float32, 2), scalarField(rateName(name), record.Int64)
}

// WasBytes reports whether an earlier larder may have found bytes where this one finds sound, in files of a scheme.
func WasBytes(scheme string, s *record.Schema) bool {
	return slices.Contains([]string{"wds", "parquet", "hf", "lmdb", "tfrecord"}, scheme) &&
		slices.ContainsFunc(s.Fields, func(f record.Field) bool { return f.Kind == record.Bytes })
}

// isSamples reports whether a field may hold the samples of a sound, isRate its rate.
func isSamples(f *record.Field) bool {
	return f.Kind == record.Array && f.DType == record.Float32 &&
		slices.Equal(f.Shape, []int64{record.Ragged, record.Ragged})
}

func isRate(f *record.Field) bool { return f.Kind == record.Scalar && f.DType == record.Int64 }

// soundOf is where a sound goes in a record of a schema; false = nothing of it does.
func soundOf(s *record.Schema, name string) (soundInto, bool) {
	to := soundInto{fieldNamed(s.Fields, name), fieldNamed(s.Fields, rateName(name))}
	if to.samples >= 0 && !isSamples(&s.Fields[to.samples]) {
		return soundInto{-1, -1}, false
	}
	if to.rate >= 0 && !isRate(&s.Fields[to.rate]) {
		to.rate = -1
	}
	return to, to.samples >= 0 || to.rate >= 0
}

// audio are the names of ?audio=.
func (a Address) audio() []string { return a.named("audio") }

// maxSound bounds what one sound decodes to, bytes: silence of a few bytes of FLAC may be hours long.
const maxSound = 512 << 20

// checkSound refuses a sound of too many samples in each channel.
func checkSound(frames uint64, channels int) error {
	if most := uint64(maxSound / 4 / channels); frames > most {
		return fmt.Errorf("it says that it has %d samples, and %d are the most", frames, most)
	}
	return nil
}

// hearing decodes a file of sound; for the rate alone it decodes no samples.
type hearing func(b []byte, rateOnly bool) (samples, rate record.Content, err error)

// hear decodes a .wav or a .flac. Errors follow what the file is called.
func hear(b []byte, rateOnly bool) (samples, rate record.Content, err error) {
	read := wave
	if bytes.HasPrefix(b, []byte("fLaC")) {
		read = flacSound
	}
	if samples, rate, err = read(b, rateOnly); err != nil {
		err = fmt.Errorf("is no sound that is read (wav, flac): %w", err)
	}
	return samples, rate, err
}

// soundInto is where a file of sound goes in a record, by the numbers of fields; -1 = that is not asked for.
type soundInto struct{ samples, rate int }

// put decodes a file of sound, once for both fields.
func (to soundInto) put(values []record.Content, b []byte, hear hearing) error {
	samples, rate, err := hear(b, to.samples < 0)
	if err != nil {
		return err
	}
	if to.samples >= 0 {
		values[to.samples] = samples
	}
	if to.rate >= 0 {
		values[to.rate] = rate
	}
	return nil
}

// withRates adds the rates of sounds behind chosen fields of all, where they are not chosen by themselves.
func withRates(chosen, all []record.Field) []record.Field {
	out := slices.Clone(chosen)
	for i := range chosen {
		k := fieldNamed(all, rateName(chosen[i].Name))
		if isSamples(&chosen[i]) && k >= 0 && fieldNamed(out, all[k].Name) < 0 {
			out = append(out, all[k])
		}
	}
	return out
}

// sounds adds the fields of a column of sound; false = it is none.
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
	samples.field, rate.field = soundFields(name)
	samples.sound, rate.sound = soundSamples, soundRate
	b.out = append(b.out, samples, rate)
	return true, nil
}

// checkArgs refuses a name of ?audio= that is no column of bytes, and one of ?raw= that is none at all. It drops the
// rates of sounds of which the table has a column.
func (b *columnBuilder) checkArgs() error {
	has := func(name string, sounds bool) bool {
		return slices.ContainsFunc(b.out, func(c arrowColumn) bool {
			return c.field.Name == name && (!sounds || c.sound == soundSamples)
		})
	}
	for _, name := range b.a.named("raw") { // of any type: it is bytes already, or has no field
		if !has(name, false) && !slices.Contains(b.names, name) {
			return noBytes("raw", name, false, namesOf(schemaOf(b.out).Fields))
		}
	}
	for _, name := range b.a.audio() {
		if !has(name, true) {
			return noBytes("audio", name, has(name, false) || slices.Contains(b.names, name), namesOf(schemaOf(b.out).Fields))
		}
	}
	all := slices.Clone(b.out)
	b.out = slices.DeleteFunc(b.out, func(c arrowColumn) bool {
		return c.sound == soundRate && slices.ContainsFunc(all, func(d arrowColumn) bool {
			return d.sound != soundRate && d.field.Name == c.field.Name
		})
	})
	return nil
}

// noBytes says that a name of an argument is there, but not as bytes, or is not there.
func noBytes(arg, name string, there bool, names []string) error {
	if there {
		what := map[string]string{"audio": "sound lies in fields of bytes", "text": "text lies in features of bytes",
			"raw": "other features are as they are stored"}[arg]
		return fmt.Errorf("?%s= names %q, which does not hold bytes; %s", arg, name, what)
	}
	return fmt.Errorf("?%s= names %q, and there are %s", arg, name, quoted(names))
}

// tableSource is a column of a table, and the fields that it gives: one, or those of its sound.
type tableSource struct {
	column *arrowColumn // of the first field
	field  int
	sound  soundInto // of columns of sound
}

// sourcesOf are the columns of which fields are made, each once.
func sourcesOf(columns []arrowColumn) []tableSource {
	var out []tableSource
	for i := range columns {
		c := &columns[i]
		k := slices.IndexFunc(out, func(s tableSource) bool { return slices.Equal(s.column.path, c.path) })
		if k < 0 || c.sound == 0 {
			k = len(out)
			out = append(out, tableSource{c, i, soundInto{-1, -1}})
		}
		switch c.sound {
		case soundSamples:
			out[k].sound.samples = i
		case soundRate:
			out[k].sound.rate = i
		}
	}
	return out
}

// put sets the values of a source's fields. Errors follow the name of the column.
func (s *tableSource) put(values []record.Content, columns []arrowColumn, v record.Content, null bool, a Address,
	hear hearing,
) (err error) {
	switch {
	case s.column.sound == 0 && !null:
		values[s.field] = v
	case s.column.sound == 0:
		values[s.field], err = s.column.null(a)
	case !null:
		err = s.sound.put(values, v.Data, hear)
	default:
		for _, i := range []int{s.sound.samples, s.sound.rate} {
			if i >= 0 && err == nil {
				values[i], err = columns[i].null(a)
			}
		}
	}
	return err
}
