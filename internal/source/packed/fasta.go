package packed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"larder/internal/record"
)

// fasta are FASTA files of proteins or DNA, plain or compressed with bgzip. A record is an id and a sequence, whose
// lines are joined.
type fasta struct{ identity }

func (fasta) Scheme() string { return "fasta" }

func (fasta) Files(a Address) (files, beside []string, err error) {
	files, err = filesOf(a, suffixesOf("fasta")...)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		if is, err := a.exists(f + ".fai"); err != nil {
			return nil, nil, err
		} else if is {
			beside = append(beside, f+".fai")
		}
	}
	return files, beside, nil
}

// Schema gives id and sequence; ?sequence=uint8 makes an array of the letters' codes of the sequence.
func (fasta) Schema(
	_ context.Context, a Address, _ []string, _ func(string) (Other, error),
) (record.Schema, error) {
	fields := []record.Field{textField("id"), textField("sequence")}
	if a.Args["sequence"] == "uint8" {
		fields[1] = arrayField("sequence", record.Uint8, record.Ragged)
	}
	fields, err := choose(fields, a)
	return record.Schema{Fields: fields}, err
}

// plainFasta is the decompressed content of a file, and its length.
func plainFasta(ctx context.Context, f File) (io.ReaderAt, int64, error) {
	if !strings.HasSuffix(f.Path, "gz") {
		return f, f.Size, nil
	}
	z, err := openBGZF(ctx, f, f.Size)
	if err != nil {
		return nil, 0, err
	}
	return z, z.size, nil
}

// Scan finds the sequences: by the index beside the file (samtools faidx), or by reading it. Off and Size are those of
// the lines of the sequence, decompressed.
func (fasta) Scan(ctx context.Context, _ Address, f File, emit func(Sample) error) (Found, error) {
	found := Found{Skipped: map[string]int{}}
	r, size, err := plainFasta(ctx, f)
	if err != nil {
		return found, err
	}
	seen := map[string]bool{}
	give := func(id string, off, n int64) error {
		switch {
		case id == "" || strings.IndexByte(id, 0) >= 0:
			return fmt.Errorf("the sequence at byte %d has the id %q", off, id)
		case seen[id]:
			return fmt.Errorf("id %q comes twice, the second time at byte %d", id, off)
		case n > maxRecordBytes:
			return fmt.Errorf("sequence %q has %d bytes, and %d are the most", id, n, maxRecordBytes)
		case n == 0:
			found.Skipped["empty sequences"]++
			return nil
		}
		seen[id] = true
		return emit(Sample{Key: id, Off: off, Size: n, Label: -1})
	}
	index, err := f.Beside(f.Path + ".fai")
	if err != nil {
		return found, scanFasta(ctx, r, size, give)
	}
	defer index.Close()
	if err := readFai(ctx, index, r, size, give); err != nil {
		return found, fmt.Errorf("its index .fai: %w; make it again with samtools faidx, or remove it", err)
	}
	return found, nil
}

// scanFasta reads a file from the front.
func scanFasta(ctx context.Context, r io.ReaderAt, size int64, give func(id string, off, n int64) error) error {
	in := bufio.NewReaderSize(io.NewSectionReader(r, 0, size), 1<<20)
	head, _ := in.Peek(standInHead) // what fails here fails again when it is read
	if err := StandsIn(head); err != nil {
		return err
	}
	id, begin, any := "", int64(0), false
	for n, at := 0, int64(0); at < size; n++ {
		if n&4095 == 4095 && ctx.Err() != nil {
			return ctx.Err()
		}
		line, err := in.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("read at byte %d: %w", at, err)
		}
		whole := line
		for errors.Is(err, bufio.ErrBufferFull) { // the rest of a long line belongs to the sequence
			if line[0] == '>' {
				return fmt.Errorf("the header at byte %d is longer than %d bytes", at, 1<<20)
			}
			at += int64(len(whole))
			whole, err = in.ReadSlice('\n')
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
				return fmt.Errorf("read at byte %d: %w", at, err)
			}
		}
		switch {
		case len(line) > 0 && line[0] == '>':
			if any {
				if err := give(id, begin, at-begin); err != nil {
					return err
				}
			}
			id, any = fastaID(line[1:]), true
			begin = at + int64(len(line))
		case !any && len(bytes.TrimSpace(line)) > 0:
			return fmt.Errorf("it begins with %.20q, and a FASTA file with >", line)
		case len(whole) == 0:
			return fmt.Errorf("read at byte %d: %w", at, io.ErrUnexpectedEOF)
		}
		at += int64(len(whole))
	}
	if !any {
		return errors.New("it has no sequence")
	}
	return give(id, begin, size-begin)
}

// fastaID is the word behind >.
func fastaID(header []byte) string {
	word, _, _ := bytes.Cut(bytes.TrimRight(header, "\r\n"), []byte{' '})
	word, _, _ = bytes.Cut(word, []byte{'\t'})
	return string(word)
}

type fastaRows struct {
	r      io.ReaderAt
	size   int64
	stored *record.Schema
}

func (fasta) Open(ctx context.Context, _ Address, f File) (Rows, error) {
	if f.Schema == nil {
		return nil, errNoSchema
	}
	r, size, err := plainFasta(ctx, f)
	if err != nil {
		return nil, err
	}
	return &fastaRows{r, size, storedSchema(f.Schema)}, nil
}

func (*fastaRows) Close() error { return nil }

// Record reads the lines of a sequence and joins them.
func (r *fastaRows) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	if s.Off < 0 || s.Size > maxRecordBytes || s.Off > r.size-s.Size {
		return nil, fmt.Errorf("it should lie at byte %d of %d", s.Off, r.size)
	}
	b := make([]byte, s.Size)
	if err := readFull(within(ctx, r.r), b, s.Off); err != nil {
		return nil, fmt.Errorf("read %d bytes at %d: %w", len(b), s.Off, err)
	}
	letters := b[:0]
	for _, c := range b {
		switch {
		case c == '\n' || c == '\r' || c == ' ' || c == '\t':
		case c <= ' ' || c > '~' || c == '>':
			return nil, fmt.Errorf("at byte %d: %q is no letter of a sequence", s.Off, c)
		default:
			letters = append(letters, c)
		}
	}
	values := make([]record.Content, len(r.stored.Fields))
	for i := range values {
		f := &r.stored.Fields[i]
		values[i].Data = letters
		if f.Name == "id" {
			values[i].Data = []byte(s.Key)
		} else if f.Kind == record.Array {
			values[i].Dims = []int64{int64(len(letters))}
		}
	}
	return record.Append(dst, r.stored, values)
}
