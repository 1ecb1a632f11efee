package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/maphash"
	"math"
	"strings"
	"sync"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
)

// listing returns two digests of a dataset's list of samples; proto/larder/v1 has them byte by byte. Both are of the
// keys, in the bytes of the file system, in the order of ids, byID of the labels as well. They are empty where samples
// were removed, so that ids are not 0 to n-1. A client compares its own list of files and labels with them. They take
// time in proportion to the number of samples.
func listing(d *source.Dataset) (byID, keys string) {
	if d.LiveCount() < d.Len() {
		return "", ""
	}
	h := sha256.New()
	part, labels := make([]byte, 0, 1<<16), make([]byte, 0, 8*d.Len())
	below := len(rootOf(d))
	for id := range ident.SampleID(d.Len()) {
		part = append(part, d.Path(id)[below:]...)
		part = append(part, 0)
		if len(part) > 1<<15 {
			h.Write(part)
			part = part[:0]
		}
		labels = binary.LittleEndian.AppendUint64(labels, uint64(d.Label(id)))
	}
	h.Write(part)
	keys = hex.EncodeToString(h.Sum(nil))
	h.Write(labels)
	return hex.EncodeToString(h.Sum(nil)), keys
}

// rootOf returns the beginning of the paths of a folder's samples.
func rootOf(d *source.Dataset) string { return strings.TrimSuffix(d.Root(), "/") + "/" }

// noSample stands for a key that no sample has.
const noSample = math.MaxUint32

// keyTable finds the samples of a folder by their keys. What it knows of a dataset stays between two requests of which
// the first says that the second follows: a client's keys come in pieces, and a table takes a second for ten million.
type keyTable struct {
	mu   sync.Mutex
	of   *source.Dataset
	seen uint64 // its fingerprint
	ids  []uint32
	seed maphash.Seed
}

// idsOf answers a request with keys.
func (t *keyTable) idsOf(
	ctx context.Context, d *source.Dataset, req *larderv1.ResolveKeysRequest,
) (*larderv1.ResolveKeysResponse, error) {
	keys := req.GetKeys()
	switch {
	case !strings.HasPrefix(d.URI(), "imagefolder:"):
		return nil, errs.New(errs.Unsupported, "keys", "ask for the keys of its ids",
			"find samples of %s by their keys: it is no folder of images", d.Name())
	case len(req.GetIds()) > 0 || keys[len(keys)-1] != 0:
		return nil, errs.New(errs.Invalid, "keys", "end each key with a zero byte, and send no ids beside them",
			"find samples of %s by %d bytes of keys and %d ids", d.Name(), len(keys), len(req.GetIds()))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	root := []byte(rootOf(d))
	out := make([]byte, 0, 4*bytes.Count(keys, []byte{0}))
	path, next := root, ident.SampleID(0)
	for n := 0; len(keys) > 0; n++ {
		if n&0xffff == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		end := bytes.IndexByte(keys, 0)
		path = append(path[:len(root)], keys[:end]...)
		keys = keys[end+1:]
		id := uint32(next) // most lists have the order of ids
		if !d.Live(next) || d.Path(next) != string(path) {
			id = t.find(d, path)
		}
		if id != noSample {
			next = ident.SampleID(id) + 1
		}
		out = binary.LittleEndian.AppendUint32(out, id)
	}
	if !req.GetMore() {
		t.of, t.ids = nil, nil
	}
	return &larderv1.ResolveKeysResponse{Ids: out}, nil
}

// find returns the sample of a path, or noSample; t.mu is held.
func (t *keyTable) find(d *source.Dataset, path []byte) uint32 {
	if t.of != d || t.seen != d.Fingerprint() {
		t.fill(d)
	}
	for at := maphash.Bytes(t.seed, path); ; at++ {
		id := t.ids[at&uint64(len(t.ids)-1)]
		if id == noSample || d.Path(ident.SampleID(id)) == string(path) {
			return id
		}
	}
}

func (t *keyTable) fill(d *source.Dataset) {
	t.of, t.seen, t.seed = d, d.Fingerprint(), maphash.MakeSeed()
	size := 1
	for size < 2*d.Len()+2 { // also for what comes before it is used
		size *= 2
	}
	t.ids = make([]uint32, size)
	for i := range t.ids {
		t.ids[i] = noSample
	}
	for id := range ident.SampleID(size / 2) {
		if !d.Live(id) {
			continue
		}
		at := maphash.String(t.seed, d.Path(id))
		for t.ids[at&uint64(size-1)] != noSample {
			at++
		}
		t.ids[at&uint64(size-1)] = uint32(id)
	}
}
