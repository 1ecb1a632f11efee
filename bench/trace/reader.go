package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cespare/xxhash/v2"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/units"
)

// reader reads chunks and remembers where it is.
type reader struct {
	r     io.Reader
	name  string
	at    int64 // of what is being read
	sum   uint64
	old   bool // version 1
	chunk []byte
	begin int64 // of the payload
	rest  []byte
}

// fail is what is wrong, and where.
func (r *reader) fail(at int64, hint, format string, args ...any) error {
	return errs.New(errs.Invalid, r.name, hint, "%s: at byte %d: %s", r.name, at, fmt.Sprintf(format, args...))
}

func (r *reader) damaged(format string, args ...any) error {
	return r.fail(r.where(), "the file is damaged: record the trace again, or fetch it once more", format, args...)
}

func (r *reader) where() int64 { return r.begin + int64(len(r.chunk)-len(r.rest)) }

func (r *reader) full(b []byte) error {
	n, err := io.ReadFull(r.r, b)
	r.at += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return r.fail(r.at, "the file is cut off: its recording did not end, or not all of it was copied",
			"the trace ends in the middle")
	}
	if err != nil {
		return errs.New(errs.Invalid, r.name, "check the file and its rights", "%s: at byte %d: read the trace", r.name,
			r.at).Because(err)
	}
	return nil
}

// next reads a chunk whole and checks it before anything in it is believed.
func (r *reader) next() (kind byte, err error) {
	begin := r.at
	r.begin, r.chunk, r.rest = begin, nil, nil
	head := make([]byte, 1, 1+binary.MaxVarintLen64)
	if err := r.full(head); err != nil {
		return 0, err
	}
	for {
		var one [1]byte
		if err := r.full(one[:]); err != nil {
			return 0, err
		}
		head = append(head, one[0])
		if one[0] < 0x80 {
			break
		}
		if len(head) > 5 {
			return 0, r.fail(begin, "the file is damaged: record the trace again",
				"a chunk claims a length of more than %d bytes", maxChunk)
		}
	}
	n, _ := binary.Uvarint(head[1:])
	if n > maxChunk {
		return 0, r.fail(begin, "the file is damaged: record the trace again", "a chunk claims %d bytes, the limit is %d", n,
			maxChunk)
	}
	payload := make([]byte, 0, min(n, 1<<16)) // grows with what really comes
	for have := uint64(0); have < n; {
		more := min(n-have, 1<<16)
		payload = append(payload, make([]byte, more)...)
		if err := r.full(payload[have:]); err != nil {
			return 0, err
		}
		have += more
	}
	var sum [8]byte
	if err := r.full(sum[:]); err != nil {
		return 0, err
	}
	d := xxhash.NewWithSeed(r.sum)
	_, _ = d.Write(head)
	_, _ = d.Write(payload)
	r.sum = d.Sum64()
	if got := binary.LittleEndian.Uint64(sum[:]); got != r.sum {
		return 0, r.fail(begin, "the file is damaged: record the trace again, or fetch it once more",
			"the chunk does not have the checksum %016x that is written behind it", got)
	}
	r.begin, r.chunk, r.rest = begin+int64(len(head)), payload, payload
	return head[0], nil
}

func (r *reader) uvarint(what string, limit uint64) (uint64, error) {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		return 0, r.damaged("%s is cut off", what)
	}
	if v > limit {
		return 0, r.damaged("%s is %d, the limit is %d", what, v, limit)
	}
	r.rest = r.rest[n:]
	return v, nil
}

