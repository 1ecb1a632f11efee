package packed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"larder/internal/record"
	"larder/internal/spool"
)

// tokens are files of token ids, of which windows of seq_len+1 are the samples: .bin as nanoGPT writes (ids alone) and
// llm.c (a header of 1 KiB first), .bin with an .idx beside it as Megatron writes, and .npy. A window begins every
// stride ids, and runs on over the borders of documents; with ?doc= a second field says which document each id is of.
// With ?borders= windows stop at documents, or hold whole ones (tokendocs.go).
type tokens struct{ identity }

const (
	defaultSeqLen = 1024
	maxSeqLen     = 1 << 24
	tokensName    = "tokens"
	docName       = "doc"
	megatronDocs  = "idx" // ?doc=idx: borders are those of the .idx file
)

// ShortFiles is the kind of files that hold not one window.
const ShortFiles = "files shorter than a window"

func (tokens) Scheme() string { return "tokens" }

// docID accepts the id that ends a document, or idx.
func docID(value string) error {
	if value != megatronDocs && number(0, math.MaxUint32)(value) != nil {
		return errors.New("neither the id that ends a document, 0 to 4294967295, nor idx")
	}
	return nil
}

func (tokens) Files(a Address) (files, beside []string, err error) {
	if files, err = filesOf(a, suffixesOf("tokens")...); err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		idx, ok := indexBeside(f)
		if !ok {
			continue
		}
		is, err := a.exists(idx)
		if err != nil {
			return nil, nil, err
		}
		if is {
			beside = append(beside, idx)
		}
	}
	return files, beside, nil
}

// indexBeside is where Megatron puts the index of a .bin file.
func indexBeside(path string) (string, bool) {
	base, ok := strings.CutSuffix(path, ".bin")
	return base + ".idx", ok
}

// tokenFile is a file of ids.
type tokenFile struct {
	kind  string // for messages
	dtype record.DType
	swap  bool
	at    int64   // of the first id, bytes
	n     int64   // ids
	docs  []int64 // where documents begin, ids; only of Megatron's with ?doc=idx
	slice int64   // ids from one window to the next
	each  int64   // ids of a window

	eos     uint64 // ends a document, if docs is nil
	borders string // what windows do at documents; "" = they run on
	pad     uint64
}

// windows counts them.
func (t *tokenFile) windows() int64 {
	if t.n < t.each {
		return 0
	}
	return (t.n-t.each)/t.slice + 1
}

// tokenTypes are the dtypes that ids may have.
var tokenTypes = []record.DType{record.Uint16, record.Uint32, record.Int32, record.Int64, record.Uint8, record.Uint64,
	record.Int16, record.Int8}

// numberOf is an argument, which ParseAddress has checked; def without it.
func numberOf(a Address, key string, def int64) int64 {
	if n, err := strconv.ParseInt(a.Args[key], 10, 64); err == nil {
		return n
	}
	return def
}

// openTokens looks at what a file is. beside opens its index.
func openTokens(a Address, path string, r io.ReaderAt, size int64, beside func(string) (Other, error)) (
	*tokenFile, error,
) {
	t := &tokenFile{each: numberOf(a, "seq_len", defaultSeqLen) + 1}
	t.slice = numberOf(a, "stride", t.each-1)
	asked, _ := tokenType(a.Args["dtype"])
	var err error
	idx, isBin := indexBeside(path)
	switch {
	case !isBin:
		err = t.npy(r, size)
	default:
		var f Other
		if f, err = openIndex(idx, beside); err != nil {
			return nil, fmt.Errorf("open %s: %w", idx, err)
		}
		if f != nil {
			defer f.Close()
			err = t.megatron(f, size, a.Args["doc"] == megatronDocs)
			if err != nil {
				err = fmt.Errorf("%s: %w", idx, err)
			}
			break
		}
		err = t.bin(r, size, asked)
	}
	if err != nil {
		return nil, err
	}
	if a.Args["dtype"] != "" && t.dtype != asked {
		return nil, fmt.Errorf("it is %s of %s, and the uri says ?dtype=%s", t.kind, t.dtype, asked)
	}
	if a.Args["doc"] == megatronDocs && t.docs == nil {
		return nil, errors.New("it has no .idx of Megatron beside it, which ?doc=idx needs; give the id that ends a document")
	}
	t.eos = uint64(numberOf(a, "doc", 0))
	if err := t.checkBorders(a); err != nil {
		return nil, err
	}
	return t, nil
}

