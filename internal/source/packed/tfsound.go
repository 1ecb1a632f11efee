package packed

import (
	"fmt"
	"slices"
	"strings"

	"larder/internal/record"
)

// isSound reports whether a feature of byte strings is sound: ?audio= names it, or all records have it and begin so.
func (s *tfSeen) isSound(a Address, name string) bool {
	k := s.keys[name]
	return a.wants("audio", name) || k.sounds == s.records && !a.wants("raw", name)
}

// checkArgs checks the names of ?audio=, ?text= and ?raw=.
func (s *tfSeen) checkArgs(a Address) error {
	for _, arg := range []string{"audio", "raw", "text"} {
		for _, name := range a.named(arg) {
			k, there := s.keys[name]
			if there && k.kind == bytesFeature && k.high <= 1 {
				continue
			}
			if there && k.kind == bytesFeature {
				return fmt.Errorf("?%s= names %q, which has several byte strings in a record: no field can", arg, name)
			}
			return noBytes(arg, name, there, slices.Sorted(slices.Values(s.order)))
		}
	}
	return nil
}

// rates adds the rate behind each sound, unless there is a feature of that name.
func (s *tfSeen) rates(fields []record.Field) []record.Field {
	var out []record.Field
	for i := range fields {
		out = append(out, fields[i])
		if _, rate := soundFields(fields[i].Name); isSamples(&fields[i]) && s.keys[rate.Name] == nil {
			out = append(out, rate)
		}
	}
	return out
}

// tfSound is a feature of sound.
type tfSound struct {
	name string
	soundInto
}

// tfSounds are the sounds in records of a schema, and the fields that are none. A number NAME_rate may be the rate of a
// sound that is no field: an example says whether it has a feature of that name.
func tfSounds(s *record.Schema) (plain []int, sounds []tfSound) {
	for i := range s.Fields {
		f := &s.Fields[i]
		name, is := f.Name, isSamples(f)
		if of, ok := strings.CutSuffix(f.Name, rateName("")); ok && isRate(f) {
			name, is = of, true
		}
		to, ok := soundOf(s, name)
		switch {
		case !is || !ok:
			plain = append(plain, i)
		case !slices.ContainsFunc(sounds, func(x tfSound) bool { return x.name == name }):
			sounds = append(sounds, tfSound{name, to})
		}
	}
	return plain, sounds
}

// put sets the fields of a sound.
func (t *tfSound) put(values []record.Content, e *example, stored *record.Schema, hear hearing) (err error) {
	to, f := t.soundInto, e.find(t.name)
	if to.rate >= 0 && (f == nil && to.samples < 0 || e.find(rateName(t.name)) != nil) {
		if values[to.rate], err = e.content(&stored.Fields[to.rate]); err != nil {
			return fmt.Errorf("feature %.80q %w", rateName(t.name), err)
		}
		to.rate = -1
	}
	switch {
	case to == soundInto{-1, -1}:
		return nil
	case f == nil || f.kind != bytesFeature || f.count != 1:
		return fmt.Errorf("feature %.80q is not one byte string, and its field is a sound", t.name)
	}
	if err := to.put(values, f.data, hear); err != nil {
		return fmt.Errorf("feature %.80q %w; ?raw= gives its bytes as they are", t.name, err)
	}
	return nil
}
