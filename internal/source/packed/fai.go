package packed

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// faiEntry is a sequence in an index of samtools faidx.
type faiEntry struct {
	id        string
	off, span int64 // of the lines of the sequence
	line      int   // of the index, from 1
}

// readFai lists the sequences of an index, once the file proves that they are all that it holds: an index does not say
// of which version of the file it is.
func readFai(
	ctx context.Context, index Other, r io.ReaderAt, size int64, give func(id string, off, n int64) error,
) error {
	entries, err := faiEntries(ctx, index, size)
	if err != nil {
		return err
	}
	if err := proveFai(ctx, entries, r, size); err != nil {
		return err
	}
	for i := range entries {
		if err := give(entries[i].id, entries[i].off, entries[i].span); err != nil {
			return err
		}
	}
	return nil
}

// faiEntries reads lines of id, letters, offset, letters of a line, bytes of a line.
func faiEntries(ctx context.Context, index Other, size int64) ([]faiEntry, error) {
	if index.Len() == 0 {
		return nil, errors.New("it is empty")
	}
	var out []faiEntry
	lines := bufio.NewScanner(io.NewSectionReader(index, 0, index.Len()))
	for n := 1; lines.Scan(); n++ {
		if n&1023 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		parts := strings.Split(lines.Text(), "\t")
		if len(parts) != 5 {
			return nil, fmt.Errorf("line %d has %d columns, not 5", n, len(parts))
		}
		var x [4]int64
		for i := range x {
			var err error
			if x[i], err = strconv.ParseInt(parts[i+1], 10, 64); err != nil || x[i] < 0 {
				return nil, fmt.Errorf("line %d says %q", n, parts[i+1])
			}
		}
		letters, off, perLine, lineBytes := x[0], x[1], x[2], x[3]
		e := faiEntry{id: parts[0], off: off, line: n}
		if letters > 0 {
			if perLine < 1 || lineBytes < perLine || lineBytes > perLine+2 || letters > size || off < 2 || off > size {
				return nil, fmt.Errorf("line %d says %d letters at byte %d, in lines of %d letters and %d bytes", n, letters, off,
					perLine, lineBytes)
			}
			last := letters - 1
			e.span = last/perLine*lineBytes + last%perLine + 1
		}
		if e.span > size-off {
			return nil, fmt.Errorf("line %d: no sequence of %d letters begins at byte %d of %d", n, letters, off, size)
		}
		out = append(out, e)
	}
	return out, lines.Err()
}

const faiVersion = "the index is of another version of the file"

// proveFai checks that the file begins with the first sequence of an index, that nothing but the header of the next one
// lies between two of them, and that nothing follows the last one.
func proveFai(ctx context.Context, entries []faiEntry, r io.ReaderAt, size int64) error {
	inOrder := slices.Clone(entries)
	slices.SortStableFunc(inOrder, func(a, b faiEntry) int { return cmp.Compare(a.off, b.off) })
	at := int64(0)
	for i := range inOrder {
		if i&1023 == 1023 && ctx.Err() != nil {
			return ctx.Err()
		}
		e := &inOrder[i]
		if err := headerBetween(r, at, e); err != nil {
			return fmt.Errorf("line %d: %w", e.line, err)
		}
		at = e.off + e.span
	}
	for at < size { // blanks
		b := make([]byte, min(headerBuffer, size-at))
		if err := readFull(r, b, at); err != nil {
			return err
		}
		if rest := bytes.TrimLeft(b, "\r\n \t"); len(rest) > 0 {
			return fmt.Errorf("the file has %.20q behind the last sequence, at byte %d of %d: %s", rest,
				at+int64(len(b)-len(rest)), size, faiVersion)
		}
		at += int64(len(b))
	}
	return nil
}

// headerBetween checks that what lies between byte at, where the sequence before ends, and a sequence is its header.
func headerBetween(r io.ReaderAt, at int64, e *faiEntry) error {
	n := e.off - at
	if n < 2 || n > 1<<20 {
		return fmt.Errorf("sequence %q should begin at byte %d, and the one before ends at byte %d: %s", e.id, e.off, at,
			faiVersion)
	}
	b := make([]byte, n)
	if err := readFull(r, b, at); err != nil {
		return err
	}
	head := bytes.TrimLeft(b, "\r\n \t")
	blanks := b[:len(b)-len(head)]
	switch {
	case len(head) == 0 || head[0] != '>' || len(blanks) > 0 && blanks[len(blanks)-1] != '\n':
		return fmt.Errorf("the sequence before %q should end at byte %d: %s", e.id, at, faiVersion)
	case bytes.IndexByte(head, '\n') != len(head)-1:
		return fmt.Errorf("sequence %q should begin at byte %d, behind its header: %s", e.id, e.off, faiVersion)
	case fastaID(head[1:]) != e.id:
		return fmt.Errorf("the sequence at byte %d is %.80q, and %q in the index: %s", e.off, fastaID(head[1:]), e.id,
			faiVersion)
	}
	return nil
}
