package packed

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"larder/internal/record"
)

// featureKind is which list a tf.Feature has; its values are the numbers of the message's fields.
type featureKind int

const (
	noFeature featureKind = iota
	bytesFeature
	floatFeature
	intFeature
)

// String is the name of the list in words of tf.Example.
func (k featureKind) String() string { return [...]string{"nothing", "bytes", "floats", "int64s"}[k] }

func (k featureKind) dtype() record.DType {
	if k == floatFeature {
		return record.Float32
	}
	return record.Int64
}

// feature is one entry of a tf.Example. It points into the message.
type feature struct {
	key   []byte
	kind  featureKind
	count int64
	data  []byte // of bytes: the last value; of others: the message of the list
}

// example is a parsed tf.Example (tensorflow/core/example/example.proto).
type example struct{ features []feature }

// each calls f for the fields of a message.
func eachField(b []byte, f func(num protowire.Number, typ protowire.Type, v []byte, n uint64) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errNoExample
		}
		b = b[n:]
		var v []byte
		var x uint64
		switch typ {
		case protowire.BytesType:
			v, n = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			x, n = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type:
			v, n = b[:min(4, len(b))], 4
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 || n > len(b) {
			return errNoExample
		}
		b = b[n:]
		if err := f(num, typ, v, x); err != nil {
			return err
		}
	}
	return nil
}

var errNoExample = errors.New("its bytes are no tf.Example; larder reads no other messages in TFRecords")

// parse finds the features of a tf.Example.
func (e *example) parse(b []byte) error {
	e.features = e.features[:0]
	return eachField(b, func(num protowire.Number, typ protowire.Type, v []byte, _ uint64) error {
		if num == 2 {
			return errors.New("it is a tf.SequenceExample, which larder does not read; write its lists as features of a " +
				"tf.Example")
		}
		if num != 1 || typ != protowire.BytesType {
			return errNoExample
		}
		return eachField(v, func(num protowire.Number, typ protowire.Type, v []byte, _ uint64) error {
			if num != 1 || typ != protowire.BytesType {
				return errNoExample
			}
			return e.entry(v)
		})
	})
}

// entry is one pair of the map of features. Of equal keys the last counts, as in every map of protocol buffers.
func (e *example) entry(b []byte) error {
	var f feature
	var message []byte
	err := eachField(b, func(num protowire.Number, typ protowire.Type, v []byte, _ uint64) error {
		switch {
		case typ != protowire.BytesType:
			return errNoExample
		case num == 1:
			f.key = v
		case num == 2:
			message = v
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = eachField(message, func(num protowire.Number, typ protowire.Type, v []byte, _ uint64) error {
		if typ != protowire.BytesType || num < 1 || num > 3 {
			return errNoExample
		}
		f.kind, f.data = featureKind(num), v
		return nil
	})
	if err == nil {
		err = f.size()
	}
	if err != nil {
		return err
	}
	if len(f.key) == 0 || len(f.key) > record.MaxName {
		return fmt.Errorf("feature %.80q: a name has 1 to %d bytes", f.key, record.MaxName)
	}
	if old := e.find(string(f.key)); old != nil {
		*old = f
		return nil
	}
	if len(e.features) >= 1<<12 {
		return errors.New("it has more than 4,096 features")
	}
	e.features = append(e.features, f)
	return nil
}

// find returns the feature of a key; nil = there is none.
func (e *example) find(key string) *feature {
	for i := range e.features {
		if string(e.features[i].key) == key {
			return &e.features[i]
		}
	}
	return nil
}

// size counts the values of a feature.
func (f *feature) size() error {
	list := f.data
	if f.kind == bytesFeature {
		f.data = nil
	}
	return eachField(list, func(num protowire.Number, typ protowire.Type, v []byte, _ uint64) error {
		switch {
		case num != 1:
			return errNoExample
		case f.kind == bytesFeature && typ == protowire.BytesType:
			f.data = v
			f.count++
		case f.kind == floatFeature && typ == protowire.BytesType && len(v)%4 == 0:
			f.count += int64(len(v) / 4)
		case f.kind == floatFeature && typ == protowire.Fixed32Type, f.kind == intFeature && typ == protowire.VarintType:
			f.count++
		case f.kind == intFeature && typ == protowire.BytesType:
			if len(v) > 0 && v[len(v)-1] >= 0x80 {
				return errNoExample // the last number does not end
			}
			for _, c := range v {
				if c < 0x80 {
					f.count++
				}
			}
		default:
			return errNoExample
		}
		return nil
	})
}

// ints writes the values of a feature of int64s, little-endian, into b of 8*count bytes.
func (f *feature) ints(b []byte) error {
	put := func(n uint64) {
		binary.LittleEndian.PutUint64(b, n)
		b = b[8:]
	}
	return eachField(f.data, func(_ protowire.Number, typ protowire.Type, v []byte, x uint64) error {
		if typ == protowire.VarintType {
			put(x)
			return nil
		}
		for len(v) > 0 {
			x, n := protowire.ConsumeVarint(v)
			if n < 0 {
				return errNoExample
			}
			put(x)
			v = v[n:]
		}
		return nil
	})
}

// floats appends the values of a feature of floats as they lie in the message: little-endian.
func (f *feature) floats(b []byte) []byte {
	_ = eachField(f.data, func(_ protowire.Number, _ protowire.Type, v []byte, _ uint64) error {
		b = append(b, v...)
		return nil
	})
	return b
}

// content is the value of one field. Errors follow the name of the feature.
func (e *example) content(field *record.Field) (record.Content, error) {
	f := e.find(field.Name)
	if f == nil {
		f = &feature{}
	}
	isBytes := field.Kind == record.Bytes || field.Kind == record.Text
	switch {
	case isBytes && f.count <= 1 && (f.kind == bytesFeature || f.kind == noFeature):
		return record.Content{Data: f.data}, nil
	case isBytes:
		return record.Content{}, fmt.Errorf("has %d %s, and its field holds one byte string", f.count, f.kind)
	case f.kind != noFeature && f.kind.dtype() != field.DType || f.kind == bytesFeature:
		return record.Content{}, fmt.Errorf("has %s, and its field %s", f.kind, field.DType)
	case field.Kind == record.Scalar && f.count != 1:
		return record.Content{}, fmt.Errorf("has %d values, and its field is a scalar", f.count)
	case field.Kind == record.Array && field.Shape[0] != record.Ragged && field.Shape[0] != f.count:
		return record.Content{}, fmt.Errorf("has %d values, and its field %d", f.count, field.Shape[0])
	}
	var c record.Content
	if field.Kind == record.Array {
		c.Dims = []int64{f.count}
	}
	if f.kind == floatFeature {
		c.Data = f.floats(nil)
		return c, nil
	}
	c.Data = make([]byte, 8*f.count)
	return c, f.ints(c.Data)
}

// sortFields puts fields in the order of their names: maps of protocol buffers have none.
func sortFields(fields []record.Field) {
	slices.SortFunc(fields, func(a, b record.Field) int { return cmp.Compare(a.Name, b.Name) })
}
