package disk

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"larder/internal/spool"
	"larder/internal/spool/spooltest"
	"larder/internal/xrand"
)

// TestRoundTrip: what was put comes back, also after a restart, and nothing else does.
func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, Config{Dir: dir, Size: 64 << 20})
	put(s, "a", 0, 1000)
	put(s, "b", 1000, 1100)
	check := func(s *Store) {
		t.Helper()
		if n := countHits(t, s, "a", 0, 1100); n != 1100 {
			t.Fatalf("%d of 1,100 entries are there", n)
		}
		k := keyOf(5)
		for _, other := range []Key{
			{k.Place + "x", k.Object, k.Version, k.Off, k.Size}, {k.Place, k.Object + "x", k.Version, k.Off, k.Size},
			{k.Place, k.Object, k.Version + 1, k.Off, k.Size}, {k.Place, k.Object, k.Version, k.Off + 1, k.Size},
			{k.Place + "t", k.Object[1:], k.Version, k.Off, k.Size}, {k.Place, k.Object, k.Version, k.Off, k.Size - 1},
		} {
			if s.Get(Whom{Group: "a"}, other, make([]byte, other.Size)) {
				t.Errorf("the key %+v found what was put under %+v", other, k)
			}
		}
		if st := s.Stats(); st.Entries != 1100 || st.State != "" || st.Damaged != 0 {
			t.Errorf("the figures are %+v", st)
		}
	}
	check(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check(openAt(t, Config{Dir: dir, Size: 64 << 20}))
}

