package source

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// What a format noted of each file when it looked for the fields of samples, beside the saved index;
// docs/format/index.md describes the bytes. It is a cache: a file without a note, or that is not what it was, is looked
// at again. So one that was added or has grown costs a look at it alone, also where fields follow from all lines of all
// files.
const (
	notesMagic   = "LARDERLK"
	notesVersion = 1
	notesSuffix  = ".larderlook"
)

// lookNotes are the notes of the files of a root. nil keeps none. get and set may be called from any goroutine.
type lookNotes struct {
	path, uri string
	log       *slog.Logger

	mu      sync.Mutex          // guards what follows
	of      map[string]*noteRow // by the path of a file that is there
	changed bool                // they are not what is saved
}

// noteRow is the note of a file as it was then; "" = there is none.
type noteRow struct {
	rel  string
	st   fileMeta
	note string
}

// lookNotes are those of a root; nil = nothing is kept.
func (c *Catalog) lookNotes(rs *rootState) *lookNotes {
	if c.cfg.IndexDir == "" || rs.format == nil {
		return nil
	}
	return &lookNotes{path: c.notesPath(rs.key()), uri: rs.key(), log: c.log}
}

func (c *Catalog) notesPath(key string) string {
	return filepath.Join(c.cfg.IndexDir, strings.TrimSuffix(indexName(key, 0), indexSuffix)+notesSuffix)
}

// removeNotes deletes the notes of a root, and returns their size.
func (c *Catalog) removeNotes(key string) int64 {
	if c.cfg.IndexDir == "" {
		return 0
	}
	path := c.notesPath(key)
	fi, err := os.Lstat(path)
	if err != nil || os.Remove(path) != nil { // what is left is of no use, and does no harm
		return 0
	}
	return fi.Size()
}

// open reads the notes of files that are as they were. anew = none of them counts.
func (n *lookNotes) open(rs *rootState, rows []scanned, anew bool) {
	if n == nil {
		return
	}
	n.of = make(map[string]*noteRow, len(rows))
	byRel := make(map[string]*noteRow, len(rows))
	for i := range rows {
		r := &noteRow{rel: rows[i].rel, st: rows[i].st}
		n.of[rs.inPlace(r.rel)], byRel[r.rel] = r, r
	}
	if anew {
		return
	}
	b, err := os.ReadFile(n.path)
	if err != nil {
		return
	}
	was, err := decodeNotes(b, n.uri)
	if err != nil {
		return
	}
	for i := range was {
		if r := byRel[was[i].rel]; r != nil && r.st == was[i].st {
			r.note = was[i].note
		}
	}
}

// get is the note of a file; nil = there is none.
func (n *lookNotes) get(path string) []byte {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if r := n.of[path]; r != nil && r.note != "" {
		return []byte(r.note)
	}
	return nil
}

// set notes something of a file.
func (n *lookNotes) set(path string, note []byte) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if r := n.of[path]; r != nil {
		r.note, n.changed = string(note), true
	}
}

// save writes the file. Without it files are looked at again.
func (n *lookNotes) save() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.changed {
		return
	}
	n.changed = false
	if err := writeAside(n.path, encodeNotes(n.uri, n.of)); err != nil {
		n.log.Warn("what was noted of the fields of files was not saved; the next index looks at all of them again",
			"dataset", printable(n.uri), "error", err)
	}
}

// encodeNotes writes notes; those that are equal once.
func encodeNotes(uri string, rows map[string]*noteRow) []byte {
	w := &indexWriter{make([]byte, indexHeader, indexHeader+64*len(rows)+256)}
	copy(w.b, notesMagic)
	binary.LittleEndian.PutUint32(w.b[8:], notesVersion)
	w.str(uri)
	paths := slices.Sorted(maps.Keys(rows))
	at := map[string]uint64{}
	var notes []string
	var there []*noteRow
	for _, path := range paths {
		r := rows[path]
		if r.note == "" {
			continue
		}
		there = append(there, r)
		if _, ok := at[r.note]; !ok {
			at[r.note] = uint64(len(notes))
			notes = append(notes, r.note)
		}
	}
	w.uvarints(uint64(len(notes)))
	for _, note := range notes {
		w.str(note)
	}
	w.uvarints(uint64(len(there)))
	for _, r := range there {
		w.str(r.rel)
		w.uvarints(r.st.dev, r.st.ino, uint64(r.st.size))
		w.varints(r.st.mtime)
		w.uvarints(at[r.note])
	}
	binary.LittleEndian.PutUint64(w.b[16:], uint64(len(w.b)-indexHeader))
	return binary.LittleEndian.AppendUint64(w.b, xxhash.Sum64(w.b))
}

// decodeNotes reads what encodeNotes wrote for a root, and nothing else.
func decodeNotes(b []byte, uri string) ([]noteRow, error) {
	switch {
	case len(b) < indexHeader+8 || string(b[:8]) != notesMagic || binary.LittleEndian.Uint32(b[8:]) != notesVersion ||
		binary.LittleEndian.Uint32(b[12:]) != 0:
		return nil, errors.New("they are no notes")
	case binary.LittleEndian.Uint64(b[16:]) != uint64(len(b)-indexHeader-8):
		return nil, errors.New("they are cut off")
	case binary.LittleEndian.Uint64(b[len(b)-8:]) != xxhash.Sum64(b[:len(b)-8]):
		return nil, errors.New("their checksum is wrong")
	}
	r := &indexReader{b: b[indexHeader : len(b)-8]}
	if owner := r.str(); owner != uri {
		return nil, fmt.Errorf("they are of %q", printable(owner))
	}
	notes := make([]string, r.count("notes", 1))
	for i := range notes {
		notes[i] = r.str()
	}
	rows := make([]noteRow, r.count("files", 6))
	for i := range rows {
		row := &rows[i]
		row.rel = r.str()
		row.st = fileMeta{dev: r.uvarint(), ino: r.uvarint(), size: r.nonNegative("a size"), mtime: r.varint()}
		k := r.uvarint()
		if k >= uint64(len(notes)) {
			r.fail("note %d of %d", k, len(notes))
			break
		}
		row.note = notes[k]
	}
	if r.err == nil && len(r.b) > 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	return rows, r.err
}
