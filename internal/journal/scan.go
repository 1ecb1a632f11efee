package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"slices"
	"strings"

	"larder/internal/errs"
)

// Names of files. Numbers are hexadecimal and of fixed width, so that names sort as the files do.
const (
	markName     = "mark"
	damagedTail  = ".damaged"
	tmpTail      = ".tmp"
	markSize     = 28
	maxOpenFiles = 32 // segments beyond which a snapshot is due
)

func logName(first, term uint64) string { return fmt.Sprintf("log-%016x-%08x", first, term) }
func snapshotName(seq uint64) string    { return fmt.Sprintf("snapshot-%016x", seq) }
func ordersName(n uint64) string        { return fmt.Sprintf("orders-%08x", n) }

// Damage is a place where a state directory does not hold what larder wrote.
type Damage struct {
	File   string // path
	Offset int64  // bytes from its beginning
	What   string
	Newer  bool // written by a newer version: not damaged

	name string
	seq  uint64 // the last sound record before it, in a log
}

// Error names file and offset.
func (d *Damage) Error() string {
	return fmt.Sprintf("%s is damaged at byte %d: %s", d.File, d.Offset, d.What)
}

// fault is what a user sees.
func (d *Damage) fault(dir string) error {
	if d.Newer {
		return errs.New(errs.Unsupported, d.File, "use the larder that wrote it, or another state.dir",
			"open the state directory %s: %s: %s", dir, d.File, d.What)
	}
	return errs.New(errs.StateDamaged, d.File,
		"larder state repair "+dir+" shows and does what can be done; or set state.dir to an empty folder",
		"open the state directory %s", dir).Because(d)
}

// image is what a folder was found to hold.
type image struct {
	fs        FS
	id        uint64
	known     bool // id was read
	fresh     bool // there is nothing
	snapshots []string
	segments  []segment
	orders    []string
	leftover  []string
	mark      mark
	unmarked  bool // there is no mark, or not all of it
	state     *State
	records   int      // replayed after the snapshot
	replayed  int64    // their bytes
	snapBytes int64    // of the snapshot that was used
	tail      string   // the file with a torn tail, "" = none
	good      int64    // what to keep of it
	torn      int64    // bytes to cut
	notes     []string // what is odd and harmless
	buf       []byte   // of the segment that is read: fresh memory costs more than reading
}

type segment struct {
	name        string
	first, term uint64
}

type mark struct {
	id, seq, term uint64
	ok            bool
}

func (m mark) encode() []byte {
	b := make([]byte, markSize)
	binary.LittleEndian.PutUint64(b, m.id)
	binary.LittleEndian.PutUint64(b[8:], m.seq)
	binary.LittleEndian.PutUint64(b[16:], m.term)
	binary.LittleEndian.PutUint32(b[24:], crc32.Checksum(b[:24], castagnoli))
	return b
}

func decodeMark(b []byte) mark {
	if len(b) != markSize || crc32.Checksum(b[:24], castagnoli) != binary.LittleEndian.Uint32(b[24:]) {
		return mark{}
	}
	return mark{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:]), true}
}

// list sorts the files of a folder by what they are.
func list(f FS) (*image, error) {
	names, err := f.List()
	if err != nil {
		return nil, err
	}
	im := &image{fs: f, unmarked: !slices.Contains(names, markName)}
	for _, name := range names {
		var n [2]uint64
		is := func(format string, make func(a, b uint64) string) (ok bool) {
			n, ok = scan(name, format, make)
			return ok
		}
		switch {
		case strings.HasSuffix(name, tmpTail):
			im.leftover = append(im.leftover, name)
		case is("log-%016x-%08x", logName):
			im.segments = append(im.segments, segment{name, n[0], n[1]})
		case is("snapshot-%016x", func(x, _ uint64) string { return snapshotName(x) }):
			im.snapshots = append(im.snapshots, name)
		case is("orders-%08x", func(x, _ uint64) string { return ordersName(x) }):
			im.orders = append(im.orders, name)
		case name == markName:
			raw, err := f.ReadFile(name)
			if err != nil {
				return nil, err
			}
			if im.unmarked = len(raw) != markSize; im.unmarked { // no crash makes it short
				continue
			}
			if im.mark = decodeMark(raw); !im.mark.ok {
				im.notes = append(im.notes, f.Path(name)+" cannot be read: the end of the log is trusted as it is")
			}
		}
	}
	im.fresh = len(im.segments)+len(im.snapshots)+len(im.orders) == 0
	return im, nil
}