// openIndex opens what is beside a file; nil = nothing is.
func openIndex(path string, beside func(string) (Other, error)) (Other, error) {
	f, err := beside(path)
	if isMissing(err) {
		return nil, nil
	}
	return f, err
}

func tokenType(name string) (record.DType, bool) {
	for _, d := range tokenTypes {
		if d.String() == name {
			return d, true
		}
	}
	return 0, false
}

func (t *tokenFile) npy(r io.ReaderAt, size int64) error {
	x, err := readArray(r, size)
	if err != nil {
		return err
	}
	if len(x.shape) != 1 || !slices.Contains(tokenTypes, x.dtype) {
		return fmt.Errorf("it has the shape %v of %s; ids are whole numbers in one dimension", x.shape, x.dtype)
	}
	t.kind, t.dtype, t.swap, t.at, t.n = "an .npy file", x.dtype, x.swap, x.at, x.shape[0]
	return nil
}

// llmHeader is the bytes before the ids in files of llm.c; their first number tells the dtype.
const llmHeader = 1024

var llmMagic = map[uint32]record.DType{20240520: record.Uint16, 20240801: record.Uint32}

// bin looks at a file of llm.c, or of ids alone.
func (t *tokenFile) bin(r io.ReaderAt, size int64, asked record.DType) error {
	head := make([]byte, min(size, standInHead))
	if err := readFull(r, head, 0); err != nil {
		return fmt.Errorf("read its header: %w", err)
	}
	if err := StandsIn(head); err != nil {
		return err
	}
	if len(head) >= 4 && len(head) < 12 && llmMagic[binary.LittleEndian.Uint32(head)] != 0 {
		return fmt.Errorf("it has %d bytes of the %d that a header of llm.c has: it is cut", size, llmHeader)
	}
	if len(head) >= 12 {
		d, ok := llmMagic[binary.LittleEndian.Uint32(head)]
		n := int64(binary.LittleEndian.Uint32(head[8:]))
		if v := binary.LittleEndian.Uint32(head[4:]); ok && v >= 1 && v <= 7 { // ids alone hardly begin like this
			if size < llmHeader {
				return fmt.Errorf("it has %d bytes of the %d that a header of llm.c has: it is cut", size, llmHeader)
			}
			if n*d.Size() > size-llmHeader {
				return fmt.Errorf("its header says %d ids of %s, and %d bytes follow: it is cut", n, d, size-llmHeader)
			}
			if n*d.Size() < size-llmHeader {
				return fmt.Errorf("its header says %d ids of %s, and %d bytes follow, more than these have: write the header "+
					"again, or the ids into files of their own", n, d, size-llmHeader)
			}
			t.kind, t.dtype, t.at, t.n = "a file of llm.c", d, llmHeader, n
			return nil
		}
	}
	if t.kind, t.dtype = "a file of ids", asked; asked == 0 {
		t.dtype = record.Uint16
	}
	if size%t.dtype.Size() != 0 {
		return fmt.Errorf("it has %d bytes, which are no whole ids of %s; say ?dtype=uint16 or ?dtype=uint32", size, t.dtype)
	}
	t.n = size / t.dtype.Size()
	return nil
}

// megatronTypes by the code in an index (megatron.core.datasets.indexed_dataset.DType).
var megatronTypes = map[byte]record.DType{1: record.Uint8, 2: record.Int8, 3: record.Int16, 4: record.Int32,
	5: record.Int64, 8: record.Uint16}

const (
	megatronMagic  = "MMIDIDX\x00\x00"
	megatronHeader = 9 + 8 + 1 + 8 + 8
	// maxDocs bounds the documents whose borders are kept, 8 bytes each.
	maxDocs = 1 << 27
)

