package lmdb

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The format (liblmdb/mdb.c, LMDB 0.9): pages of one size, each with a header of 16 bytes: u64 number, u16 pad, u16
// flags, u16 lower, u16 upper. The first two are meta pages.
const (
	pageHead = 16
	metaSize = 136
	magic    = 0xBEEFC0DE
	version  = 1

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagOverflow = 0x04
	flagMeta     = 0x08

	nodeHead = 8
	nodeBig  = 0x01 // the value lies on overflow pages
	nodeSub  = 0x02 // the value is a database
	nodeDup  = 0x04 // the values of one key

	dbReverseKey = 0x02
	dbDupSort    = 0x04
	dbIntegerKey = 0x08

	noPage   = ^uint64(0)
	maxDepth = 32 // that of LMDB's own cursors
	minPage  = 512
	maxPage  = 65536
	maxValue = 1 << 31
)

var le = binary.LittleEndian

// DB is one database of an environment.
type DB struct {
	r       io.ReaderAt
	size    int64 // of the file, bytes
	page    int64 // bytes of a page
	last    uint64
	root    uint64
	flags   uint16
	entries uint64
	txn     uint64
}

// Entries counts the keys that the database says it has.
func (d *DB) Entries() uint64 { return d.entries }

// Txn is the number of the transaction whose state is read.
func (d *DB) Txn() uint64 { return d.txn }

// Open reads the newest intact meta page of a data.mdb of size bytes. name is a named database; "" is the main one.
func Open(ctx context.Context, r io.ReaderAt, size int64, name string) (*DB, error) {
	d, err := openMain(r, size)
	if err != nil {
		return nil, err
	}
	if d.last < 1 || d.last >= uint64(size/d.page) {
		return nil, fmt.Errorf("its last page is %d of %d bytes, and the file has %d bytes: it is cut", d.last, d.page, size)
	}
	if err := d.check(); err != nil || name == "" {
		return d, err
	}
	var sub []byte
	found := false
	err = d.walk(ctx, func(n *node) error {
		if string(n.key) != name {
			return nil
		}
		if n.flags&nodeSub == 0 || len(n.value) != 48 {
			return fmt.Errorf("%q is a key with a value, not a database", name)
		}
		sub, found = bytes.Clone(n.value), true
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("it has no database %q", name)
	}
	d.use(sub)
	if err := d.check(); err != nil {
		return nil, err
	}
	return d, nil
}

func openMain(r io.ReaderAt, size int64) (*DB, error) {
	first, err0 := readMeta(r, size, 0, 0)
	page := int64(0)
	if err0 == nil {
		page = first.page
	} else {
		page = 4096 // the usual size: the second page may be whole
	}
	second, err1 := readMeta(r, size, page, 1)
	switch {
	case err0 != nil && err1 != nil:
		return nil, fmt.Errorf("neither meta page is one of LMDB 0.9: %w", err0)
	case err0 != nil:
		return second, nil
	case err1 != nil, first.txn >= second.txn:
		return first, nil
	case second.page != first.page:
		return nil, fmt.Errorf("its meta pages say pages of %d and of %d bytes", first.page, second.page)
	}
	return second, nil
}

// readMeta reads the meta page at an offset.
func readMeta(r io.ReaderAt, size, off int64, number uint64) (*DB, error) {
	var b [pageHead + metaSize]byte
	if off+int64(len(b)) > size {
		return nil, fmt.Errorf("%d bytes are too few", size)
	}
	if err := readAt(r, b[:], off); err != nil {
		return nil, err
	}
	m := b[pageHead:]
	switch {
	case le.Uint32(m) != magic:
		return nil, fmt.Errorf("at byte %d it has %#x instead of LMDB's %#x", off+pageHead, le.Uint32(m), uint32(magic))
	case le.Uint32(m[4:]) != version:
		return nil, fmt.Errorf("version %d of the file, larder reads %d; copy it with mdb_dump and mdb_load of LMDB 0.9",
			le.Uint32(m[4:]), version)
	case le.Uint64(b[:]) != number || le.Uint16(b[10:])&flagMeta == 0:
		return nil, fmt.Errorf("at byte %d is no meta page %d", off, number)
	}
	d := &DB{r: r, size: size, page: int64(le.Uint32(m[24:])), last: le.Uint64(m[120:]), txn: le.Uint64(m[128:])}
	if d.page < minPage || d.page > maxPage || d.page&(d.page-1) != 0 {
		return nil, fmt.Errorf("pages of %d bytes", d.page)
	}
	d.use(m[24+48 : 24+96])
	return d, nil
}

// use takes the description of a database (MDB_db): u32 pad, u16 flags, u16 depth, u64 branch, leaf and overflow pages,
// u64 entries, u64 root.
func (d *DB) use(b []byte) {
	d.flags, d.entries, d.root = le.Uint16(b[4:]), le.Uint64(b[32:]), le.Uint64(b[40:])
}

// check says what is wrong with the description of a database.
func (d *DB) check() error {
	switch {
	case d.flags&dbDupSort != 0:
		return errors.New("the database keeps several values for a key (dupsort), which larder does not read")
	case d.root != noPage && (d.root < 2 || d.root > d.last):
		return fmt.Errorf("its root is page %d of %d", d.root, d.last)
	case d.root == noPage && d.entries != 0:
		return fmt.Errorf("it has %d entries and no root", d.entries)
	}
	return nil
}

func readAt(r io.ReaderAt, b []byte, off int64) error {
	if n, err := r.ReadAt(b, off); n < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("read %d bytes at %d: %w", len(b), off, err)
	}
	return nil
}

