package packed

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
)

// Summed are Rows of a file with checksums of more than one row, which Record cannot compare.
type Summed interface {
	// CheckSums reads all that has such a checksum. It gives each part whose bytes do not have theirs to bad, as words
	// about it; an error is that something cannot be read.
	CheckSums(ctx context.Context, bad func(what string)) error
}

// HasSums reports whether the rows of a scheme may be Summed.
func HasSums(scheme string) bool { return scheme == "npz" }

// CheckSums is that of rows that are Summed; others have nothing to compare.
func CheckSums(ctx context.Context, r Rows, bad func(what string)) error {
	if s, ok := r.(Summed); ok {
		return s.CheckSums(ctx, bad)
	}
	return nil
}

// CheckSums implements Summed.
func (r *pieceRows) CheckSums(ctx context.Context, bad func(what string)) error {
	return CheckSums(ctx, r.plainRows, bad)
}

// CheckSums implements Summed.
func (r *arrayRows) CheckSums(ctx context.Context, bad func(what string)) error {
	if r.sums == nil {
		return nil
	}
	return r.sums(ctx, bad)
}

// checkStored compares the checksums of the stored members of an archive that hold the dataset's arrays. Compressed
// ones are compared whenever they are unpacked.
func checkStored(ctx context.Context, a Address, f File, bad func(what string)) error {
	members, err := openArchive(a, within(ctx, f), f.Size)
	if err != nil {
		return err
	}
	buf := make([]byte, maxBuffer)
	for i := range members {
		m := &members[i]
		if m.packed() {
			continue
		}
		switch err := readMember(ctx, m.file, buf); {
		case errors.Is(err, zip.ErrChecksum):
			bad(fmt.Sprintf("array %q: its bytes do not have the checksum that the archive says (CRC-32 %08x): some have "+
				"changed, in rows that it cannot name", m.name, m.file.CRC32))
		case err != nil:
			return fmt.Errorf("array %q: %w", m.name, err)
		}
	}
	return nil
}

// readMember reads a member to its checksum.
func readMember(ctx context.Context, f *zip.File, buf []byte) error {
	c, err := f.Open()
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, err := c.Read(buf); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
