package engine_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"slices"
	"testing"

	"larder/internal/errs"
	larderv1 "larder/proto/larder/v1"
)

// TestListing compares the digests with those of the files' names, made here as proto/larder/v1 says, and finds the
// ids of names; files that come and go change the ids.
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
	uri := "imagefolder:" + root
	check := func(keys []string, labels ...uint64) {
		t.Helper()
		r, err := w.engine.InspectDataset(t.Context(), &larderv1.InspectDatasetRequest{Dataset: uri, Listing: true})
		if err != nil {
			t.Fatal(err)
		}
		byID, text := byHand(t, keys, labels)
		if slices.Contains(keys, "") {
			byID, text = "", "" // ids are not 0 to n-1
		}
		if got := r.GetListing(); got.GetById() != byID || got.GetKeys() != text {
			t.Errorf("%q: %v; want %s, %s", keys, got, byID, text)
		}
	}
	find := func(more bool, keys ...string) (ids []uint32) {
		t.Helper()
		var b bytes.Buffer
		for _, k := range keys {
			b.WriteString(k + "\x00")
		}
		r, err := w.engine.ResolveKeys(t.Context(), &larderv1.ResolveKeysRequest{Dataset: uri, Keys: b.Bytes(), More: more})
		if err != nil {
			t.Fatal(err)
		}
		for got := r.GetIds(); len(got) > 0; got = got[4:] {
			ids = append(ids, binary.LittleEndian.Uint32(got))
		}
		return ids
	}
	const none = 1<<32 - 1
	found := func(more bool, keys []string, want ...uint32) {
		t.Helper()
		if got := find(more, keys...); !slices.Equal(got, want) {
			t.Errorf("%q have ids %v, not %v", keys, got, want)
		}
	}
	for _, name := range []string{"a/0.jpg", "a/\xff.jpg", "b/1.jpg", "b/2.jpg"} {
		write(name)
	}
	check([]string{"a/0.jpg", "a/\xff.jpg", "b/1.jpg", "b/2.jpg"}, 0, 0, 1, 1)
	found(false, []string{"a/0.jpg", "a/\xff.jpg", "b/1.jpg", "b/2.jpg"}, 0, 1, 2, 3)
	found(true, []string{"b/2.jpg", "b/2.jpg", "a/00.jpg", "a", "", "a/\xff.jpg"}, 3, 3, none, none, none, 1)
	write("a/00.jpg") // it came later, so that its id is the last
	found(true, []string{"a/00.jpg", "b/1.jpg"}, 4, 2)
	check([]string{"a/0.jpg", "a/\xff.jpg", "b/1.jpg", "b/2.jpg", "a/00.jpg"}, 0, 0, 1, 1, 0)
	if err := os.Remove(root + "/b/1.jpg"); err != nil {
		t.Fatal(err)
	}
	check([]string{"a/0.jpg", "a/\xff.jpg", "", "b/2.jpg", "a/00.jpg"}, 0, 0, 0, 1, 0)
	found(false, []string{"a/\xff.jpg", "b/1.jpg", "b/2.jpg"}, 1, none, 3)
	for _, bad := range []*larderv1.ResolveKeysRequest{
		{Dataset: uri, Keys: []byte("a/0.jpg")}, {Dataset: uri, Keys: []byte("a/0.jpg\x00"), Ids: []uint64{1}},
	} {
		if _, err := w.engine.ResolveKeys(t.Context(), bad); reasonOf(err) != errs.Invalid {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// byHand returns the digests of keys and labels, and of keys alone.
func byHand(t *testing.T, names []string, labels []uint64) (byID, keys string) {
	t.Helper()
	var b bytes.Buffer
	for _, k := range names {
		b.WriteString(k + "\x00")
	}
	alone := sha256.Sum256(b.Bytes())
	if err := binary.Write(&b, binary.LittleEndian, labels); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	return hex.EncodeToString(sum[:]), hex.EncodeToString(alone[:])
}