// node is one entry of a leaf.
type node struct {
	key   []byte // valid during a call
	value []byte // nil = on overflow pages
	off   int64  // of the value in the file
	size  int64
	flags uint16
}

// Each calls f for every key in order. key is valid during the call; off and size say where the value lies in the file.
// Databases in the main database are left out, and counted.
func (d *DB) Each(ctx context.Context, f func(key []byte, off, size int64) error) (databases int, err error) {
	n := uint64(0)
	var before []byte
	err = d.walk(ctx, func(x *node) error {
		if n > 0 && !d.less(before, x.key) {
			return fmt.Errorf("key %q comes after %q, which is not their order", x.key, before)
		}
		before = append(before[:0], x.key...)
		n++
		if x.flags&nodeSub != 0 {
			databases++
			return nil
		}
		return f(x.key, x.off, x.size)
	})
	if err == nil && n != d.entries {
		err = fmt.Errorf("it has %d keys, and says %d", n, d.entries)
	}
	return databases, err
}

// less reports whether a key comes before another one.
func (d *DB) less(a, b []byte) bool {
	switch {
	case d.flags&(dbIntegerKey|dbReverseKey) == 0:
		return bytes.Compare(a, b) < 0
	case d.flags&dbIntegerKey != 0 && len(a) != len(b):
		return false
	}
	for i, j := len(a)-1, len(b)-1; i >= 0 && j >= 0; i, j = i-1, j-1 {
		if a[i] != b[j] {
			return a[i] < b[j]
		}
	}
	return len(a) < len(b)
}

// walker reads the tree of a database from left to right.
type walker struct {
	*DB
	ctx   context.Context
	seen  []uint64 // bits of pages that were read
	pages int
	each  func(*node) error
}

func (d *DB) walk(ctx context.Context, each func(*node) error) error {
	if d.root == noPage {
		return nil
	}
	w := &walker{DB: d, ctx: ctx, seen: make([]uint64, d.last/64+1), each: each}
	return w.visit(d.root, 0)
}

// mark notes that a page was read; it is an error if it was read before.
func (w *walker) mark(page uint64) error {
	if page < 2 || page > w.last {
		return fmt.Errorf("page %d lies outside of pages 2 to %d", page, w.last)
	}
	if w.seen[page/64]&(1<<(page%64)) != 0 {
		return fmt.Errorf("page %d is reached twice: the file is damaged, or a writer changed it meanwhile", page)
	}
	w.seen[page/64] |= 1 << (page % 64)
	return nil
}

