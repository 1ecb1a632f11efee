package pack

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"github.com/cespare/xxhash/v2"
)

// sample is what goes into a shard.
type sample struct {
	at      int // its place in the order, which is its key
	label   int64
	image   []byte
	png     bool // else a JPEG file
	encoded int  // of its images, those that are not the source's bytes
	props   *properties
	values  [][]byte // of a record, one for each column; nil = it is an image and a label
}

// properties are what a sample was in the source.
type properties struct {
	Key    string `json:"key"`
	Class  string `json:"class"`
	Width  int    `json:"width"` // before it was resized
	Height int    `json:"height"`
}

// layout is how samples lie in a file.
type layout interface {
	// size is how many bytes the file would have with one more sample.
	size(s *sample) int64
	// add writes one sample.
	add(s *sample) error
	// end writes what comes last. file has everything then.
	end() error
}

const writeBuffer = 1 << 20

// open is a shard that is being written.
type open struct {
	t       target
	info    Shard
	to      file
	sum     hash.Hash
	buf     *bufio.Writer
	bytes   int64 // that went through buf
	lay     layout
	content *xxhash.Digest
}

func openShard(t target, o options) (*open, error) {
	n := len(t.state().shards)
	if n >= maxShards {
		return nil, fmt.Errorf("the pack has more than %d shards; choose a larger --shard-size", maxShards)
	}
	s := &open{t: t, sum: sha256.New(), content: xxhash.New(), info: Shard{Name: shardName(o.Format, n), PNG: true}}
	var err error
	if s.to, err = t.begin(s.info.Name); err != nil {
		return nil, err
	}
	s.buf = bufio.NewWriterSize(io.MultiWriter(s.to, s.sum, counting{&s.bytes}), writeBuffer)
	if o.Format == MDS {
		spool, err := t.begin(s.info.Name + ".rows")
		if err != nil {
			_ = s.to.Close()
			return nil, err
		}
		s.lay = newMDS(s, o, spool)
	} else {
		s.lay = newWDS(s.buf, o.columns)
	}
	return s, nil
}

// counting counts what is written.
type counting struct{ n *int64 }

func (c counting) Write(b []byte) (int, error) {
	*c.n += int64(len(b))
	return len(b), nil
}

func shardName(format string, n int) string {
	if format == MDS {
		return fmt.Sprintf("shard.%05d.mds", n) // as its own writer calls them
	}
	return fmt.Sprintf("shard-%06d.tar", n)
}

func (s *open) add(x *sample) error {
	if err := s.lay.add(x); err != nil {
		return writeError(s.to.Name(), err)
	}
	s.info.Samples++
	s.info.PNG = s.info.PNG && x.png
	s.info.Encoded += x.encoded
	if x.values != nil {
		hashValues(s.content, x.values)
	} else {
		hashSample(s.content, x.label, x.image)
	}
	return nil
}

// hashSample adds a sample to the digest of a shard's content.
func hashSample(to *xxhash.Digest, label int64, image []byte) {
	var head [16]byte
	binary.LittleEndian.PutUint64(head[:], uint64(label))
	binary.LittleEndian.PutUint64(head[8:], uint64(len(image)))
	_, _ = to.Write(head[:]) // a hash never fails
	_, _ = to.Write(image)
}

func hexOf(h *xxhash.Digest) string { return fmt.Sprintf("%016x", h.Sum64()) }

// finish hands the shard to its target. next is the place of the first sample behind it.
func (s *open) finish(ctx context.Context, next int, skipped []Skipped) error {
	err := s.lay.end()
	if err == nil {
		err = s.buf.Flush()
	}
	if err != nil {
		_ = s.to.Close() // it is never read
		return writeError(s.to.Name(), err)
	}
	s.info.Bytes, s.info.Next = s.bytes, next
	s.info.SHA256, s.info.Content = hex.EncodeToString(s.sum.Sum(nil)), hexOf(s.content)
	return s.t.keep(ctx, s.to, s.info, skipped)
}

// drop gives a shard up that is not finished.
func (s *open) drop() {
	if m, ok := s.lay.(*mds); ok {
		_ = m.spool.Close()
	}
	_ = s.to.Close() // it is never read
}