// TestTwin compares the Store with a map, over random operations, restarts and sizes: a hit is always what was put, an
// entry that was put is there while nothing was evicted or refused, and the files never take more than the size.
func TestTwin(t *testing.T) {
	for seed := range uint64(3) {
		r := xrand.New(seed, 2)
		dir, need := t.TempDir(), &needs{}
		size := int64(2<<20) + int64(r.IntN(4<<20))
		cfg := Config{Dir: dir, Size: size, Need: need.need}
		open := func() *Store {
			s, err := Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s, twin, losses := open(), map[int]bool{}, uint64(0)
		for range 150 {
			group := string(rune('a' + r.IntN(3)))
			switch r.IntN(12) {
			case 0:
				need.set(group, r.IntN(4))
			case 1:
				losses += lossesOf(s)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = open()
			case 2:
				size = int64(1<<20) + int64(r.IntN(5<<20))
				s.Resize(size)
				cfg.Size = size
			case 3, 4, 5, 6:
				from := r.IntN(3000)
				put(s, group, from, from+r.IntN(60))
				for i := from; i < from+60; i++ {
					twin[i] = twin[i] || has(t, s, group, i)
				}
			default:
				i := r.IntN(3000)
				if there := has(t, s, group, i); there && !twin[i] || !there && twin[i] && losses+lossesOf(s) == 0 {
					t.Fatalf("seed %d: entry %d is there: %v; it was put: %v", seed, i, there, twin[i])
				}
			}
			if used := diskUse(t, dir); used > size || s.Stats().Used > size {
				t.Fatalf("seed %d: the files take %d bytes, and %d are known, of %d", seed, used, s.Stats().Used, size)
			}
		}
		if st := s.Stats(); st.Damaged+st.Errors > 0 {
			t.Errorf("seed %d: %+v", seed, st)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func lossesOf(s *Store) uint64 {
	st := s.Stats()
	return st.Evictions + st.Refused + st.Skipped
}

// TestNeed: what no live job needs leaves for what one needs, and what is needed as much stays.
func TestNeed(t *testing.T) {
	need := &needs{}
	need.set("old", 1)
	var c clock
	s := openAt(t, Config{Dir: t.TempDir(), Size: 2 << 20, Need: need.need, now: c.now})
	put(s, "old", 0, 1000)
	kept := countHits(t, s, "old", 0, 1000)
	if kept < 300 || kept == 1000 {
		t.Fatalf("%d of 1,000 entries of 4 KiB are in 2 MiB", kept)
	}
	need.set("new", 1)
	put(s, "new", 2000, 2500)
	if n := countHits(t, s, "old", 0, 1000); n != kept {
		t.Errorf("%d of %d entries stay beside a dataset that is needed as much", n, kept)
	}
	if s.Stats().Refused == 0 {
		t.Error("nothing was refused")
	}
	need.set("old", 0)
	c.seconds.Add(2)
	put(s, "new", 2000, 2500)
	if n := countHits(t, s, "new", 2000, 2500); n < 300 {
		t.Errorf("%d of 500 entries took the place of what nobody needs", n)
	}
}

// TestLongGroups: the uri of a long list of shards is kept as others are, and is needed by its own jobs.
func TestLongGroups(t *testing.T) {
	long := strings.Repeat("s3://bucket/a-shard-of-many.tar::", 300)
	one, two := long+"1", long+"2"
	need := func(name string) int {
		if SameGroup(name, one) {
			return 1
		}
		return 0
	}
	dir := t.TempDir()
	for range 2 { // a start
		s := openAt(t, Config{Dir: dir, Size: 2 << 20, Need: need})
		put(s, one, 0, 20)
		put(s, two, 100, 120)
		if n, m := countHits(t, s, one, 0, 20), countHits(t, s, two, 100, 120); n != 20 || m != 20 {
			t.Errorf("%d and %d entries of 20 are kept", n, m)
		}
		if s.Stats().Skipped != 0 {
			t.Error("entries were skipped")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := openAt(t, Config{Dir: dir, Size: 2 << 20, Need: need})
	put(s, one, 1000, 2000)                           // fills it
	if n := countHits(t, s, two, 100, 120); n == 20 { // what is too little for a segment may stay
		t.Errorf("%d entries that nobody needs are left", n)
	}
	if n := countHits(t, s, one, 0, 20); n != 20 {
		t.Errorf("%d entries of 20 that a job needs are left", n)
	}
}

// TestStale: entries that no read finds any more leave for those of the same dataset that are asked for.
func TestStale(t *testing.T) {
	var c clock
	s := openAt(t, Config{Dir: t.TempDir(), Size: 2 << 20, now: c.now})
	put(s, "a", 0, 1000)
	for range 8 { // the dataset has changed: other keys
		for i := range 1000 {
			if !has(t, s, "a", 5000+i) {
				c.seconds.Add(1)
				s.Put(Whom{Group: "a"}, keyOf(5000+i), bytesOf(5000+i))
			}
		}
		s.Flush()
	}
	if n := countHits(t, s, "a", 5000, 6000); n < 300 {
		t.Errorf("%d entries took the place of what no read finds any more", n)
	}
}

// TestResize: a smaller tier keeps what fits, and one without a size keeps nothing.
func TestResize(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, Config{Dir: dir, Size: 8 << 20})
	put(s, "a", 0, 1000)
	s.Resize(2 << 20)
	if n := countHits(t, s, "a", 0, 1000); n < 300 || n > 600 || diskUse(t, dir) > 2<<20 {
		t.Errorf("%d entries and %d bytes stay in 2 MiB", n, diskUse(t, dir))
	}
	s.Resize(0)
	put(s, "a", 1000, 1100)
	if n := countHits(t, s, "a", 0, 1100); n != 0 || diskUse(t, dir) > fixedRoom {
		t.Errorf("%d entries and %d bytes stay in nothing", n, diskUse(t, dir))
	}
}

// TestManyAtOnce: readers, writers, blocks and changes of the size, all at once.
func TestManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, Config{Dir: dir, Size: 3 << 20})
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			r := xrand.New(uint64(w), 3)
			for range 600 {
				i := r.IntN(1000)
				if !has(t, s, "a", i) {
					s.Put(Whom{Group: "a"}, keyOf(i), bytesOf(i))
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 60 {
			key := string(rune('A' + i%20))
			want := spooltest.Records(key, 200)
			b, err := s.Block(context.Background(), key, func(_ context.Context, w spool.Writer) error {
				for _, rec := range want {
					if err := w.Add(rec); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
				return
			}
			spooltest.Check(t, b, want)
			_ = b.Close()
		}
	})
	wg.Go(func() {
		for i := range 20 {
			s.Resize(int64(2+i%2) << 20)
		}
		s.Resize(3 << 20)
	})
	wg.Wait()
	s.Flush()
	if st := s.Stats(); st.Damaged+st.Errors > 0 || diskUse(t, dir) > 3<<20 {
		t.Errorf("%d bytes, %+v", diskUse(t, dir), st)
	}
}

// TestForeign: files of others stay as they are, and are named.
func TestForeign(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"thesis.tex", "larder-1.seg", "larder-0000000A.seg", "larder-00000000.seg"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "larder-00000001.seg"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("thesis.tex", filepath.Join(dir, "larder-00000002.seg")); err != nil {
		t.Fatal(err)
	}
	s := openAt(t, Config{Dir: dir, Size: 4 << 20})
	put(s, "a", 0, 100)
	if n := countHits(t, s, "a", 0, 100); n != 100 {
		t.Errorf("%d of 100 entries are there", n)
	}
	if st := s.Stats(); st.Foreign != 6 || st.ForeignName == "" {
		t.Errorf("%d files are foreign, such as %q", st.Foreign, st.ForeignName)
	}
	s.Resize(0)
	for _, name := range []string{"thesis.tex", "larder-1.seg", "larder-0000000A.seg", "larder-00000000.seg"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != "mine" {
			t.Errorf("%s holds %q, %v", name, b, err)
		}
	}
}

// TestDirectories that cannot be used turn the tier off, with the reason.
func TestDirectories(t *testing.T) {
	base := t.TempDir()
	plain, open := filepath.Join(base, "plain"), filepath.Join(base, "open")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{plain, filepath.Join(plain, "below"), open} {
		s := openAt(t, Config{Dir: dir, Size: 1 << 20})
		put(s, "a", 0, 10)
		if n := countHits(t, s, "a", 0, 10); n != 0 || s.Stats().State == "" {
			t.Errorf("%s: %d hits, state %q", dir, n, s.Stats().State)
		}
	}
	for _, cfg := range []Config{{Dir: base, Size: -1}, {Size: 1}} {
		if _, err := Open(cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
}