// visit reads a page and all below it.
func (w *walker) visit(number uint64, depth int) error {
	if depth >= maxDepth {
		return fmt.Errorf("page %d lies deeper than %d pages", number, maxDepth)
	}
	if err := w.mark(number); err != nil {
		return err
	}
	if w.pages++; w.pages&63 == 0 && w.ctx.Err() != nil {
		return w.ctx.Err()
	}
	b := make([]byte, w.page)
	if err := readAt(w.r, b, int64(number)*w.page); err != nil {
		return err
	}
	if le.Uint64(b) != number {
		return fmt.Errorf("page %d calls itself %d", number, le.Uint64(b))
	}
	flags, lower, upper := le.Uint16(b[10:]), int64(le.Uint16(b[12:])), int64(le.Uint16(b[14:]))
	if lower < pageHead || lower&1 != 0 || upper < lower || upper > w.page {
		return fmt.Errorf("page %d has free space from %d to %d", number, lower, upper)
	}
	branch := flags&flagBranch != 0
	if known := flags & 0x6f; known != flagBranch && known != flagLeaf {
		return fmt.Errorf("page %d has the flags %#x, neither a branch's nor a leaf's", number, flags)
	}
	for i := int64(0); i < (lower-pageHead)/2; i++ {
		at := int64(le.Uint16(b[pageHead+2*i:]))
		if at < upper || at+nodeHead > w.page {
			return fmt.Errorf("page %d: entry %d lies at %d", number, i, at)
		}
		var err error
		if branch {
			err = w.child(b, at, depth)
		} else {
			err = w.leaf(b, at, int64(number)*w.page)
		}
		if err != nil {
			return fmt.Errorf("page %d, entry %d: %w", number, i, err)
		}
	}
	return nil
}

// child visits the page that an entry of a branch names: its number is in the words of size and flags.
func (w *walker) child(b []byte, at int64, depth int) error {
	number := uint64(le.Uint16(b[at:])) | uint64(le.Uint16(b[at+2:]))<<16 | uint64(le.Uint16(b[at+4:]))<<32
	return w.visit(number, depth+1)
}

// leaf reads an entry: u32 size, u16 flags, u16 size of the key, the key, the value or the number of its first page.
func (w *walker) leaf(b []byte, at, base int64) error {
	x := node{size: int64(le.Uint32(b[at:])), flags: le.Uint16(b[at+4:])}
	keyEnd := at + nodeHead + int64(le.Uint16(b[at+6:]))
	if keyEnd > w.page || keyEnd == at+nodeHead {
		return fmt.Errorf("a key of %d bytes", keyEnd-at-nodeHead)
	}
	x.key = b[at+nodeHead : keyEnd]
	if x.flags&nodeDup != 0 {
		return fmt.Errorf("key %q has several values (dupsort)", x.key)
	}
	if x.flags&nodeBig == 0 {
		if x.size > w.page-keyEnd {
			return fmt.Errorf("key %q has a value of %d bytes beyond its page", x.key, x.size)
		}
		x.value, x.off = b[keyEnd:keyEnd+x.size], base+keyEnd
		return w.each(&x)
	}
	if keyEnd+8 > w.page {
		return fmt.Errorf("key %q has no page for its value", x.key)
	}
	first := le.Uint64(b[keyEnd:])
	count := uint64((pageHead + x.size + w.page - 1) / w.page)
	if x.size > maxValue || first < 2 || first > w.last || count > w.last-first+1 {
		return fmt.Errorf("key %q has a value of %d bytes on page %d of %d", x.key, x.size, first, w.last)
	}
	for p := first; p < first+count; p++ {
		if err := w.mark(p); err != nil {
			return err
		}
	}
	var head [pageHead]byte
	x.off = int64(first)*w.page + pageHead
	if err := readAt(w.r, head[:], x.off-pageHead); err != nil {
		return err
	}
	if le.Uint64(head[:]) != first || le.Uint16(head[10:])&flagOverflow == 0 || uint64(le.Uint32(head[12:])) < count {
		return fmt.Errorf("key %q: page %d does not begin a value of %d pages", x.key, first, count)
	}
	if x.off+x.size > w.size {
		return fmt.Errorf("key %q: its value ends at byte %d of %d: the file is cut", x.key, x.off+x.size, w.size)
	}
	return w.each(&x)
}
