package work

import (
	"time"

	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/prep/fields"
	"larder/internal/record"
	"larder/internal/source"
)

// Job is what a worker must know of a job. It does not change.
type Job struct {
	ID     ident.JobID
	Data   *source.Dataset
	Recipe *prep.Recipe
	Made   *Made // of samples that are records; nil = they are images
}

// ByClients reports whether worker processes of clients make the samples, not the workers of this package.
//
// Of samples that are read and have steps in Python, they make what those steps make: a worker of this package reads
// and decodes such a sample when their Crew asks for it.
func (j *Job) ByClients() bool { return j.Made != nil && (!j.Made.Stored || j.Made.Python) }

// Made is what is known of samples that are records, which worker processes of clients make, or which are read. Steps
// are counted from 0, the item of the dataset; step i is the i-th op of the recipe.
type Made struct {
	Stored  bool   // they are read from files, and the workers of this package do all steps, unless some are Python
	Python  bool   // there are steps in Python behind an item that is Stored
	Image   bool   // what is Stored is an image file, which becomes a record of image and label
	Steps   uint32 // of the whole recipe, the item among them
	Cut     uint32 // steps before it make the decoded form; 0 = that is the sample's number alone
	Item    record.Schema
	Out     record.Schema // after the last step
	Timeout time.Duration // of one task at a worker
	Weight  int64         // about what the ragged fields of a sample weigh, bytes; 0 = not known
	Runs    []Run         // of built-in ops among the steps, in order
}

// Run is the steps from First up to Last, which are built-in ops: the workers of this package do them.
type Run struct {
	First, Last uint32
	Stage       *fields.Stage
}

// Reads reports whether a stretch that begins at a step begins with reading the item.
func (m *Made) Reads(first uint32) bool { return m.Stored && first == 0 }

// Next is where the first stretch of the steps [first, last) ends that is made in one place: by built-in ops, which
// runs are, or by a worker of a client, when there are none. One that Reads is made by the workers of this package,
// with the ops that follow.
func (m *Made) Next(first, last uint32) (to uint32, runs []Run) {
	if m.Reads(first) && last > 0 {
		if to, runs = m.next(1, last); len(runs) == 0 {
			to = 1
		}
		return to, runs
	}
	return m.next(first, last)
}

func (m *Made) next(first, last uint32) (to uint32, runs []Run) {
	to = last
	for i := range m.Runs {
		r := &m.Runs[i]
		switch {
		case r.First < first || r.First >= last:
		case len(runs) > 0 && r.First == runs[len(runs)-1].Last || len(runs) == 0 && r.First == first:
			runs = append(runs, *r)
		case len(runs) == 0:
			return r.First, nil
		}
	}
	if len(runs) > 0 {
		to = runs[len(runs)-1].Last
	}
	return to, runs
}

// Prefix is the built-in ops by which the decoded form is made of the item of a record that is Stored.
func (m *Made) Prefix() []Run {
	_, runs := m.Next(1, m.Cut)
	return runs
}

// Suffix is the built-in ops by which rows are made of the decoded form; nil = there are others, or none.
func (m *Made) Suffix() []Run {
	if to, runs := m.Next(m.Cut, m.Steps); m.Cut > 0 && to == m.Steps {
		return runs
	}
	return nil
}

// Accept checks an untrusted record that was made by steps before last.
func (m *Made) Accept(blob []byte, last uint32, limit int64) error {
	if last == 1 {
		if err := m.Item.Validate(blob, limit); err != nil {
			return err
		}
	}
	if last == m.Steps {
		return m.Out.Validate(blob, limit)
	}
	_, err := record.Open(blob)
	return err
}

// raggedGuess is what a field is taken to weigh whose size is not known.
const raggedGuess = 4 << 10

// Guess is about what the ragged fields of a sample weigh; 0 = it has none.
func (m *Made) Guess() int64 {
	n := int64(0)
	for i := range m.Out.Fields {
		if m.Weight > 0 && !m.Out.Fields[i].Dense() {
			return m.Weight
		}
		if !m.Out.Fields[i].Dense() {
			n += raggedGuess
		}
	}
	return n
}

// Ready reports whether a row is a copy of a record in this form.
func (m *Made) Ready(f ident.Form) bool { return f == ident.Augmented || m.Cut == m.Steps }

// key is the randomness of one sample. It is of the sample's id, so that it does not depend on what else is indexed.
func (j *Job) key(x ident.ObjectID, seed uint64, instance uint32) prep.RandKey {
	s, _ := j.Data.Sample(x)
	return prep.RandKey{Seed: seed, Instance: instance, Sample: uint64(s)}
}

// RecipeKey is what is measured together: work of a recipe on a dataset.
func (j *Job) RecipeKey() RecipeKey {
	return RecipeKey{j.Data.ID(), j.Recipe.Prefix(), j.Recipe.SuffixID()}
}
