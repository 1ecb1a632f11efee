package pack

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"github.com/cespare/xxhash/v2"
)

// sample is what goes into a shard.
type sample struct {
	at      int // its place in the order, which is its key
	label   int64
	image   []byte
	png     bool // else a JPEG file
	encoded bool // it is not the source's bytes
	props   *properties
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

// open is a shard that is being written: into NAME.part, which becomes NAME when it is finished.
type open struct {
	t       *target
	info    Shard
	to      file
	sum     hash.Hash
	buf     *bufio.Writer
	lay     layout
	content *xxhash.Digest
}

func (t *target) openShard(o options) (*open, error) {
	n := len(t.shards)
	if n >= maxShards {
		return nil, fmt.Errorf("the pack has more than %d shards; choose a larger --shard-size", maxShards)
	}
	s := &open{t: t, sum: sha256.New(), content: xxhash.New(), info: Shard{Name: shardName(o.Format, n), PNG: true}}
	path := filepath.Join(t.work, s.info.Name+".part")
	var err error
	if s.to, err = t.disk.create(path); err != nil {
		return nil, writeError(path, err)
	}
	s.buf = bufio.NewWriterSize(io.MultiWriter(s.to, s.sum), writeBuffer)
	if o.Format == MDS {
		spool, err := t.disk.create(path + ".rows")
		if err != nil {
			_ = s.to.Close()
			return nil, writeError(path, err)
		}
		s.lay = newMDS(s, o, spool)
	} else {
		s.lay = newWDS(s.buf)
	}
	return s, nil
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
	if x.encoded {
		s.info.Encoded++
	}
	hashSample(s.content, x.label, x.image)
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

// finish makes the shard durable, and the journal say so. next is the place of the first sample behind it.
func (s *open) finish(next int, skipped []Skipped) error {
	path := s.to.Name()
	err := s.lay.end()
	if err == nil {
		err = s.buf.Flush()
	}
	if err == nil {
		err = s.t.disk.sync(s.to)
	}
	if cerr := s.to.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return writeError(path, err)
	}
	st, err := os.Stat(path)
	if err != nil {
		return writeError(path, err)
	}
	s.info.Bytes, s.info.Next = st.Size(), next
	s.info.SHA256, s.info.Content = hex.EncodeToString(s.sum.Sum(nil)), hexOf(s.content)
	if err := os.Rename(path, filepath.Join(s.t.work, s.info.Name)); err != nil {
		return writeError(path, err)
	}
	if err := s.t.syncDir(s.t.work); err != nil {
		return writeError(path, err)
	}
	if err := s.t.log(line{Shard: &s.info, Skipped: skipped}); err != nil {
		return err
	}
	s.t.shards = append(s.t.shards, s.info)
	s.t.skipped = append(s.t.skipped, skipped...)
	return nil
}

// drop gives a shard up that is not finished.
func (s *open) drop() {
	if m, ok := s.lay.(*mds); ok {
		_ = m.spool.Close()
	}
	_ = s.to.Close() // it is never read
}