// megatron reads an index: the number of bytes of its .bin file is size.
func (t *tokenFile) megatron(f Other, size int64, docs bool) error {
	var head [megatronHeader]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return fmt.Errorf("read its header: %w", err)
	}
	le := binary.LittleEndian
	if string(head[:9]) != megatronMagic || le.Uint64(head[9:]) != 1 {
		return errors.New("it is no index of Megatron, version 1")
	}
	d, ok := megatronTypes[head[17]]
	if !ok {
		return fmt.Errorf("its ids have the type %d, which is not one of whole numbers", head[17])
	}
	sequences, documents := le.Uint64(head[18:]), le.Uint64(head[26:])
	if sequences > math.MaxInt64/16 || documents > math.MaxInt64/16 ||
		f.Len() < megatronHeader+12*int64(sequences)+8*int64(documents) {
		return fmt.Errorf("it says %d sequences and %d documents, which do not fit its %d bytes", sequences, documents,
			f.Len())
	}
	t.kind, t.dtype = "a file of Megatron", d
	starts, err := t.sequences(f, int64(sequences), docs)
	if err != nil {
		return err
	}
	if t.n*d.Size() != size {
		return fmt.Errorf("it says %d ids of %s, and the .bin file has %d bytes", t.n, d, size)
	}
	if !docs {
		return nil
	}
	if documents > maxDocs {
		return fmt.Errorf("it says %d documents, and %d are the most for ?doc=idx", documents, maxDocs)
	}
	table := make([]byte, 8*documents)
	if _, err := f.ReadAt(table, megatronHeader+12*int64(sequences)); err != nil {
		return fmt.Errorf("read its documents: %w", err)
	}
	t.docs = make([]int64, documents)
	for i := range t.docs {
		k := le.Uint64(table[8*i:])
		if k >= uint64(len(starts)) || i > 0 && starts[k] < t.docs[i-1] {
			return fmt.Errorf("document %d begins with sequence %d of %d", i, k, sequences)
		}
		t.docs[i] = starts[k]
	}
	return nil
}

// sequences checks that the sequences lie one behind the other, and counts their ids. With docs it returns where each
// begins, and the end.
func (t *tokenFile) sequences(f Other, n int64, docs bool) (starts []int64, err error) {
	const atOnce = 1 << 16
	sizes, pointers := make([]byte, 4*min(n, atOnce)), make([]byte, 8*min(n, atOnce))
	if docs && n > maxDocs {
		return nil, fmt.Errorf("it says %d sequences, and %d are the most for ?doc=idx", n, maxDocs)
	}
	for from := int64(0); from < n; from += atOnce {
		k := min(atOnce, n-from)
		if _, err := f.ReadAt(sizes[:4*k], megatronHeader+4*from); err != nil {
			return nil, fmt.Errorf("read its sizes: %w", err)
		}
		if _, err := f.ReadAt(pointers[:8*k], megatronHeader+4*n+8*from); err != nil {
			return nil, fmt.Errorf("read its pointers: %w", err)
		}
		for i := range k {
			size, at := int32(binary.LittleEndian.Uint32(sizes[4*i:])), binary.LittleEndian.Uint64(pointers[8*i:])
			if size < 0 || at != uint64(t.n*t.dtype.Size()) {
				return nil, fmt.Errorf("sequence %d has %d ids at byte %d, and byte %d is the next: larder reads files whose "+
					"sequences follow each other", from+i, size, at, t.n*t.dtype.Size())
			}
			if docs {
				starts = append(starts, t.n)
			}
			t.n += int64(size)
		}
	}
	return append(starts, t.n), nil
}

func (tokens) Schema(
	ctx context.Context, a Address, files []string, open func(string) (Other, error),
) (s record.Schema, err error) {
	var first record.DType
	for i, path := range files {
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
		t, err := tokensAt(a, path, open)
		if err != nil {
			return s, fmt.Errorf("%s: %w", path, err)
		}
		if i == 0 {
			first = t.dtype
		} else if t.dtype != first {
			return s, fmt.Errorf("%s has ids of %s, and %s of %s", path, t.dtype, files[0], first)
		}
	}
	each := []int64{numberOf(a, "seq_len", defaultSeqLen) + 1}
	if b := a.Args["borders"]; b != "" && b != bordersRun {
		s.Fields = borderFields(b, first, each[0])
		return s, nil
	}
	s.Fields = []record.Field{{Name: tokensName, Kind: record.Array, DType: first, Shape: each}}
	if a.Args["doc"] != "" {
		s.Fields = append(s.Fields, arrayField(docName, record.Int32, each...))
	}
	return s, nil
}

