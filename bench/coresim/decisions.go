package coresim

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"larder/internal/coordinator"
	"larder/internal/ident"
)

// describe appends what was decided to the running step's note. What is no value is left out: errors and accounts are
// addresses.
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
		s.word(8, uint64(x.Delivery), uint64(x.Job), uint64(x.Rank), uint64(x.Inc), uint64(x.Slot), x.Gen, uint64(x.Epoch),
			uint64(x.Step), uint64(len(x.Rows)))
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
		s.describeRecord(x.Seq, describedRecord(x.Record))
	case coordinator.Reply:
		s.word(14, uint64(x.Token), uint64(x.Job), uint64(x.Inc))
	case coordinator.Complain:
		s.word(15, uint64(x.Job))
		s.note = append(s.note, x.Text...)
	}
}

// described is what the hashes have of a record: the fields of the one struct that all kinds had when they were
// recorded.
type described struct {
	kind    uint64
	job     ident.JobID
	rank    int
	inc     ident.Incarnation
	epoch   uint32
	step    uint64
	seed    uint64
	objects []ident.ObjectID
	text    string
}

func describedRecord(r coordinator.Record) described {
	switch r := r.(type) {
	case coordinator.RecordRegistered:
		return described{kind: 0, job: r.Job, seed: r.Seed, text: r.Name}
	case coordinator.RecordAttached:
		return described{kind: 1, job: r.Job, rank: r.Rank, inc: r.Inc, text: r.Client}
	case coordinator.RecordEpochStarted:
		return described{kind: 2, job: r.Job, epoch: r.Epoch, step: uint64(r.Instance)}
	case coordinator.RecordAssigned:
		return described{kind: 3, job: r.Job, rank: r.Rank, inc: r.Inc, epoch: r.Epoch, step: uint64(r.Step),
			objects: r.Objects}
	case coordinator.RecordGivenEarlier:
		return described{kind: 3, job: r.Job, rank: -1, epoch: r.Epoch, step: uint64(r.Chunk), objects: r.Objects}
	case coordinator.RecordReturned:
		return described{kind: 4, job: r.Job, rank: r.Rank, inc: r.Inc, epoch: r.Epoch, step: uint64(r.Step),
			objects: r.Objects}
	case coordinator.RecordEpochEnded:
		return described{kind: 5, job: r.Job, epoch: r.Epoch, text: r.State.String()}
	case coordinator.RecordQuarantined:
		return described{kind: 6, job: r.Job, objects: []ident.ObjectID{r.Object}, text: r.Reason}
	case coordinator.RecordEnded:
		return described{kind: 7, job: r.Job, text: r.Reason}
	case coordinator.RecordSubsetChanged:
		return described{kind: 8, job: r.Job, epoch: r.Epoch, step: uint64(r.Mark)}
	case coordinator.RecordPaused:
		return described{kind: 9, job: r.Job}
	case coordinator.RecordUnpaused:
		return described{kind: 10, job: r.Job}
	case coordinator.RecordDealt:
		return described{kind: 11, job: r.Job, epoch: r.Epoch, step: uint64(r.Step), objects: r.Objects,
			text: strconv.Itoa(r.GivenUp)}
	}
	panic(fmt.Sprintf("coresim: unknown record %T", r))
}

func (s *sim) describeRecord(seq uint64, d described) {
	s.word(13, seq, d.kind, uint64(d.job), uint64(d.rank), uint64(d.inc), uint64(d.epoch), d.step, d.seed,
		uint64(len(d.objects)))
	for _, o := range d.objects {
		s.note = binary.LittleEndian.AppendUint32(s.note, uint32(o))
	}
	s.note = append(s.note, d.text...)
}

// assigned counts the samples that a record commits to a job, those of an earlier job included.
func assigned(r coordinator.Record) uint64 {
	switch r := r.(type) {
	case coordinator.RecordAssigned:
		return uint64(len(r.Objects))
	case coordinator.RecordGivenEarlier:
		return uint64(len(r.Objects))
	}
	return 0
}

func (s *sim) describeFill(x *coordinator.Fill) {
	s.word(3, uint64(x.Delivery), uint64(x.Row), uint64(x.Job), uint64(x.Rank), uint64(x.Slot), uint64(x.Object),
		uint64(x.From.Flight), uint64(x.Instance), x.Turn)
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
