package packed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"larder/internal/record"
	"larder/internal/spool"
)

// A compressed tar can be read from the front only. It is a block: what is delivered of its samples, images or records,
// is kept in a spool after one pass. Sample.Off is the number of the sample among those that Scan emits.

const (
	// maxTar bounds what a compressed tar unpacks to; only one sample of it is in memory.
	maxTar = 64 << 30
	// maxMember bounds a member of a compressed tar that is kept.
	maxMember = 256 << 20
)

// tarPackings are the suffixes of compressed tars that are read.
var tarPackings = []string{".tar.gz", ".tgz", ".tar.zst"}

// InBlocks reports whether samples of a file are not stored as they are: they are read with Records.Open, also where
// they are images, and then Off and Size are no place in the file.
func InBlocks(scheme, path string) bool {
	return scheme == "beton" || scheme == "wds" && isPackedTar(path) || scheme == "mds" && isPackedShard(path)
}

func isPackedTar(path string) bool { return hasSuffix(path, tarPackings) }

// tarInput is a tar that is read from the front.
type tarInput interface {
	io.Reader
	where() int64 // the next byte, of the tar itself
	ended() bool  // a read found nothing more
	// rest reads what follows the end of the tar: a compressed file has its checksum there.
	rest() error
	close()
}

// openTar begins to read a tar.
func openTar(f File) (tarInput, error) {
	if !isPackedTar(f.Path) {
		return &position{f: f}, nil
	}
	r, err := unpack(f.Path, f, f.Size, maxTar)
	if err != nil {
		return nil, err
	}
	return &stream{r: r}, nil
}

func (p *position) where() int64 { return p.at }
func (p *position) ended() bool  { return p.end }
func (p *position) close()       {}

func (p *position) rest() error {
	end := p.at
	b := make([]byte, min(mostStride, max(0, p.f.Size-end)))
	for at := end; at < p.f.Size; at += int64(len(b)) {
		b = b[:min(int64(len(b)), p.f.Size-at)]
		if n, err := p.readAt(b, at); n < len(b) {
			return fmt.Errorf("read byte %d, behind its end: %w", at, cut(err))
		}
		if err := zeros(b, end); err != nil {
			return err
		}
	}
	return nil
}

// zeros refuses what follows a tar that ends at a byte, unless it is zeros, to which writers round its size up.
func zeros(b []byte, end int64) error {
	if len(bytes.Trim(b, "\x00")) > 0 {
		return fmt.Errorf("its tar ends at byte %d, and more follows: tar and webdataset leave that out; if several tars "+
			"were joined, unpack them (tar --ignore-zeros) and pack the files again", end)
	}
	return nil
}

// zeroed writes to nowhere, what zeros takes.
type zeroed int64

func (z zeroed) Write(b []byte) (int, error) { return len(b), zeros(b, int64(z)) }

// stream is a tar that is unpacked meanwhile.
type stream struct {
	r   io.ReadCloser
	at  int64
	end bool
}

func (s *stream) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.at += int64(n)
	if errors.Is(err, io.EOF) {
		if n > 0 {
			err = nil
		} else {
			s.end = true
		}
	}
	return n, err
}

func (s *stream) where() int64 { return s.at }
func (s *stream) ended() bool  { return s.end }
func (s *stream) close()       { _ = s.r.Close() } // nothing was written, so nothing can be lost

func (s *stream) rest() error {
	if _, err := io.Copy(zeroed(s.at), s.r); err != nil {
		return fmt.Errorf("behind its last member, at byte %d of what it unpacks to: %w", s.at, err)
	}
	return nil
}

// packedTar are samples of a compressed tar.
type packedTar struct {
	regionRows
	key string // "" = samples are images
}

func (w wds) openBlock(a Address, f File) Rows {
	if f.Schema == nil {
		return &packedTar{regionRows: regionRows{File: f}}
	}
	return &packedTar{newRegionRows(a, f), f.blockKey(a)}
}

func (r *packedTar) Record(ctx context.Context, dst []byte, s Sample) ([]byte, error) {
	if r.key != "" {
		return blockRecord(ctx, r.Spool, r.key, dst, int(s.Off), r.records)
	}
	from := len(dst)
	dst, err := r.fromSpool(ctx, dst, "wds images 1", s.Off, r.images)
	if err == nil && int64(len(dst)-from) != s.Size {
		err = fmt.Errorf("image %d has %d bytes, and %d when it was indexed", s.Off, len(dst)-from, s.Size)
	}
	return dst, err
}

// Blocks are the whole file.
func (*packedTar) Blocks() []Block { return wholeFile() }

// images adds the images of all samples that have one.
func (r *packedTar) images(ctx context.Context, out spool.Writer) error {
	return r.each(ctx, nil, isImage, func(g *group) error {
		if !g.image {
			return nil
		}
		for ext, b := range g.members { // it is the only one
			if isImage(ext) {
				return out.Add(b)
			}
		}
		return nil
	})
}

// records adds the records of all samples that have the fields.
func (r *packedTar) records(ctx context.Context, out spool.Writer) error {
	var blob []byte
	return r.each(ctx, r.parts, r.wants, func(g *group) error {
		if !g.has(r.parts) {
			return nil
		}
		values, err := r.contents(&tarSample{members: g.members}, g.begin)
		if err == nil {
			blob, err = record.Append(blob[:0], &r.stored, values)
		}
		if err != nil {
			return out.Add(badRecord("%v", err))
		}
		return out.Add(blob)
	})
}

// each calls take for the samples of the file.
func (r *packedTar) each(
	ctx context.Context, parts []part, keep func(ext string) bool, take func(*group) error,
) error {
	f := r.File
	f.ReaderAt = within(ctx, f.ReaderAt)
	in, err := openTar(f)
	if err != nil {
		return err
	}
	defer in.close()
	w := tarWalk{in: in, size: r.Size, parts: parts, skipped: map[string]int{}, keep: keep, take: take}
	return w.run(ctx)
}

// keepMember reads a member of the group.
func (g *group) keepMember(name, ext string, size int64, r io.Reader) (io.Reader, error) {
	if size > maxMember {
		return nil, fmt.Errorf("member %q has %d bytes; in a compressed tar %d are the most", name, size, maxMember)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read member %q: %w", name, err)
	}
	if g.members == nil {
		g.members = map[string][]byte{}
	}
	g.members[ext] = b
	return bytes.NewReader(b), nil
}

// tarsOf are the tars of a folder: those that are not compressed, else those that are.
func (a *Address) tarsOf(dir string) ([]string, error) {
	names, err := a.names(dir)
	if err != nil {
		return nil, err
	}
	isPlain := func(name string) bool { return strings.HasSuffix(name, ".tar") }
	if out := a.Left.choose(dir, names, isPlain); len(out) > 0 {
		return out, nil
	}
	if out := a.Left.choose(dir, names, isPackedTar); len(out) > 0 {
		return out, nil
	}
	return nil, hasNo(a, dir, ".tar", names, isTar)
}