func tokensAt(a Address, path string, open func(string) (Other, error)) (*tokenFile, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return openTokens(a, path, f, f.Len(), open)
}

func (tokens) Scan(ctx context.Context, a Address, f File, emit func(Sample) error) (Found, error) {
	t, err := openTokens(a, f.Path, f, f.Size, f.Beside)
	if err != nil {
		return Found{}, err
	}
	if t.borders != "" {
		return t.scanPieces(ctx, f, emit)
	}
	if t.windows() == 0 && t.n > 0 {
		return Found{Skipped: map[string]int{ShortFiles: 1}}, nil
	}
	dims := make([][]int64, len(f.Schema.Fields))
	for i := range dims {
		dims[i] = []int64{t.each}
	}
	return Found{}, emitRows(ctx, f.Schema, dims, t.windows(), emit)
}

// tokenRows are the windows of a file.
type tokenRows struct {
	*tokenFile
	io.ReaderAt
	schema *record.Schema
	dims   [][]int64
	size   int64 // of a record
	spool  spool.Spool
	packs  string // names the packing of ?borders=pack there
}

func (tokens) Open(_ context.Context, a Address, f File) (Rows, error) {
	t, err := openTokens(a, f.Path, f, f.Size, f.Beside)
	if err != nil {
		return nil, err
	}
	r := &tokenRows{tokenFile: t, ReaderAt: f, schema: f.Schema, spool: f.Spool}
	switch t.borders {
	case bordersStop, bordersDrop:
		t.docs = nil // each sample says where it lies
		return r, nil
	case bordersPack:
		r.packs = t.packKey(a, f)
	}
	for range f.Schema.Fields {
		r.dims = append(r.dims, []int64{t.each})
	}
	r.size, err = f.Schema.Size(r.dims)
	return r, err
}

func (r *tokenRows) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	switch r.borders {
	case bordersStop, bordersDrop:
		return r.stopped(ctx, dst, s)
	case bordersPack:
		return r.packedWindow(ctx, dst, s)
	}
	if s.Off >= r.windows() {
		return dst, fmt.Errorf("window %d of %d", s.Off, r.windows())
	}
	from := len(dst)
	dst = slices.Grow(dst, int(r.size))[:from+int(r.size)]
	values := r.schema.Frame(dst[from:], r.dims)
	begin := s.Off * r.slice
	at := r.at + begin*r.dtype.Size()
	if n, err := within(ctx, r.ReaderAt).ReadAt(values[0], at); n < len(values[0]) {
		return dst[:from], fmt.Errorf("window %d, at byte %d: %w", s.Off, at, err)
	}
	if r.swap {
		swapBytes(values[0], r.dtype.Size())
	}
	if len(values) > 1 {
		r.documents(values[0], values[1], begin)
	}
	return dst, nil
}

// documents numbers the documents of a window from 0 on, for each of its ids, the first of which is the begin-th of the
// file.
func (r *tokenRows) documents(ids, docs []byte, begin int64) {
	doc, size := uint32(0), int(r.dtype.Size())
	if r.docs != nil {
		next, _ := slices.BinarySearch(r.docs, begin+1)
		for i := range r.each {
			for next < len(r.docs) && r.docs[next] == begin+i {
				next++
				if next == len(r.docs) || r.docs[next] != begin+i { // documents without ids count once
					doc++
				}
			}
			binary.LittleEndian.PutUint32(docs[4*i:], doc)
		}
		return
	}
	var word [8]byte
	for i := range int(r.each) {
		binary.LittleEndian.PutUint32(docs[4*i:], doc)
		copy(word[:], ids[i*size:][:size])
		if binary.LittleEndian.Uint64(word[:]) == r.eos {
			doc++
		}
	}
}

func (*tokenRows) Close() error { return nil }
