package arrow

import "fmt"

// Lists of text are JSON: no array holds texts of several lengths, and lines of JSON give theirs so, too.

// OfTexts reports whether a column holds lists of text.
func (f *Field) OfTexts() bool {
	if f.Kind != List && f.Kind != FixedList {
		return false
	}
	for f.Kind == List || f.Kind == FixedList {
		f = &f.Inner[0]
	}
	return f.Kind == Text
}

// AppendJSON appends a text as JSON has it: what is not ASCII stays.
func AppendJSON(dst, text []byte) []byte {
	dst = append(dst, '"')
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c >= 0x20:
			dst = append(dst, c)
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\r':
			dst = append(dst, `\r`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		case c == '\b':
			dst = append(dst, `\b`...)
		case c == '\f':
			dst = append(dst, `\f`...)
		default:
			dst = fmt.Appendf(dst, `\u%04x`, c)
		}
	}
	return append(dst, '"')
}

const (
	jsonNull = "null"
	// perText is about what a text has in memory beside its bytes: two offsets, whether it is null, and its slice.
	perText = 48
)

// jsonSize is how many bytes AppendJSON appends.
func jsonSize(text []byte) int64 {
	n := int64(len(text)) + 2
	for _, c := range text {
		switch {
		case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t' || c == '\b' || c == '\f':
			n++
		case c < 0x20:
			n += 5
		}
	}
	return n
}

// room counts n parts of a value that is being made, of so many bytes each, before there is memory for them.
func (r *reader) room(c *Field, n, each int64) error {
	if n > (r.most-r.used)/each {
		return fmt.Errorf("column %q: a value that takes more than %d bytes", c.Name, r.most)
	}
	r.used += n * each
	return nil
}

// json is a text as JSON.
func (r *reader) json(c *Field, text []byte) ([]byte, error) {
	n := jsonSize(text)
	if err := r.room(c, n, 1); err != nil {
		return nil, err
	}
	return AppendJSON(make([]byte, 0, n), text), nil
}

// texts are the rows [from, to) of text, or of lists of it, as JSON.
func (r *reader) texts(c *Field, from, to int64) ([][]byte, error) {
	if to <= from {
		return nil, nil
	}
	if err := r.room(c, to-from, perText); err != nil {
		return nil, err
	}
	var valid []byte
	if r.nodes[c.node].nulls > 0 && r.buffers[c.buffer].size > 0 {
		var err error
		if valid, err = r.bits(c, 0, from, to); err != nil {
			return nil, err
		}
	}
	out, err := r.present(c, from, to)
	for i := range valid {
		if valid[i] == 0 && err == nil {
			out[i] = []byte(jsonNull)
		}
	}
	return out, err
}

// present are the same rows, of which none is null.
func (r *reader) present(c *Field, from, to int64) ([][]byte, error) {
	switch {
	case c.dict != nil:
		return r.meanings(c, from, to)
	case c.Kind == FixedList && c.Width == 0:
		return nil, fmt.Errorf("column %q: its lists have no elements", c.Name)
	case c.Kind == FixedList:
		n := int64(c.Width)
		if to > maxRows/n {
			return nil, fmt.Errorf("column %q: %d lists of %d", c.Name, to, n)
		}
		inner, err := r.texts(&c.Inner[0], from*n, to*n)
		if err != nil {
			return nil, err
		}
		out := make([][]byte, to-from)
		for i := range out {
			if out[i], err = r.joined(c, inner[int64(i)*n:int64(i+1)*n]); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	all, err := r.bounds(c, from, to)
	if err != nil {
		return nil, err
	}
	first, out := all[0], make([][]byte, to-from)
	if c.Kind == List {
		inner, err := r.texts(&c.Inner[0], first, all[len(all)-1])
		if err != nil {
			return nil, err
		}
		for i := range out {
			if out[i], err = r.joined(c, inner[all[i]-first:all[i+1]-first]); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	b, err := r.part(c, 2, first, all[len(all)-1]-first)
	if err != nil {
		return nil, err
	}
	for i := range out {
		if out[i], err = r.json(c, b[all[i]-first:all[i+1]-first]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// meanings are rows of text that is dictionary-encoded.
func (r *reader) meanings(c *Field, from, to int64) ([][]byte, error) {
	b, size, err := r.numbers(&c.dict.index, from, to)
	if err != nil {
		return nil, err
	}
	var valid []byte
	if r.nodes[c.node].nulls > 0 && r.buffers[c.buffer].size > 0 {
		if valid, err = r.bits(c, 0, from, to); err != nil {
			return nil, err
		}
	}
	out := make([][]byte, to-from)
	for i := range out {
		if i < len(valid) && valid[i] == 0 { // its number means nothing
			continue
		}
		v, err := r.meaning(c, b[int64(i)*size:int64(i+1)*size])
		if err != nil {
			return nil, err
		}
		if out[i] = []byte(jsonNull); v.Null {
			continue
		}
		if out[i], err = r.json(c, v.Data); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// joined is a list of values as JSON: a copy of them all, beside which they are in memory still.
func (r *reader) joined(c *Field, values [][]byte) ([]byte, error) {
	n := int64(2)
	for _, v := range values {
		n += int64(len(v)) + 1
	}
	if err := r.room(c, n, 1); err != nil {
		return nil, err
	}
	out := append(make([]byte, 0, n), '[')
	for i, v := range values {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, v...)
	}
	return append(out, ']'), nil
}