// scan reads the numbers of a name; false unless make returns the same name for them.
func scan(name, format string, make func(a, b uint64) string) (n [2]uint64, ok bool) {
	args := []any{&n[0], &n[1]}[:strings.Count(format, "%")]
	_, err := fmt.Sscanf(name, format, args...)
	return n, err == nil && make(n[0], n[1]) == name
}

// load reads a folder: the newest snapshot and the log after it. all reads what is before it, too. The error is a
// *Damage, or one of reading. Nothing is changed.
func load(f FS, all bool) (*image, error) {
	im, err := list(f)
	if err != nil {
		return nil, err
	}
	if im.fresh {
		if im.mark.ok && im.mark.seq > 0 {
			err := im.damage(markName, 0, fmt.Sprintf("it says that %d records were written, and there is no log", im.mark.seq))
			return im, err
		}
		im.state = newState()
		return im, nil
	}
	if im.mark.ok {
		im.id, im.known = im.mark.id, true
	}
	im.state = newState()
	if n := len(im.snapshots); n > 0 {
		if im.state, im.snapBytes, err = im.readSnapshot(im.snapshots[n-1]); err != nil {
			return im, err
		}
	}
	err = im.replay(all)
	if im.buf = nil; err != nil {
		return im, err
	}
	err = im.checkMark()
	return im, err
}

func (im *image) damage(name string, off int64, what string) *Damage {
	d := &Damage{File: im.fs.Path(name), name: name, Offset: off, What: what}
	if im.state != nil {
		d.seq = im.state.Seq
	}
	return d
}

// open reads a file and checks its header.
func (im *image) open(name string, kind fileKind, first uint64) (data []byte, h header, err error) {
	return im.openInto(nil, name, kind, first)
}

// openInto is open into the memory of buf if it suffices.
func (im *image) openInto(
	buf []byte, name string, kind fileKind, first uint64,
) (data []byte, h header, err error) {
	if data, err = im.fs.ReadInto(name, buf); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, h, im.damage(name, 0, "it is gone")
		}
		return nil, h, err
	}
	h, err = decodeHeader(data)
	switch {
	case errors.Is(err, errNewer):
		d := im.damage(name, 0, err.Error())
		d.Newer = true
		return data, h, d
	case err != nil:
		return data, h, im.damage(name, 0, err.Error())
	case h.kind != kind || h.first != first:
		return data, h, im.damage(name, 0, fmt.Sprintf("it holds the %s %d: the file was renamed", h.kind, h.first))
	case im.known && h.id != im.id:
		return data, h, im.damage(name, 0, "it belongs to another state directory")
	}
	im.id, im.known = h.id, true
	return data, h, nil
}

