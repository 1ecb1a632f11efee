package tiers

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"larder/internal/ident"
	"larder/internal/xrand"
	"larder/tiers/arena"
)

func TestCorruption(t *testing.T) {
	forms(t, func(t *testing.T, f ident.Form) {
		s := open(t, Config{Budgets: budgets(1 << 20), VerifyEvery: 1})
		k := key(f, 1)
		put(t, s, k, 10_000, 1)
		v, err := s.Open(k)
		if err != nil {
			t.Fatal(err)
		}
		v.Bytes[777] ^= 1
		v.Close()
		if _, err := s.Open(k); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("one flipped bit: %v", err)
		}
		if _, err := s.Open(k); !errors.Is(err, ErrGone) {
			t.Fatalf("a corrupt entry is still there: %v", err)
		}
		if st := s.Stats(f); st.Corrupt != 1 || st.Used != 0 || st.Entries != 0 {
			t.Fatalf("%+v", st)
		}
		put(t, s, k, 10_000, 2) // read again
		if v, err := s.Open(k); err != nil || !good(v, k) {
			t.Fatal(err)
		} else {
			v.Close()
		}
	})
}

func TestVerifiesAFractionOfReads(t *testing.T) {
	const n, epochs = 10 * DefaultVerifyEvery, 400
	s := open(t, Config{Budgets: budgets(n * arena.Granule)})
	s.verifyEvery = DefaultVerifyEvery // builds with invariants verify all
	for o := range n {
		put(t, s, key(ident.Decoded, o), 100, 1)
	}
	seen, was := make(map[int]bool), uint64(0)
	for range epochs {
		for o := range n {
			v, err := s.Open(key(ident.Decoded, o))
			if err != nil {
				t.Fatal(err)
			}
			v.Close()
			if now := s.forms[ident.Decoded].verified.Load(); now != was {
				seen[o], was = true, now
			}
		}
	}
	if st := s.Stats(ident.Decoded); st.Reads != n*epochs || st.Verified < n*epochs/DefaultVerifyEvery-2 ||
		st.Verified > n*epochs/DefaultVerifyEvery+2 {
		t.Errorf("%d reads, %d verified, want one in %d", st.Reads, st.Verified, DefaultVerifyEvery)
	}
	if len(seen) != n {
		t.Errorf("%d of %d samples were ever verified in %d epochs", len(seen), n, epochs)
	}
}

func TestCommitSummed(t *testing.T) {
	forms(t, func(t *testing.T, f ident.Form) {
		s := open(t, Config{Budgets: budgets(1 << 20), VerifyEvery: 1 << 30})
		there, here := key(f, 1), key(f, 2)
		put(t, s, there, 5000, 1)
		v, err := s.Open(there)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		for _, flip := range []int{-1, 0, 4999} {
			b, err := s.Alloc(here, 5000)
			if err != nil {
				t.Fatal(err)
			}
			copy(b.Bytes, v.Bytes)
			if flip < 0 {
				if err := b.CommitSummed(v.Meta, v.Sum()); err != nil {
					t.Fatal(err)
				}
				w, err := s.Open(here)
				if err != nil || !bytes.Equal(w.Bytes, v.Bytes) || w.Sum() != v.Sum() {
					t.Fatal("what was received is not what was sent", err)
				}
				w.Close()
				s.Free(here)
				continue
			}
			b.Bytes[flip] ^= 0x10
			if err := b.CommitSummed(v.Meta, v.Sum()); !errors.Is(err, ErrCorrupt) {
				t.Errorf("byte %d flipped on the way: %v", flip, err)
			}
			if _, err := s.Open(here); !errors.Is(err, ErrGone) {
				t.Errorf("byte %d flipped on the way, and published: %v", flip, err)
			}
		}
		if st := s.Stats(f); st.Corrupt != 2 || st.Used != arena.Round(5000) || st.Entries != 1 {
			t.Errorf("%+v", st)
		}
	})
}

func TestFlippedBitsAreNeverLent(t *testing.T) {
	forms(t, func(t *testing.T, f ident.Form) {
		const objects = 40
		s := open(t, Config{Budgets: budgets(objects * 2 * arena.Granule), VerifyEvery: 1})
		var locks [objects]sync.RWMutex // a flip beside a read would be a race of the test, not of the store
		var flips, found atomic.Int64
		var wg sync.WaitGroup
		for o := range objects {
			put(t, s, key(f, o), int64(1000+o), 1)
		}
		for w := range 4 {
			wg.Go(func() {
				r := xrand.New(uint64(w), uint64(f))
				for i := range 1500 {
					o := r.IntN(objects)
					k := key(f, o)
					if w == 0 && i%5 == 0 {
						locks[o].Lock()
						if v, err := s.Open(k); err == nil {
							v.Bytes[r.IntN(len(v.Bytes))] ^= 1 << r.IntN(8)
							v.Close()
							flips.Add(1)
							if _, err := s.Open(k); !errors.Is(err, ErrCorrupt) {
								t.Errorf("%s with a flipped bit: %v", k, err)
							}
							found.Add(1)
						}
						locks[o].Unlock()
						continue
					}
					locks[o].RLock()
					v, err := s.Open(k)
					if err == nil {
						if !good(v, k) {
							t.Errorf("%s was lent with other bytes", k)
						}
						v.Close()
					}
					locks[o].RUnlock()
					if errors.Is(err, ErrGone) { // read again
						if b, err := s.Alloc(k, int64(1000+o)); err == nil {
							n := len(b.Bytes)
							write(b.Bytes, k, uint64(i))
							if err := b.Commit(Meta{Width: uint32(n), Height: uint32(i), Channels: 3}); err != nil &&
								!errors.Is(err, ErrFull) {
								t.Error(err)
							}
						}
					} else if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if st := s.Stats(f); flips.Load() < 100 || found.Load() != flips.Load() || st.Corrupt != uint64(flips.Load()) {
			t.Errorf("%d flips, %d found, %+v", flips.Load(), found.Load(), st)
		}
	})
}
