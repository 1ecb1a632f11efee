package wire

import "encoding/binary"

// PicksSize is the bytes of PICKS before its batches.
const PicksSize = 16

// MaxPicks bounds the payload of PICKS, in bytes: four batches of 65,536 samples.
const MaxPicks = PicksSize + 4*(4+4*65536)

const flagEnd = 1

// PicksFrame is the payload of PICKS: the samples of the next batches of a job of order given.
type PicksFrame struct {
	Epoch   uint32
	First   uint32     // step of the first batch
	End     bool       // no batch follows
	Batches [][]uint32 // sample ids
}

// Append appends the payload.
func (f PicksFrame) Append(dst []byte) []byte {
	le := binary.LittleEndian
	var flags uint32
	if f.End {
		flags |= flagEnd
	}
	dst = le.AppendUint32(dst, f.Epoch)
	dst = le.AppendUint32(dst, f.First)
	dst = le.AppendUint32(dst, flags)
	dst = le.AppendUint32(dst, uint32(len(f.Batches)))
	for _, ids := range f.Batches {
		dst = le.AppendUint32(dst, uint32(len(ids)))
		for _, id := range ids {
			dst = le.AppendUint32(dst, id)
		}
	}
	return dst
}

// ParsePicks reads the payload. The batches do not point into p. Flags of later versions are refused: they might say
// which samples come.
func ParsePicks(p []byte) (PicksFrame, error) {
	le := binary.LittleEndian
	if len(p) < PicksSize {
		return PicksFrame{}, Violation("a PICKS payload has at least %d bytes, here are %d", PicksSize, len(p))
	}
	flags, n := le.Uint32(p[8:]), uint64(le.Uint32(p[12:]))
	f := PicksFrame{Epoch: le.Uint32(p), First: le.Uint32(p[4:]), End: flags&flagEnd != 0}
	rest := p[PicksSize:]
	if flags&^flagEnd != 0 {
		return PicksFrame{}, Violation("a PICKS has the flags %#x, of which this side knows %#x", flags, flagEnd)
	}
	if 8*n > uint64(len(rest)) { // a batch has one sample or more
		return PicksFrame{}, Violation("a PICKS of %d bytes does not hold the %d batches that it counts", len(p), n)
	}
	f.Batches = make([][]uint32, 0, n)
	for range n {
		if len(rest) < 4 || uint64(le.Uint32(rest))*4 > uint64(len(rest)-4) || le.Uint32(rest) == 0 {
			return PicksFrame{}, Violation("batch %d of a PICKS is empty, or longer than the frame", len(f.Batches))
		}
		ids := make([]uint32, le.Uint32(rest))
		for i := range ids {
			ids[i] = le.Uint32(rest[4+4*i:])
		}
		f.Batches, rest = append(f.Batches, ids), rest[4+4*len(ids):]
	}
	if len(rest) > 0 {
		return PicksFrame{}, Violation("a PICKS has %d bytes behind its last batch", len(rest))
	}
	return f, nil
}