// readSnapshot reads a snapshot into a state of its own.
func (im *image) readSnapshot(name string) (*State, int64, error) {
	var seq uint64
	_, _ = fmt.Sscanf(name, "snapshot-%016x", &seq)
	data, h, err := im.open(name, snapshotFile, seq)
	if err != nil {
		return nil, 0, err
	}
	s := newState()
	s.whole = true // a snapshot holds hardly more than the state
	end := false
	off, err := im.frames(name, data, h, func(e *entry, body []byte) error {
		if end {
			return errors.New("there is more after its end")
		}
		if e == nil {
			end = true
			return nil
		}
		e.Seq = 0
		s.apply(e)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	if !end || off != int64(len(data)) {
		return nil, 0, im.damage(name, off, "it ends early")
	}
	s.Seq, s.Term, s.whole = seq, max(s.Term, h.term), false
	return s, int64(len(data)), nil
}

// frames calls each for the frames of a snapshot or a file of orders, which are numbered from 1; a nil entry is one
// that is not a record.
func (im *image) frames(
	name string, data []byte, h header, each func(e *entry, body []byte) error,
) (off int64, err error) {
	seed := h.seed()
	off = headerSize
	for n := uint64(1); off < int64(len(data)); n++ {
		fh, body, ok := readFrame(data[off:], seed)
		if !ok || fh.seq != n {
			return off, im.damage(name, off, "a record is broken")
		}
		var e *entry
		if len(body) > 0 && body[0] < noRecord {
			v, err := decodeBody(body)
			if err != nil {
				return off, im.damage(name, off, err.Error())
			}
			e = &v
		}
		if err := each(e, body); err != nil {
			return off, im.damage(name, off, err.Error())
		}
		off += headSize + int64(len(body))
	}
	return off, nil
}

// noRecord is the first of the bodies that are no records.
const (
	noRecord = 0xf0
	endBody  = 0xfe // the end of a snapshot
	listBody = 0xfd // the contents of a file of orders
)

// replay applies the log after the snapshot, and finds where it ends.
func (im *image) replay(all bool) error {
	segs := im.segments
	begin := 0
	for i := range segs { // what the snapshot holds is skipped, file by file
		if segs[i].first <= im.state.Seq+1 {
			begin = i
		}
	}
	if len(segs) > 0 && segs[begin].first > im.state.Seq+1 {
		return im.damage(segs[begin].name, 0, fmt.Sprintf("records %d to %d before it are missing", im.state.Seq+1,
			segs[begin].first-1))
	}
	if all {
		for i := range begin {
			old := newState()
			if err := im.readSegment(i, old, segs[i].first); err != nil {
				return err
			}
			// What the snapshot before the newest needs must be whole; what is older is being removed.
			if end := max(old.Seq, segs[i].first-1); segs[i+1].first > im.oldest()+1 && end+1 != segs[i+1].first {
				return im.damage(segs[i].name, 0, fmt.Sprintf("it ends with record %d, and %d should follow, not %d", end, end+1,
					segs[i+1].first))
			}
		}
	}
	next := im.state.Seq + 1
	if begin < len(segs) {
		next = segs[begin].first
	}
	for i := begin; i < len(segs); i++ {
		if segs[i].first != next {
			return im.damage(segs[i].name, 0, fmt.Sprintf("it begins with record %d, and %d should follow", segs[i].first, next))
		}
		if i > 0 && segs[i].term < segs[i-1].term {
			return im.damage(segs[i].name, 0, "it is older than the one before it")
		}
		if err := im.readSegment(i, im.state, next); err != nil {
			return err
		}
		next = max(next, im.state.Seq+1)
	}
	return nil
}

// oldest is the last record in the snapshot before the newest, 0 when there is only one. What is older is being
// removed.
func (im *image) oldest() (seq uint64) {
	if n := len(im.snapshots); n > 1 {
		_, _ = fmt.Sscanf(im.snapshots[n-2], "snapshot-%016x", &seq)
	}
	return seq
}

// readSegment applies the records of a segment from next on to s; a torn end of the last one is noted.
func (im *image) readSegment(i int, s *State, next uint64) error {
	g, last := im.segments[i], i == len(im.segments)-1
	data, h, err := im.openInto(im.buf, g.name, logFile, g.first)
	if im.buf = data; err != nil {
		// Its header was not synced when the machine stopped; then nothing was written to it.
		if d := (*Damage)(nil); last && errors.As(err, &d) && !d.Newer && len(data) <= headerSize &&
			d.What == errHeader.Error() {
			im.tail, im.good, im.torn = g.name, -1, int64(len(data))
			return nil
		}
		return err
	}
	if h.term != g.term {
		return im.damage(g.name, 0, "the file was renamed")
	}
	s.Term = max(s.Term, h.term)
	seed, off := h.seed(), int64(headerSize)
	for off < int64(len(data)) {
		fh, body, ok := readFrame(data[off:], seed)
		if !ok || fh.seq != next {
			if !ok && last && !im.durableAfter(data[off+1:], seed, next) {
				im.tail, im.good, im.torn = g.name, off, int64(len(data))-off
				return nil
			}
			if ok {
				return im.damage(g.name, off, fmt.Sprintf("it holds record %d, and %d should follow", fh.seq, next))
			}
			return im.damage(g.name, off, fmt.Sprintf("record %d is broken, and records were written after it", next))
		}
		e, err := decodeBody(body)
		if err == nil && e.Term != h.term {
			err = fmt.Errorf("record %d is of term %d in a log of term %d", next, e.Term, h.term)
		}
		if err != nil {
			return im.damage(g.name, off, err.Error())
		}
		if next > s.Seq {
			e.Seq = next
			s.apply(&e)
			im.records++
			im.replayed += headSize + int64(len(body))
		}
		off += headSize + int64(len(body))
		next++
	}
	return nil
}

// durableAfter looks for a sound frame that was written when record seq was durable already.
func (im *image) durableAfter(b []byte, seed uint32, seq uint64) bool {
	for ; len(b) >= headSize; b = b[1:] {
		n := binary.LittleEndian.Uint64(b[8:])
		if n <= seq || n-seq > uint64(len(b)) { // nearly every offset ends here
			continue
		}
		if h, _, ok := readFrame(b, seed); ok && h.seq-min(uint64(h.ahead), h.seq) >= seq {
			return true
		}
	}
	return false
}

// checkMark compares the end of the log with what was known to be durable.
func (im *image) checkMark() error {
	// it is there before the first record
	if im.unmarked && (im.state.Seq > 0 || im.state.Term > 1 || len(im.orders) > 0) {
		return im.damage(markName, 0, "it is missing or cut short: was the folder copied whole?")
	}
	if !im.mark.ok {
		return nil
	}
	name, off := markName, int64(0)
	if im.tail != "" {
		name, off = im.tail, max(im.good, 0)
	} else if n := len(im.segments); n > 0 {
		name = im.segments[n-1].name
		off, _ = im.fs.Size(name)
	}
	if im.tail != "" && im.good < 0 { // a term began, and its file has no header
		im.state.Term = max(im.state.Term, im.mark.term)
	}
	switch {
	case im.mark.seq > im.state.Seq:
		return im.damage(name, off, fmt.Sprintf("the log ends with record %d, and records up to %d were durable",
			im.state.Seq, im.mark.seq))
	case im.mark.term > im.state.Term && im.tail == "":
		return im.damage(name, off, fmt.Sprintf("the log ends with term %d, and term %d had begun", im.state.Term,
			im.mark.term))
	}
	return nil
}

// readContents returns where the orders of a file are.
func (im *image) readContents(name string) (h header, data []byte, list []content, err error) {
	var n uint64
	_, _ = fmt.Sscanf(name, "orders-%08x", &n)
	data, h, err = im.open(name, ordersFile, n)
	if err != nil {
		return h, data, nil, err
	}
	first := true
	off, err := im.frames(name, data, h, func(e *entry, body []byte) error {
		if first != (e == nil) {
			return errors.New("its contents are not where they should be")
		}
		first = false
		if e == nil {
			list, err = decodeContents(body)
		}
		return err
	})
	if err == nil && (first || off != int64(len(data)) || len(list) > 0 && list[len(list)-1].end() != uint64(off)) {
		err = im.damage(name, off, "it ends early")
	}
	return h, data, list, err
}

// content says where the order of a job-epoch is in a file.
type content struct{ job, epoch, off, size, first uint64 } // first: the number of its first frame

func (c content) end() uint64 { return c.off + c.size }

func encodeContents(list []content) []byte {
	b := binary.AppendUvarint([]byte{listBody}, uint64(len(list)))
	for _, c := range list {
		// fixed width: offsets depend on the length of this
		for _, v := range [...]uint64{c.job, c.epoch, c.off, c.size, c.first} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	return b
}

func decodeContents(b []byte) ([]content, error) {
	bad := errors.New("its contents cannot be read")
	if len(b) < 1 || b[0] != listBody {
		return nil, bad
	}
	n, k := binary.Uvarint(b[1:])
	if k <= 0 || n > uint64(len(b)/40) || uint64(len(b)) != uint64(1+k)+n*40 {
		return nil, bad
	}
	b = b[1+k:]
	out := make([]content, n)
	for i := range out {
		u := func(j int) uint64 { return binary.LittleEndian.Uint64(b[i*40+j*8:]) }
		out[i] = content{u(0), u(1), u(2), u(3), u(4)}
		if out[i].end() < out[i].off || i > 0 && out[i].off != out[i-1].end() {
			return nil, bad
		}
	}
	return slices.Clip(out), nil
}
