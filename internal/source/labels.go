package source

import (
	"errors"

	"larder/internal/ident"
	"larder/internal/source/packed"
	"larder/internal/source/subset"
)

// Labels implements subset.Properties. The index has labels of records that are numbers of classes; where one of them
// is none, the field is read as a property, whose values may be below 0, parts of numbers, or words.
func (v *view) Labels() (*subset.Column, error) {
	if v.made != nil || !v.records() || !numbered(v.classes) { // classes with names have numbers from 0, and -1 is none
		return nil, nil
	}
	name := packed.LabelField(&v.schema)
	if name == "" || !v.unlabelled() {
		return nil, nil
	}
	c, err := v.Property(name)
	if errors.Is(err, subset.ErrNoProperty) {
		return nil, nil
	}
	return c, err
}

// unlabelled reports whether a live sample has no label in the index.
func (v *view) unlabelled() bool {
	for id := range ident.SampleID(v.Len()) {
		if v.Live(id) && v.Label(id) < 0 {
			return true
		}
	}
	return false
}
