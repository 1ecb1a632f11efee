package record

import "fmt"

// stackVersion is the version of the form of a stack.
const stackVersion = version + 1

// Stack is several samples of one form in one block: a record, but for its version, whose fields have one more
// dimension, the first one, which counts the samples. The values of a field lie one sample behind the other. No field
// is bytes or text.
//
// The block is not trusted and may change at any time: OpenStack copies its header before it looks at it, and whatever
// is read of the values later is to be copied before it is looked at.
type Stack struct {
	src   []byte
	parts []part
	frame []byte // the header of the record of one sample, up to its first value
	size  int64  // of that record
	bools bool
}

// part is one field of a stack.
type part struct {
	value    Value // of any sample, without its data
	at, size int64 // of the first sample's values in the block; of each sample's
	to       int64 // where they go in a record
}

// OpenStack checks the structure of a stack of n samples, n at least 1, as Open does.
func OpenStack(blob []byte, n int) (*Stack, error) {
	const entry = fieldBytes + 8*(MaxDims+1)
	head := append([]byte(nil), blob[:min(len(blob), headBytes)]...)
	if len(head) == headBytes {
		most := headBytes + entry*min(int(le.Uint16(head[6:])), MaxFields)
		head = append(head, blob[headBytes:max(headBytes, min(len(blob), most))]...)
	}
	if _, err := openHead(head, uint64(len(blob)), stackVersion); err != nil {
		return nil, err
	}
	st := &Stack{src: blob, parts: make([]part, le.Uint16(head[6:]))}
	end := int64(headBytes)
	for i, e := 0, head[headBytes:]; i < len(st.parts); i++ {
		dims := e[fieldBytes : fieldBytes+8*int(e[2])]
		if m := le.Uint64(dims); m != uint64(n) {
			return nil, fmt.Errorf("field %d: values of %d samples, and there are %d", i, m, n)
		}
		p := &st.parts[i]
		p.value = Value{Kind: Kind(e[0]), DType: DType(e[1]), dims: dims[8:]}
		p.at, p.size = int64(le.Uint64(e[8:])), int64(le.Uint64(e[16:]))/int64(n)
		st.bools = st.bools || p.value.DType == Bool
		end += fieldBytes + int64(len(p.value.dims))
		e = e[fieldBytes+len(dims):]
	}
	st.layOut(end)
	return st, nil
}

// layOut makes the header of the record of one sample, whose entries end at end.
func (st *Stack) layOut(end int64) {
	st.size = end
	for i := range st.parts {
		p := &st.parts[i]
		p.to = align(st.size)
		st.size = p.to + p.size
	}
	st.size = align(st.size)
	frame := make([]byte, 0, align(end))
	frame = le.AppendUint32(frame, magic)
	frame = le.AppendUint16(frame, version)
	frame = le.AppendUint16(frame, uint16(len(st.parts)))
	frame = le.AppendUint64(frame, uint64(st.size))
	frame = le.AppendUint64(frame, 0)
	for i := range st.parts {
		p := &st.parts[i]
		frame = append(frame, byte(p.value.Kind), byte(p.value.DType), byte(p.value.NDim()), 0, 0, 0, 0, 0)
		frame = le.AppendUint64(frame, uint64(p.to))
		frame = le.AppendUint64(frame, uint64(p.size))
		frame = append(frame, p.value.dims...)
	}
	st.frame = frame
}

// Size is the bytes of the record of one sample.
func (st *Stack) Size() int64 { return st.size }

// Len counts the fields.
func (st *Stack) Len() int { return len(st.parts) }

// Bools reports whether a field has bools, of which not every byte is one.
func (st *Stack) Bools() bool { return st.bools }

// All iterates over the fields of a sample in order. Their data is that of the block.
func (st *Stack) All(sample int) func(yield func(int, Value) bool) {
	return func(yield func(int, Value) bool) {
		for i := range st.parts {
			p := &st.parts[i]
			v, at := p.value, p.at+int64(sample)*p.size
			v.Data = st.src[at : at+p.size : at+p.size]
			if !yield(i, v) {
				return
			}
		}
	}
}

// Fits checks kind, dtype and shape of all fields, as [Field.Fits] does.
func (st *Stack) Fits(s *Schema) error {
	if len(st.parts) != len(s.Fields) {
		return fmt.Errorf("%d fields, the schema says %d", len(st.parts), len(s.Fields))
	}
	for i := range st.parts {
		if err := s.Fields[i].Fits(&st.parts[i].value); err != nil {
			return err
		}
	}
	return nil
}

// Record writes the record of a sample, without a checksum, to dst, which has Size bytes.
func (st *Stack) Record(dst []byte, sample int) {
	at := int64(copy(dst, st.frame))
	for i, v := range st.All(sample) {
		to := st.parts[i].to
		clear(dst[at:to])
		at = to + int64(copy(dst[to:], v.Data))
	}
	clear(dst[at:st.size])
}

// AppendStack appends a stack of records of one form, for workers in Go and for tests.
func AppendStack(dst []byte, records []View) ([]byte, error) {
	form := records[0]
	from, n := len(dst), len(records)
	dst = le.AppendUint32(dst, magic)
	dst = le.AppendUint16(dst, stackVersion)
	dst = le.AppendUint16(dst, uint16(form.Len()))
	dst = append(dst, make([]byte, 16)...)
	at := int64(headBytes)
	for _, v := range form.All {
		at += fieldBytes + 8 + int64(len(v.dims))
	}
	for _, v := range form.All {
		at = align(at)
		dst = append(dst, byte(v.Kind), byte(v.DType), byte(v.NDim()+1), 0, 0, 0, 0, 0)
		dst = le.AppendUint64(dst, uint64(at))
		dst = le.AppendUint64(dst, uint64(n*len(v.Data)))
		dst = append(le.AppendUint64(dst, uint64(n)), v.dims...)
		at += int64(n * len(v.Data))
	}
	for i := range form.Len() {
		dst = append(dst, make([]byte, from+int(align(int64(len(dst)-from)))-len(dst))...)
		for _, r := range records {
			var err error
			if dst, err = appendField(dst, form, r, i); err != nil {
				return dst[:from], err
			}
		}
	}
	dst = append(dst, make([]byte, from+int(align(int64(len(dst)-from)))-len(dst))...)
	le.PutUint64(dst[from+8:], uint64(len(dst)-from))
	return dst, nil
}

// appendField appends the values of one field of a record, which must be of the form of another one.
func appendField(dst []byte, form, r View, field int) ([]byte, error) {
	var want Value
	for i, v := range form.All {
		if i == field {
			want = v
		}
	}
	for i, v := range r.All {
		if i != field {
			continue
		}
		if v.Kind != want.Kind || v.DType != want.DType || string(v.dims) != string(want.dims) {
			return dst, fmt.Errorf("field %d: records of a stack have one form", i)
		}
		return append(dst, v.Data...), nil
	}
	return dst, fmt.Errorf("field %d: records of a stack have the same fields", field)
}
