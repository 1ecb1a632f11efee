package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"larder/internal/ident"
)

// tidy puts the orders of epochs that are over into a file, writes a snapshot, and removes what both make needless. s
// is the state after the last record of a segment; it is tidy's own. It runs beside the writer, which continues with
// the next one.
func (d *Disk) tidy(s *State) {
	err := d.fileOrders(s)
	if err == nil {
		err = d.snapshot(s)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.tidying, d.mu.hold = false, 0
	if isFull(err) { // the log continues; what was to be tidied is tidied later
		d.mu.since = max(d.options.SnapshotBytes, d.mu.snap) - reserveStep
		d.mu.hold, err = d.mu.since+reserveStep, nil
	}
	if err != nil && d.mu.broken == nil {
		d.mu.broken = failed(d.fs, err, "write a snapshot to it")
	}
}

// fileOrders writes the orders of closed epochs to a file of their own and drops the oldest files beyond the retention.
func (d *Disk) fileOrders(s *State) error {
	n := len(s.closed)
	if n == 0 {
		return nil
	}
	d.mu.Lock()
	number := d.mu.nextFile
	d.mu.nextFile++
	d.mu.Unlock()
	name := ordersName(number)
	if d.options.OrderBytes > 0 {
		b := encodeOrders(header{kind: ordersFile, id: d.id, first: number, term: d.term},
			newestOf(s.closed, d.options.OrderBytes))
		if err := d.put(name, b); err != nil {
			return err
		}
		d.mu.Lock()
		d.mu.orders = append(d.mu.orders, name)
		d.mu.sizes[name] = int64(len(b))
		d.mu.Unlock()
	}
	s.filed(n)
	d.mu.Lock()
	d.mu.state.filed(n)
	var all int64
	for _, o := range d.mu.orders {
		all += d.mu.sizes[o]
	}
	var gone []string
	for len(d.mu.orders) > 1 && all > d.options.OrderBytes || len(d.mu.orders) > 0 && d.options.OrderBytes < 0 {
		o := d.mu.orders[0]
		all -= d.mu.sizes[o]
		delete(d.mu.sizes, o)
		d.mu.orders = d.mu.orders[1:]
		gone = append(gone, o)
	}
	d.mu.Unlock()
	return d.remove(gone)
}

// newestOf leaves out the oldest epochs, of which the retention would leave nothing: on a disk that was full for long
// they would need much room.
func newestOf(closed []closedEpoch, limit int64) []closedEpoch {
	size := int64(0)
	for i, c := range slices.Backward(closed) {
		for k := range c.Batches {
			size += int64(len(c.Batches[k].packed))
		}
		if size > limit && i < len(closed)-1 {
			return closed[i+1:]
		}
	}
	return closed
}

// snapshot writes s, and removes the snapshot before the last one and the log that only it needed: two generations
// stay, so that a damaged snapshot can be done without.
func (d *Disk) snapshot(s *State) error {
	b := encodeSnapshot(header{kind: snapshotFile, id: d.id, first: s.Seq, term: d.term}, s)
	name := snapshotName(s.Seq)
	if err := d.put(name, b); err != nil {
		return err
	}
	d.mu.Lock()
	d.mu.snap = int64(len(b))
	if k := len(d.mu.snapshots); k == 0 || d.mu.snapshots[k-1] != name {
		d.mu.snapshots = append(d.mu.snapshots, name)
	}
	var gone []string
	var oldest uint64 // what the log must reach back to
	for len(d.mu.snapshots) > 2 {
		gone = append(gone, d.mu.snapshots[0])
		d.mu.snapshots = d.mu.snapshots[1:]
	}
	if len(d.mu.snapshots) == 2 {
		_, _ = fmt.Sscanf(d.mu.snapshots[0], "snapshot-%016x", &oldest)
	}
	for len(d.mu.files) > 1 && d.mu.files[1].first <= oldest+1 {
		gone = append(gone, d.mu.files[0].name)
		d.mu.files = d.mu.files[1:]
	}
	d.mu.Unlock()
	return d.remove(gone)
}

// put writes a file whole: it is there with all its bytes, or not at all.
func (d *Disk) put(name string, b []byte) error {
	err := putFile(d.fs, name, b)
	if isFull(err) {
		if rerr := d.dropPartial(name); rerr != nil {
			return rerr
		}
	}
	return err
}

func putFile(fs FS, name string, b []byte) error {
	f, err := fs.Create(name+tmpTail, false)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Truncate(int64(len(b)))
	}
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fs.Rename(name+tmpTail, name); err != nil {
		return err
	}
	return synced(fs.Sync())
}

