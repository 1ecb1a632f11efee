package disk

import "testing"

// putFor puts entries for so many jobs of the group a, and countFor counts which are there, reading for so many.
func putFor(s *Store, jobs, from, to int) {
	for i := from; i < to; i++ {
		s.Put(Whom{"a", jobs}, keyOf(i), bytesOf(i))
	}
	s.Flush()
}

func countFor(s *Store, jobs, from, to int) (n int) {
	for i := from; i < to; i++ {
		if s.Get(Whom{"a", jobs}, keyOf(i), make([]byte, keyOf(i).Size)) {
			n++
		}
	}
	return n
}

// TestNeedOfSamples: in one dataset, samples that more jobs read take the place of those that fewer read; after jobs
// have come and gone, reads say what is needed now.
func TestNeedOfSamples(t *testing.T) {
	jobs := &needs{}
	jobs.set("a", 3)
	var c clock
	dir := t.TempDir()
	s := openAt(t, Config{Dir: dir, Size: 2 << 20, Need: jobs.need, now: c.now})
	putFor(s, 1, 0, 1000)
	full := countFor(s, 1, 0, 1000)
	if full < 300 || full == 1000 {
		t.Fatalf("%d of 1,000 entries of 4 KiB are in 2 MiB", full)
	}
	putFor(s, 1, 1000, 1200)
	if n := countFor(s, 1, 0, 1000); n != full {
		t.Errorf("%d of %d entries stay beside others that one job reads", n, full)
	}
	putFor(s, 2, 2000, 2200) // at once: it was entries of one job that were refused
	if n := countFor(s, 2, 2000, 2200); n < 190 {
		t.Errorf("%d of 200 entries that two jobs read took the place of those of one", n)
	}
	c.seconds.Add(2)
	putFor(s, 1, 3000, 3800)
	if n := countFor(s, 2, 2000, 2200); n < 190 {
		t.Errorf("%d of 200 entries that two jobs read stay beside those of one", n)
	}
	for range 20 { // one of the two has gone, and another one reads what was put last
		countFor(s, 1, 2000, 2200)
	}
	putFor(s, 2, 4000, 5000)
	if n := countFor(s, 2, 4000, 5000); n < 300 {
		t.Errorf("%d of 1,000 entries took the place of those that one job reads by now", n)
	}
	jobs.set("a", 1) // no entry is needed by more jobs than its dataset
	c.seconds.Add(2)
	before := countFor(s, 0, 4000, 5000)
	putFor(s, 3, 6000, 6500)
	if n := countFor(s, 0, 4000, 5000); n != before {
		t.Errorf("%d of %d entries stay where one job is left", n, before)
	}
}

// TestNeedAfterAStart: what a start found is needed by all jobs on its dataset, until it is read.
func TestNeedAfterAStart(t *testing.T) {
	jobs := &needs{}
	jobs.set("a", 3)
	cfg := Config{Dir: t.TempDir(), Size: 2 << 20, Need: jobs.need}
	s := openAt(t, cfg)
	putFor(s, 1, 0, 1000)
	full := countFor(s, 1, 0, 1000)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var c clock
	cfg.now = c.now
	s = openAt(t, cfg)
	putFor(s, 2, 2000, 2200)
	if n := countFor(s, 0, 0, 1000); n != full {
		t.Fatalf("%d of %d entries stay where nothing was read since the start", n, full)
	}
	c.seconds.Add(2)
	countFor(s, 1, 0, 1000)
	putFor(s, 2, 2000, 2200)
	if n := countFor(s, 2, 2000, 2200); n < 190 {
		t.Errorf("%d of 200 entries that two jobs read took the place of those of one", n)
	}
}

// TestSpareAfterAStart: what no job needed leaves first, also when another daemon has loaded it.
func TestSpareAfterAStart(t *testing.T) {
	jobs := &needs{}
	jobs.set("a", 3)
	cfg := Config{Dir: t.TempDir(), Size: 2 << 20, Need: jobs.need}
	s := openAt(t, cfg)
	putFor(s, Spare, 0, 1000)
	if n := countFor(s, 0, 0, 1000); n < 190 {
		t.Fatalf("%d entries are there", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, cfg)
	putFor(s, 1, 2000, 2200)
	if n := countFor(s, 0, 2000, 2200); n < 190 {
		t.Errorf("%d of 200 entries that a job needs took the place of those that none does", n)
	}
}

// TestNeedOfASegment is a mean of the latest reads, whole, and never more than the need of its dataset.
func TestNeedOfASegment(t *testing.T) {
	g := &segment{hashes: make([]uint64, 100)}
	if g.needed(5) != 5 {
		t.Errorf("%d, and it was never read", g.needed(5))
	}
	g.readFor(0)
	if g.needed(5) != 5 {
		t.Errorf("%d, and the reads did not say for whom", g.needed(5))
	}
	g.readFor(2)
	g.readFor(0)
	for _, group := range []int{0, 1, 2, 5} {
		if got := g.needed(group); got != min(group, 2) {
			t.Errorf("%d, and two of %d jobs read it", got, group)
		}
	}
	g.readFor(3) // one of many
	if g.needed(5) != 2 {
		t.Errorf("%d after one read for three jobs", g.needed(5))
	}
	for range 4 * lately {
		g.readFor(3)
	}
	if g.needed(5) != 3 {
		t.Errorf("%d after many reads for three jobs", g.needed(5))
	}
	one := &segment{hashes: make([]uint64, 1), seen: 4}
	one.readFor(1)
	if one.needed(5) != 1 {
		t.Errorf("%d, and its only entry is read for one job", one.needed(5))
	}
}
