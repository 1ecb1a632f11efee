package crew

import (
	"encoding/binary"

	"larder/internal/engine/work"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/xrand"
)

// simForm is the form of a record of the simulation. Its first field x is [sample, seed, instance, trace]. The trace is
// of all steps that were run, with their randomness: equal traces are equal work.
type simForm int

const (
	formPlain   simForm = iota
	formSquare          // x in another shape
	formFlagged         // and whether the trace is odd
	numForms
	formSigned // of lies only, as the next ones: x of another dtype
	formMore   // one field more
	formLarge  // x is longer
)

var simSchemas = []record.Schema{
	formPlain:  {Fields: []record.Field{simField(record.Uint64, 4)}},
	formSquare: {Fields: []record.Field{simField(record.Uint64, 2, 2)}},
	formFlagged: {Fields: []record.Field{simField(record.Uint64, 4), {Name: "odd", Kind: record.Scalar,
		DType: record.Bool}}},
	formSigned: {Fields: []record.Field{simField(record.Int64, 4)}},
	formMore:   {Fields: []record.Field{simField(record.Uint64, 4), {Name: "y", Kind: record.Scalar, DType: record.Int8}}},
	formLarge:  {Fields: []record.Field{simField(record.Uint64, 100)}},
}

func simField(t record.DType, shape ...int64) record.Field {
	return record.Field{Name: "x", Kind: record.Array, DType: t, Shape: shape}
}

const simRecord = 64 + 64 // bytes of a plain one: header and entry, and x with its padding

// simKind is a recipe of the simulation.
type simKind struct {
	steps, cut uint32
	native     uint32 // bits of the steps that are built-in ops
	share      bool
	form       simForm // after the last step; before it is plain
}

func (k simKind) runs() (out []work.Run) {
	for s := uint32(1); s < k.steps; s++ {
		if k.native>>s&1 == 1 {
			out = append(out, work.Run{First: s, Last: s + 1})
		}
	}
	return out
}

// formAt is the form of what steps before last made.
func (k simKind) formAt(last uint32) simForm {
	if last == k.steps {
		return k.form
	}
	return formPlain
}

// checked reports whether the form of what steps before last made is known to the daemon.
func (k simKind) checked(last uint32) bool { return last == 1 || last == k.steps }

// recipe names the recipe and its prefix.
func (k simKind) recipe() *prep.Recipe {
	id := func(steps uint32, what uint64) ident.RecipeID {
		return ident.RecipeID(xrand.Hash(what, uint64(steps), uint64(k.cut), uint64(k.native)&(1<<steps-1),
			uint64(k.formAt(steps))) | 1)
	}
	whole, prefix := id(k.steps, 1), id(k.cut, 2)
	if k.cut == 0 {
		prefix = id(k.steps, 3)
	}
	return prep.Foreign(whole, prefix, whole, k.cut < k.steps)
}

// run does steps of a sample. x is what the steps before made.
func (k simKind) run(x [4]uint64, first, last uint32, key prep.RandKey) [4]uint64 {
	x[0], x[1], x[2] = key.Sample, key.Seed, uint64(key.Instance)
	for s := first; s < last; s++ {
		x[3] = xrand.Hash(x[3], uint64(s), uint64(k.native>>s&1), key.Sample, key.Seed, uint64(key.Instance))
	}
	return x
}

// whole is a sample after all steps.
func (k simKind) whole(sample, seed uint64, instance uint32) [4]uint64 {
	x := k.run([4]uint64{}, 0, k.cut, prep.RandKey{Sample: sample})
	if k.cut == k.steps {
		return x
	}
	return k.run(x, k.cut, k.steps, prep.RandKey{Sample: sample, Seed: seed, Instance: instance})
}

// simBlob is the record of x.
func simBlob(x [4]uint64, form simForm) []byte {
	var b []byte
	for _, v := range x {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	s := &simSchemas[form]
	values := []record.Content{{Dims: s.Fields[0].Shape, Data: append(b, make([]byte, s.Fields[0].Size()-32)...)}}
	if len(s.Fields) > 1 {
		values = append(values, record.Content{Data: []byte{byte(x[3] & 1)}})
	}
	r, err := record.Encode(s, values)
	if err != nil {
		panic(err)
	}
	return r
}

func simValue(b []byte) (x [4]uint64) {
	for i := range x {
		x[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return x
}

// simView is a record that was made here.
func simView(blob []byte) record.View {
	v, err := record.Open(blob)
	if err != nil {
		panic(err)
	}
	return v
}

func simOpen(blob []byte) (x [4]uint64) {
	for i, f := range simView(blob).All {
		if i == 0 {
			x = simValue(f.Data)
		}
	}
	return x
}
