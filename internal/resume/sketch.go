package resume

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"

	"github.com/cespare/xxhash/v2"
)

// Sketch is a summary of a set of files, 2.7 kB whatever their number: from the sketches of two sets that differ in
// some 50 files at most, which those are can be computed (an invertible Bloom lookup table: Goodrich and Mitzenmacher,
// "Invertible Bloom Lookup Tables", 2011, section 3, used to reconcile sets as in Eppstein et al., "What's the
// Difference?", SIGCOMM 2011).
type Sketch struct {
	sum   uint64 // of all entries, mixed
	cells [sketchCells]cell
}

const (
	sketchCells  = 96 // three parts; half as many differences are found with a probability above 0.99
	sketchHashes = 3
	cellBytes    = 4 + 8 + 8 + 8
)

type cell struct {
	count           int32
	key, has, check uint64 // of the entries, xored
}

// Entry is one file: the hash of its key, and a hash of its key and what is known of its content.
type Entry struct{ Key, Content uint64 }

// File makes the entry of a file. mtime is in ns; 0 leaves it out.
func File(key string, size, mtime int64) Entry {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], uint64(size))
	binary.LittleEndian.PutUint64(b[8:], uint64(mtime))
	k := xxhash.Sum64String(key)
	return Entry{k, xxhash.Sum64(b[:])}
}

// mix is the finaliser of MurmurHash3.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// check distinguishes a cell of one entry from a cell where several have been xored.
func (e Entry) check() uint64 { return mix(e.Key*0x9e3779b97f4a7c15 + e.Content) }

// at are the cells of an entry, one in each part.
func (e Entry) at(i int) int {
	const part = sketchCells / sketchHashes
	return i*part + int(mix(e.check()+uint64(i))%part)
}

// Add enters a file. It must not be in the set.
func (s *Sketch) Add(e Entry) { s.add(e, 1) }

func (s *Sketch) add(e Entry, n int32) {
	s.sum += uint64(int64(n)) * e.check()
	for i := range sketchHashes {
		c := &s.cells[e.at(i)]
		c.count += n
		c.key ^= e.Key
		c.has ^= e.Content
		c.check ^= e.check()
	}
}

// Sum is a fingerprint of the set, 16 hex digits: it does not depend on order, ids or where the files lie.
func (s *Sketch) Sum() string {
	return hex.EncodeToString(binary.BigEndian.AppendUint64(nil, s.sum))
}

// Diff returns what is only in s and what is only in o; false when they differ in too much to say.
func (s *Sketch) Diff(o *Sketch) (here, there []Entry, ok bool) {
	d := *s
	d.sum -= o.sum
	for i := range d.cells {
		d.cells[i].count -= o.cells[i].count
		d.cells[i].key ^= o.cells[i].key
		d.cells[i].has ^= o.cells[i].has
		d.cells[i].check ^= o.cells[i].check
	}
	for more := true; more; {
		more = false
		for i := range d.cells {
			c := d.cells[i]
			if c.count != 1 && c.count != -1 {
				continue
			}
			e := Entry{c.key, c.has}
			if c.check != e.check() {
				continue // several, which together count one
			}
			if len(here)+len(there) > sketchCells {
				return nil, nil, false
			}
			d.add(e, -c.count)
			if c.count > 0 {
				here = append(here, e)
			} else {
				there = append(there, e)
			}
			more = true
		}
	}
	if d != (Sketch{}) {
		return nil, nil, false
	}
	return here, there, true
}

// Text is the sketch in base64.
func (s *Sketch) Text() string {
	b := make([]byte, 0, 8+sketchCells*cellBytes)
	b = binary.LittleEndian.AppendUint64(b, s.sum)
	for _, c := range s.cells {
		b = binary.LittleEndian.AppendUint32(b, uint32(c.count))
		b = binary.LittleEndian.AppendUint64(b, c.key)
		b = binary.LittleEndian.AppendUint64(b, c.has)
		b = binary.LittleEndian.AppendUint64(b, c.check)
	}
	return base64.StdEncoding.EncodeToString(b)
}

// ParseSketch is the reverse of Text.
func ParseSketch(text string) (*Sketch, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != 8+sketchCells*cellBytes {
		return nil, errors.New("its sketch of the files cannot be read")
	}
	s := &Sketch{sum: binary.LittleEndian.Uint64(b)}
	b = b[8:]
	for i := range s.cells {
		s.cells[i] = cell{int32(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint64(b[4:]),
			binary.LittleEndian.Uint64(b[12:]), binary.LittleEndian.Uint64(b[20:])}
		b = b[cellBytes:]
	}
	return s, nil
}