func (d *Disk) remove(names []string) error {
	for _, name := range names {
		if err := d.fs.Remove(name); err != nil {
			return err
		}
	}
	return nil
}

func encodeSnapshot(h header, s *State) []byte {
	b, seed, n := h.encode(), h.seed(), uint64(0)
	s.entries(func(e *entry) bool {
		n++
		from := len(b)
		b = appendBody(openFrame(b), e)
		sealFrame(b[from:], seed, n, n)
		return true
	})
	from := len(b)
	b = append(openFrame(b), endBody)
	sealFrame(b[from:], seed, n+1, n+1)
	return b
}

// encodeOrders writes a list of contents and the records of each epoch.
func encodeOrders(h header, closed []closedEpoch) []byte {
	list := make([]content, len(closed))
	seed := h.seed()
	b := append(openFrame(h.encode()), encodeContents(list)...)
	body := len(b)
	n := uint64(1)
	for i, c := range closed {
		list[i] = content{job: uint64(c.job), epoch: uint64(c.Epoch), off: uint64(len(b)), first: n + 1}
		putEpoch(func(e entry) {
			n++
			from := len(b)
			b = appendBody(openFrame(b), &e)
			sealFrame(b[from:], seed, n, n)
		}, c.job, c.EpochState)
		list[i].size = uint64(len(b)) - list[i].off
	}
	copy(b[headerSize+headSize:], encodeContents(list))
	sealFrame(b[headerSize:body:body], seed, 1, 1)
	return b
}

// findOrder looks for a job-epoch of an instance in files of orders, the newest first.
func (im *image) findOrder(files []string, job ident.JobID, epoch uint32, instance int64) (*EpochState, error) {
	for _, name := range slices.Backward(files) {
		h, list, err := im.contents(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it went over the retention meanwhile
		}
		if err != nil {
			return nil, err
		}
		for _, c := range slices.Backward(list) {
			if c.job != uint64(job) || c.epoch != uint64(epoch) {
				continue
			}
			if o, err := im.readOrder(name, h, c); err != nil || o != nil && o.is(epoch, instance) {
				return o, err
			}
		}
	}
	return nil, nil
}

// contents reads the beginning of a file of orders.
func (im *image) contents(name string) (header, []content, error) {
	var n uint64
	_, _ = fmt.Sscanf(name, "orders-%08x", &n)
	b := make([]byte, 1<<16)
	k, err := im.fs.ReadAt(name, b, 0)
	if err != nil {
		return header{}, nil, err
	}
	b = b[:k]
	h, err := decodeHeader(b)
	if err != nil || h.kind != ordersFile || h.first != n || h.id != im.id {
		return h, nil, im.damage(name, 0, errHeader.Error())
	}
	if len(b) >= headerSize+headSize {
		if size := headerSize + headSize + int64(binary.LittleEndian.Uint32(b[headerSize+4:])); size > int64(len(b)) &&
			size <= maxBody {
			b = make([]byte, size)
			if k, err = im.fs.ReadAt(name, b, 0); err != nil {
				return h, nil, err
			}
			b = b[:k]
		}
	}
	_, body, ok := readFrame(b[min(headerSize, len(b)):], h.seed())
	if !ok {
		return h, nil, im.damage(name, headerSize, "its contents cannot be read")
	}
	list, err := decodeContents(body)
	if err != nil {
		return h, nil, im.damage(name, headerSize, err.Error())
	}
	return h, list, nil
}

func (im *image) readOrder(name string, h header, c content) (*EpochState, error) {
	size, err := im.fs.Size(name)
	if err != nil {
		return nil, err
	}
	if c.end() > uint64(size) {
		return nil, im.damage(name, size, "it ends early")
	}
	b := make([]byte, c.size)
	if k, err := im.fs.ReadAt(name, b, int64(c.off)); err != nil || k != len(b) {
		return nil, errors.Join(err, im.damage(name, size, "it ends early"))
	}
	s, seed := newState(), h.seed()
	for off, n := 0, c.first; off < len(b); n++ {
		fh, body, ok := readFrame(b[off:], seed)
		if !ok || fh.seq != n {
			return nil, im.damage(name, int64(c.off)+int64(off), "a record is broken")
		}
		e, err := decodeBody(body)
		if err != nil {
			return nil, im.damage(name, int64(c.off)+int64(off), err.Error())
		}
		s.apply(&e)
		off += headSize + len(body)
	}
	return s.order(ident.JobID(c.job), uint32(c.epoch), AnyInstance), nil
}
