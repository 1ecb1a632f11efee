package packed

import (
	"encoding/json"
	"slices"

	"larder/internal/record"
)

// Noting is a file of which a format may note what it found in it by itself. The note comes back while the file is what
// it was.
type Noting interface {
	Other
	// Note is what was noted, perhaps by another larder; nil = nothing.
	Note() []byte
	SetNote(b []byte)
}

// shapesVersion changes with what shapes of the same lines are.
const shapesVersion = 2

// shapesNote is how shapes are noted.
type shapesNote struct {
	Version int         `json:"v"`
	None    bool        `json:"none,omitempty"` // the file has no sample
	All     []string    `json:"all,omitempty"`
	Names   []string    `json:"names,omitempty"`
	Shapes  []shapeNote `json:"shapes,omitempty"`
}

type shapeNote struct {
	Kind  valueKind `json:"k"`
	Whole wholes    `json:"w,omitempty"`
	List  bool      `json:"l,omitempty"`
	Dims  []int64   `json:"d,omitempty"`
}

// note is what is noted of a file; s may be nil.
func (s *shapes) note() []byte {
	n := shapesNote{Version: shapesVersion, None: s == nil}
	if s != nil {
		n.All, n.Names = s.all, s.names
		for _, name := range s.names {
			is := s.of[name]
			n.Shapes = append(n.Shapes, shapeNote{is.kind, is.whole, is.list, is.dims})
		}
	}
	b, err := json.Marshal(n)
	if err != nil {
		return nil // names are UTF-8, so it does not happen; the file is looked at again
	}
	return b
}

// shapesNoted reads a note; false = it is none that this larder wrote.
func shapesNoted(b []byte) (s *shapes, ok bool) {
	var n shapesNote
	if len(b) == 0 || json.Unmarshal(b, &n) != nil || n.Version != shapesVersion || len(n.Shapes) != len(n.Names) {
		return nil, false
	}
	if n.None {
		return nil, true
	}
	s = newShapes()
	s.begun, s.all, s.names = true, n.All, n.Names
	for i, name := range n.Names {
		is := n.Shapes[i]
		if int(is.Kind) >= len(valueKinds) || len(is.Dims) > record.MaxDims ||
			slices.ContainsFunc(is.Dims, func(d int64) bool { return d < record.Ragged }) || s.has(name) {
			return nil, false
		}
		s.of[name] = shape{is.Kind, is.Whole, is.List, is.Dims}
	}
	return s, true
}

// noted is what infer says of a file, if that is not noted already.
func noted(f Other, infer func() (*shapes, error)) (*shapes, error) {
	n, ok := f.(Noting)
	if !ok {
		return infer()
	}
	if s, ok := shapesNoted(n.Note()); ok {
		return s, nil
	}
	s, err := infer()
	if err == nil {
		n.SetNote(s.note())
	}
	return s, err
}

func (s *shapes) has(name string) bool {
	_, ok := s.of[name]
	return ok
}
