package work

import (
	"larder/internal/ident"
	"larder/internal/prep"
	"larder/internal/source"
)

// Job is what a worker must know of a job. It does not change.
type Job struct {
	ID     ident.JobID
	Data   *source.Dataset
	Recipe *prep.Recipe
}

// key is the randomness of one sample. It is of the sample's id, so that it does not depend on what else is indexed.
func (j *Job) key(x ident.ObjectID, seed uint64, instance uint32) prep.RandKey {
	s, _ := j.Data.Sample(x)
	return prep.RandKey{Seed: seed, Instance: instance, Sample: uint64(s)}
}

// RecipeKey is what is measured together: work of a recipe on a dataset.
func (j *Job) RecipeKey() RecipeKey {
	return RecipeKey{j.Data.ID(), j.Recipe.Prefix(), j.Recipe.SuffixID()}
}
