package engine_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/adler32"
	"hash/crc32"
	"os"
	"testing"

	larderv1 "larder/proto/larder/v1"
)

// TestListing compares the digests with those of the files' names, made here as proto/larder/v1 says; files that come
// and go change the ids.
func TestListing(t *testing.T) {
	root := t.TempDir()
	write := func(name string) {
		t.Helper()
		err := errors.Join(os.MkdirAll(root+"/"+name[:1], 0o755), os.WriteFile(root+"/"+name, []byte(name), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	w := serve(t)
	check := func(removed bool, keys []string, labels ...uint64) {
		t.Helper()
		r, err := w.engine.InspectDataset(t.Context(), &larderv1.InspectDatasetRequest{Dataset: "imagefolder:" + root,
			Listing: true})
		if err != nil {
			t.Fatal(err)
		}
		byID, inAnyOrder := byHand(t, keys, labels)
		if removed {
			byID = "" // ids are not 0 to n-1
		}
		if got := r.GetListing(); got.GetById() != byID || got.GetInAnyOrder() != inAnyOrder {
			t.Errorf("%v: %v; want %s, %x", keys, got, byID, inAnyOrder)
		}
	}
	for _, name := range []string{"a/0.jpg", "a/\xff.jpg", "b/1.jpg", "b/2.jpg"} {
		write(name)
	}
	check(false, []string{"a/0.jpg", "a/\xff.jpg", "b/1.jpg", "b/2.jpg"}, 0, 0, 1, 1)
	write("a/00.jpg") // it came later, so that its id is the last
	check(false, []string{"a/0.jpg", "a/\xff.jpg", "b/1.jpg", "b/2.jpg", "a/00.jpg"}, 0, 0, 1, 1, 0)
	if err := os.Remove(root + "/b/1.jpg"); err != nil {
		t.Fatal(err)
	}
	check(true, []string{"a/0.jpg", "a/\xff.jpg", "b/2.jpg", "a/00.jpg"}, 0, 0, 1, 0)
	if _, x := byHand(t, []string{"a/0.jpg"}, []uint64{0}); x != 0x8df8c777afc62bf9 {
		t.Errorf("%#x is not what the client in Python has", x)
	}
}

// byHand returns the digests of keys and labels.
func byHand(t *testing.T, keys []string, labels []uint64) (byID string, inAnyOrder uint64) {
	t.Helper()
	var b bytes.Buffer
	for i, k := range keys {
		b.WriteString(k + "\x00")
		x := uint64(crc32.ChecksumIEEE([]byte(k)))<<32 + uint64(adler32.Checksum([]byte(k))) + labels[i]*0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		inAnyOrder += x ^ x>>31
	}
	if err := binary.Write(&b, binary.LittleEndian, labels); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	return hex.EncodeToString(sum[:]), inAnyOrder
}
