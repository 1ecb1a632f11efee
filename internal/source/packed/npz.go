package packed

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"larder/internal/record"
	"larder/internal/spool"
)

// npz is NumPy's archive of arrays of equal length: each is a field, and row i of all of them is sample i. Members that
// are compressed (savez_compressed) are unpacked whole, once, and compared with their checksums then. Rows of others
// are read by themselves: CheckSums compares those checksums.
type npz struct{ identity }

func (npz) Scheme() string { return "npz" }

func (npz) Files(a Address) (files, beside []string, err error) {
	files, err = filesOf(a, suffixesOf("npz")...)
	return files, nil, err
}

// zipped is an array in an archive.
type zipped struct {
	array
	name   string
	file   *zip.File
	offset int64 // of a stored member's content in the archive
}

// packed reports whether a member is compressed.
func (z *zipped) packed() bool { return z.file.Method != zip.Store }

// maxMembers bounds the arrays of an archive.
const maxMembers = record.MaxFields

// openArchive finds the arrays, those of ?fields= or all, in their order.
func openArchive(a Address, r io.ReaderAt, size int64) ([]zipped, error) {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil, fmt.Errorf("it is no archive of numpy.savez: %w", err)
	}
	if len(z.File) > maxMembers {
		return nil, fmt.Errorf("it has %d members, and %d are the most", len(z.File), maxMembers)
	}
	var out []zipped
	wanted := a.Fields()
	for _, f := range z.File {
		name, ok := strings.CutSuffix(f.Name, ".npy")
		if !ok || wanted != nil && !slices.Contains(wanted, name) {
			continue
		}
		if slices.ContainsFunc(out, func(x zipped) bool { return x.name == name }) {
			return nil, fmt.Errorf("it has array %q twice", name)
		}
		x, err := openMember(f, name, r, size)
		if err != nil {
			return nil, fmt.Errorf("array %q: %w", name, err)
		}
		if len(out) > 0 && x.shape[0] != out[0].shape[0] {
			return nil, fmt.Errorf("array %q has %d rows, and %q has %d: larder takes row i of all arrays for sample i; "+
				"choose arrays of equal length with ?fields=", name, x.shape[0], out[0].name, out[0].shape[0])
		}
		out = append(out, x)
	}
	if wanted == nil {
		if len(out) == 0 {
			return nil, errors.New("it holds no array")
		}
		return out, nil
	}
	sorted := make([]zipped, 0, len(wanted))
	for _, name := range wanted {
		i := slices.IndexFunc(out, func(x zipped) bool { return x.name == name })
		if i < 0 {
			return nil, fmt.Errorf("it has no array %q", name)
		}
		sorted = append(sorted, out[i])
	}
	return sorted, nil
}

// openMember reads the header of an array.
func openMember(f *zip.File, name string, r io.ReaderAt, size int64) (z zipped, err error) {
	z = zipped{name: name, file: f}
	n := int64(f.UncompressedSize64)
	if n < 0 {
		return z, errors.New("its size cannot be")
	}
	if !z.packed() {
		if z.offset, err = f.DataOffset(); err != nil {
			return z, err
		}
		if n > size-z.offset {
			return z, fmt.Errorf("it should have %d bytes at byte %d of %d", n, z.offset, size)
		}
		z.array, err = readArray(io.NewSectionReader(r, z.offset, n), n)
		return z, err
	}
	if n > maxUnpacked {
		return z, fmt.Errorf("it is compressed, and unpacks to %d bytes; larder unpacks up to %d: save it with numpy.savez",
			n, int64(maxUnpacked))
	}
	c, err := f.Open()
	if err != nil {
		return z, err
	}
	defer c.Close()
	head, err := io.ReadAll(io.LimitReader(c, maxArrayHeader+12))
	if err != nil {
		return z, err
	}
	z.array, err = readArray(&beginning{head}, n)
	return z, err
}

// beginning is a ReaderAt of what is known of a member.
type beginning struct{ b []byte }

func (s *beginning) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(s.b)) {
		return 0, io.EOF
	}
	n := copy(p, s.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (npz) Schema(
	ctx context.Context, a Address, files []string, open func(string) (Other, error),
) (s record.Schema, err error) {
	for i, path := range files {
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
		arrays, err := archiveAt(a, path, open)
		if err != nil {
			return s, fmt.Errorf("%s: %w", path, err)
		}
		here := record.Schema{}
		for k := range arrays {
			here.Fields = append(here.Fields, arrays[k].field(arrays[k].name))
		}
		if i == 0 {
			s = here
		} else if !s.Equal(&here) {
			return s, fmt.Errorf("the arrays of %s have other names, dtypes or rows than those of %s", path, files[0])
		}
	}
	return s, nil
}

func archiveAt(a Address, path string, open func(string) (Other, error)) ([]zipped, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return openArchive(a, f, f.Len())
}

func (npz) Scan(ctx context.Context, a Address, f File, emit func(Sample) error) (Found, error) {
	arrays, err := openArchive(a, f, f.Size)
	if err != nil {
		return Found{}, err
	}
	dims := make([][]int64, len(arrays))
	for i := range arrays {
		dims[i] = arrays[i].shape[1:]
	}
	return Found{}, emitRows(ctx, f.Schema, dims, arrays[0].shape[0], emit)
}

func (npz) Open(_ context.Context, a Address, f File) (Rows, error) {
	members, err := openArchive(a, f, f.Size)
	if err != nil {
		return nil, err
	}
	arrays := make([]openArray, len(members))
	for i := range members {
		m := &members[i]
		arrays[i] = openArray{array: m.array, ReaderAt: section{f, m.offset, int64(m.file.UncompressedSize64)}}
		if m.packed() {
			arrays[i].rows = func(ctx context.Context, dst []byte, row int64) ([]byte, error) {
				return f.fromSpool(ctx, dst, "npz "+m.name, row, func(ctx context.Context, w spool.Writer) error {
					return m.unpack(within(ctx, f), f.Size, w)
				})
			}
		}
	}
	rows, err := newArrayRows(f.Schema, arrays)
	if err != nil {
		return nil, err
	}
	rows.sums = func(ctx context.Context, bad func(string)) error { return checkStored(ctx, a, f, bad) }
	return rows, nil
}

// unpack gives the rows of a compressed member of an archive of size bytes.
func (z *zipped) unpack(r io.ReaderAt, size int64, w spool.Writer) error {
	archive, err := zip.NewReader(r, size)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(archive.File, func(f *zip.File) bool { return f.Name == z.file.Name })
	if i < 0 {
		return fmt.Errorf("it has no member %q any more", z.file.Name)
	}
	c, err := archive.File[i].Open()
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.CopyN(io.Discard, c, z.at); err != nil {
		return err
	}
	_, n := z.row()
	row := make([]byte, n)
	for i := range z.shape[0] {
		if _, err := io.ReadFull(c, row); err != nil {
			return fmt.Errorf("row %d: %w", i, err)
		}
		if err := w.Add(row); err != nil {
			return err
		}
	}
	_, err = io.Copy(io.Discard, io.LimitReader(c, maxUnpacked)) // to the checksum of the member
	return err
}