func (r *reader) bytes(what string, n int) ([]byte, error) {
	if len(r.rest) < n {
		return nil, r.damaged("%s is cut off", what)
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b, nil
}

func (r *reader) string(what string) (string, error) {
	n, err := r.uvarint("the length of "+what, maxName)
	if err != nil {
		return "", err
	}
	b, err := r.bytes(what, int(n))
	return string(b), err
}

// column unpacks n numbers that are all at most limit, and appends them.
func column[T number](r *reader, to []T, what string, n int, limit uint64) ([]T, error) {
	least, err := r.uvarint("the least "+what, limit)
	if err != nil {
		return to, err
	}
	w, err := r.bytes("the width of "+what, 1)
	if err != nil {
		return to, err
	}
	width := int(w[0])
	if width > 64 {
		return to, r.damaged("%s are %d bits wide", what, width)
	}
	packed, err := r.bytes(what, (n*width+7)/8)
	if err != nil {
		return to, err
	}
	mask := uint64(1)<<width - 1
	if width == 64 {
		mask = ^uint64(0)
	}
	at := 0 // bits
	for range n {
		v := uint64(0)
		if width > 0 {
			v = unpack(packed, at) >> (at & 7)
			if have := 64 - at&7; width > have { // the ninth byte
				v |= uint64(packed[at>>3+8]) << have
			}
			v &= mask
			at += width
		}
		if v > limit-least {
			return to, r.damaged("%s: %d above %d exceeds the limit %d", what, v, least, limit)
		}
		to = append(to, T(least+v))
	}
	return to, nil
}

// unpack is the 8 bytes from a bit on, as many as there are.
func unpack(b []byte, bit int) uint64 {
	i := bit >> 3
	if i+8 <= len(b) {
		return binary.LittleEndian.Uint64(b[i:])
	}
	v := uint64(0)
	for k := 0; i+k < len(b); k++ {
		v |= uint64(b[i+k]) << (8 * k)
	}
	return v
}

// Read reads a whole trace, of at most maxMemory bytes (0 = no limit) by the estimate of Memory; name is what to call
// it. Every error is an errs.Error and names the offset: INVALID_ARGUMENT for what is no trace, damaged or cut off,
// RESOURCE_EXCEEDED for what would not fit.
func Read(from io.Reader, name string, maxMemory uint64) (*Trace, error) {
	r := &reader{r: from, name: name}
	h := make([]byte, headerSize)
	n, err := io.ReadFull(from, h)
	r.at = int64(n)
	switch {
	case n == 0 && errors.Is(err, io.EOF):
		return nil, r.fail(0, "record a trace with larder trace record, or export one with larder bench policy --export",
			"the file is empty")
	case n < len(magic) || string(h[:len(magic)]) != magic:
		return nil, r.fail(0, "a trace begins with "+magic+"; name other formats with --format", "this is no trace of larder")
	case err != nil:
		return nil, r.fail(r.at, "the file is cut off: not all of it was copied", "the trace ends in its header")
	}
	if v := binary.LittleEndian.Uint32(h[8:]); v < firstVersion || v > fileVersion ||
		binary.LittleEndian.Uint32(h[12:]) != 0 {
		return nil, r.fail(8, fmt.Sprintf("this larder reads versions %d to %d", firstVersion, fileVersion),
			"the trace is of version %d", v)
	}
	r.sum, r.old = xxhash.Sum64(h), h[8] == firstVersion
	t := &Trace{}
	have, last := 0, byte(0) // objects with sizes or costs
	for {
		kind, err := r.next()
		if err != nil {
			return nil, err
		}
		if (last == 0) != (kind == chunkDemand) || kind == chunkObjects && last > chunkObjects && last != chunkWorld ||
			kind == chunkWorld && (r.old || last != chunkDemand) {
			return nil, r.damaged("a chunk of kind %d after one of kind %d", kind, last)
		}
		last = kind
		switch kind {
		case chunkDemand:
			err = r.demand(t, maxMemory)
		case chunkObjects:
			have, err = r.objects(t, have)
		case chunkPicks:
			err = r.picks(t, maxMemory)
		case chunkMoves:
			err = r.moves(t)
		case chunkWorld:
			err = r.world(t)
		case chunkEnd:
			return t, r.end(t, have)
		default:
			err = r.damaged("a chunk of the unknown kind %d", kind)
		}
		if err == nil && len(r.rest) > 0 {
			err = r.damaged("%d bytes too many in a chunk of kind %d", len(r.rest), kind)
		}
		if err != nil {
			return nil, err
		}
	}
}

// tooLarge refuses what would not fit memory.
func (r *reader) tooLarge(t *Trace, picks, limit uint64) error {
	need := Memory(picks, uint64(t.Objects), t.sized())
	if limit == 0 || need <= limit {
		return nil
	}
	return errs.New(errs.ResourceExceeded, r.name, "cut the trace into shorter ones, or raise --max-memory",
		"%s: at byte %d: the trace needs about %s of memory, the limit is %s", r.name, r.begin, units.Size(need),
		units.Size(limit))
}

func (r *reader) demand(t *Trace, maxMemory uint64) (err error) {
	if t.Name, err = r.string("the name"); err != nil {
		return err
	}
	b, err := r.bytes("the seed", 8)
	if err != nil {
		return err
	}
	t.Seed = binary.LittleEndian.Uint64(b)
	n, err := r.uvarint("the number of objects", MaxObjects)
	if err != nil {
		return err
	}
	t.Objects = int(n)
	flags, err := r.bytes("the flags", 1)
	if err != nil {
		return err
	}
	if flags[0] > 15 || r.old && flags[0] > 7 {
		return r.damaged("unknown flags %#x", flags[0])
	}
	for i, make := range []func(){func() { t.Sizes = []uint32{} }, func() { t.Decode = []time.Duration{} },
		func() { t.Augment = []time.Duration{} }, func() { t.Decoded = []uint32{} }} {
		if flags[0]>>i&1 == 1 {
			make()
		}
	}
	if err := r.tooLarge(t, 0, maxMemory); err != nil {
		return err
	}
	jobs, err := r.uvarint("the number of jobs", MaxJobs)
	if err != nil {
		return err
	}
	for range jobs {
		j, err := r.job(t)
		if err != nil {
			return err
		}
		t.Jobs = append(t.Jobs, j)
	}
	if err := t.checkDemand(); err != nil {
		return r.damaged("%s", errs.From(err).Message)
	}
	return nil
}

// checkDemand is Check without what comes after the demand.
func (t *Trace) checkDemand() error {
	d := *t
	d.Sizes, d.Decoded, d.Decode, d.Augment, d.Pick, d.Moves, d.World = nil, nil, nil, nil, Picks{}, nil, nil
	return d.Check()
}

func (r *reader) job(t *Trace) (j Job, err error) {
	if j.Name, err = r.string("the name of a job"); err != nil {
		return j, err
	}
	if j.Order, err = r.string("the order of a job"); err != nil {
		return j, err
	}
	b, err := r.bytes("a flag", 1)
	if err != nil {
		return j, err
	}
	if b[0] > 1 {
		return j, r.damaged("a flag is %d", b[0])
	}
	j.Looks = b[0] == 1
	var v [6]uint64
	for i, f := range []struct {
		what  string
		limit uint64
	}{{"the arrival", 1<<63 - 1}, {"the leave", 1<<63 - 1}, {"the step time", 1<<63 - 1}, {"the batch",
		1 << 30}, {"the epochs", 1 << 30}, {"the ranges", uint64(t.Objects)}} {
		if v[i], err = r.uvarint(f.what, f.limit); err != nil {
			return j, err
		}
	}
	j.Arrive, j.Leave, j.Step, j.Batch, j.Epochs = time.Duration(v[0]), time.Duration(v[1]), time.Duration(v[2]),
		int(v[3]), int(v[4])
	at := uint64(0)
	for range v[5] {
		gap, err := r.uvarint("the gap before a range", uint64(t.Objects)-at)
		if err != nil {
			return j, err
		}
		n, err := r.uvarint("the length of a range", uint64(t.Objects)-at-gap)
		if err != nil {
			return j, err
		}
		j.Subset = append(j.Subset, Range{uint32(at + gap), uint32(at + gap + n)})
		at += gap + n
	}
	return j, nil
}

// count reads how many rows a chunk has.
func (r *reader) count(what string) (int, error) {
	n, err := r.uvarint(what, blockPicks)
	if err == nil && n == 0 {
		err = r.damaged("%s is 0", what)
	}
	return int(n), err
}

func (r *reader) objects(t *Trace, have int) (int, error) {
	n, err := r.count("the number of objects of a chunk")
	if err != nil {
		return have, err
	}
	if have+n > t.Objects || !t.sized() {
		return have, r.damaged("sizes of %d objects, there are %d", have+n, t.Objects)
	}
	if t.Sizes != nil {
		if t.Sizes, err = column(r, t.Sizes, "sizes", n, 1<<32-1); err != nil {
			return have, err
		}
	}
	if t.Decode != nil {
		if t.Decode, err = column(r, t.Decode, "decode costs", n, 1<<63-1); err != nil {
			return have, err
		}
	}
	if t.Augment != nil {
		if t.Augment, err = column(r, t.Augment, "augment costs", n, 1<<63-1); err != nil {
			return have, err
		}
	}
	if t.Decoded != nil {
		if t.Decoded, err = column(r, t.Decoded, "decoded sizes", n, 1<<32-1); err != nil {
			return have, err
		}
	}
	return have + n, nil
}

func (r *reader) picks(t *Trace, maxMemory uint64) error {
	n, err := r.count("the number of picks of a chunk")
	if err != nil {
		return err
	}
	if uint64(t.Pick.Len()+n) > MaxPicks {
		return r.damaged("more than %d picks", uint64(MaxPicks))
	}
	if err := r.tooLarge(t, uint64(t.Pick.Len()+n), maxMemory); err != nil {
		return err
	}
	from := t.Pick.Len()
	if t.Pick.Object, err = column(r, t.Pick.Object, "objects", n, uint64(t.Objects-1)); err != nil {
		return err
	}
	if t.Pick.Job, err = column(r, t.Pick.Job, "jobs", n, 1<<16-1); err != nil {
		return err
	}
	for i, j := range t.Pick.Job[from:] {
		j = j>>1 | j<<15
		t.Pick.Job[from+i] = j
		if int(j&JobMask) >= len(t.Jobs) {
			return r.damaged("a pick of job %d, there are %d", j&JobMask, len(t.Jobs))
		}
	}
	return nil
}

func (r *reader) moves(t *Trace) error {
	n, err := r.count("the number of events of a chunk")
	if err != nil {
		return err
	}
	ats, err := column(r, []uint64(nil), "times of events", n, MaxPicks)
	if err != nil {
		return err
	}
	objects, err := column(r, []uint32(nil), "objects of events", n, uint64(t.Objects-1))
	if err != nil {
		return err
	}
	kinds, err := column(r, []uint8(nil), "kinds of events", n, uint64(ident.NumForms-1)<<1|1)
	if err != nil {
		return err
	}
	at := uint64(0)
	if k := len(t.Moves); k > 0 {
		at = t.Moves[k-1].At
	}
	for i := range n {
		at += ats[i]
		t.Moves = append(t.Moves, Move{at, objects[i], ident.Form(kinds[i] >> 1), kinds[i]&1 == 1})
	}
	return nil
}

func (r *reader) end(t *Trace, have int) error {
	picks, err := r.uvarint("the number of picks", MaxPicks)
	if err != nil {
		return err
	}
	moves, err := r.uvarint("the number of events", 1<<63-1)
	if err != nil {
		return err
	}
	sized := t.sized()
	if picks != uint64(t.Pick.Len()) || moves != uint64(len(t.Moves)) || sized && have != t.Objects || len(r.rest) > 0 {
		return r.damaged("%d picks and %d events were recorded, %d and %d are there", picks, moves, t.Pick.Len(),
			len(t.Moves))
	}
	if n, _ := r.r.Read(make([]byte, 1)); n > 0 {
		return r.fail(r.at, "keep one trace in a file", "something follows the end of the trace")
	}
	if err := t.Check(); err != nil {
		return r.damaged("%s", errs.From(err).Message)
	}
	return nil
}
