package coresim

import (
	"encoding/binary"

	"larder/internal/coordinator"
	"larder/internal/ident"
)

// describe appends what was decided to the running step's note. What is no value is left out: errors and accounts are addresses.
func (s *sim) describe(e coordinator.Effect) {
	switch x := e.(type) {
	case coordinator.Prepare:
		s.word(1, uint64(x.Flight), uint64(x.Job), uint64(x.From), flag(x.Keep), flag(x.KeepEncoded), x.Turn)
		s.key(x.Key)
		if x.Into != nil {
			s.describeFill(x.Into)
		}
	case coordinator.Augment:
		s.word(2, uint64(x.Flight), uint64(x.Job), uint64(x.From.Flight), flag(x.Keep), x.Seed, uint64(x.Instance), x.Turn)
		s.key(x.Key)
		s.key(x.From.Key)
	case *coordinator.Fill:
		s.describeFill(x)
	case coordinator.Discard:
		s.word(4, uint64(x.Flight))
	case coordinator.FreeKey:
		s.word(5)
		s.key(x.Key)
	case coordinator.SetBudget:
		s.word(6, uint64(x.Form), uint64(x.Bytes))
	case coordinator.Solve:
		s.word(7, x.Seq, uint64(x.Now.Encoded), uint64(x.Now.Decoded), uint64(x.Now.Augmented))
	case coordinator.Deliver:
		s.word(8, uint64(x.Delivery), uint64(x.Job), uint64(x.Rank), uint64(x.Inc), uint64(x.Slot), x.Gen, uint64(x.Epoch), uint64(x.Step), uint64(len(x.Rows)))
		for _, r := range x.Rows {
			s.note = binary.AppendUvarint(s.note, uint64(r))
		}
		for _, b := range x.Bad {
			s.word(9, uint64(b.Object))
			s.note = append(s.note, b.Reason...)
		}
	case coordinator.EndEpoch:
		s.word(10, uint64(x.Job), uint64(x.Rank), uint64(x.Epoch), uint64(x.Batches), uint64(x.Samples), flag(x.Final))
	case coordinator.CloseRank:
		s.word(11, uint64(x.Job), uint64(x.Rank), uint64(x.Inc))
		s.note = append(s.note, x.Reason...)
	case coordinator.JobEnded:
		s.word(12, uint64(x.Job))
	case coordinator.Persist:
		s.word(13, x.Seq, uint64(x.Kind), uint64(x.Job), uint64(x.Rank), uint64(x.Inc), uint64(x.Epoch), uint64(x.Step), x.Seed, uint64(len(x.Objects)))
		for _, o := range x.Objects {
			s.note = binary.LittleEndian.AppendUint32(s.note, uint32(o))
		}
		s.note = append(s.note, x.Text...)
	case coordinator.Reply:
		s.word(14, uint64(x.Token), uint64(x.Job), uint64(x.Inc))
	case coordinator.Complain:
		s.word(15, uint64(x.Job))
		s.note = append(s.note, x.Text...)
	}
}

func (s *sim) describeFill(x *coordinator.Fill) {
	s.word(3, uint64(x.Delivery), uint64(x.Row), uint64(x.Job), uint64(x.Rank), uint64(x.Slot), uint64(x.Object), uint64(x.From.Flight), uint64(x.Instance), x.Turn)
	s.key(x.From.Key)
}

func (s *sim) word(kind byte, v ...uint64) {
	b := s.note
	b = append(b, kind)
	for _, n := range v {
		b = binary.AppendUvarint(b, n)
	}
	s.note = b
}

func (s *sim) key(k ident.Key) {
	b := s.note
	b = append(b, byte(k.Form))
	b = binary.LittleEndian.AppendUint32(b, uint32(k.Object))
	b = binary.LittleEndian.AppendUint64(b, uint64(k.Recipe))
	b = binary.AppendUvarint(b, uint64(k.Group))
	s.note = binary.AppendUvarint(b, uint64(k.Instance))
}

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
