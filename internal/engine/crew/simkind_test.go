package crew

import (
	"encoding/binary"

	"larder/internal/engine/work"
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/record"
	"larder/internal/xrand"
)

// simSchema is what records of the simulation are: x = [sample, seed, instance, trace]. The trace is of all steps that
// were run, with their randomness: equal traces are equal work.
var simSchema = record.Schema{Fields: []record.Field{
	{Name: "x", Kind: record.Array, DType: record.Uint64, Shape: []int64{4}},
}}

const simRecord = 64 + 64 // bytes: header and entry, and x with its padding

// simKind is a recipe of the simulation.
type simKind struct {
	steps, cut uint32
	native     uint32 // bits of the steps that are built-in ops
	share      bool
}

func (k simKind) runs() (out []work.Run) {
	for s := uint32(1); s < k.steps; s++ {
		if k.native>>s&1 == 1 {
			out = append(out, work.Run{First: s, Last: s + 1})
		}
	}
	return out
}

// recipe names the recipe and its prefix.
func (k simKind) recipe() *prep.Recipe {
	id := func(steps uint32, what uint64) ident.RecipeID {
		return ident.RecipeID(xrand.Hash(what, uint64(steps), uint64(k.cut), uint64(k.native)&(1<<steps-1)) | 1)
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

func simBlob(x [4]uint64) []byte {
	var b []byte
	for _, v := range x {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	r, err := record.Encode(&simSchema, []record.Content{{Dims: []int64{4}, Data: b}})
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

func simOpen(blob []byte) (x [4]uint64) {
	v, err := record.Open(blob)
	if err != nil {
		panic(err)
	}
	for _, f := range v.All {
		x = simValue(f.Data)
	}
	return x
}
