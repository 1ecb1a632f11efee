package arena

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/xrand"
)

// always is a price of small pages that huge ones never reach.
const always = time.Hour

func hugeGranules(blocks int64) int64 { return blocks * hugeBytes / Granule }

// hugePagesHere says whether the kernel gives huge pages to those who ask.
func hugePagesHere() bool {
	b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	return err == nil && !strings.Contains(string(b), "[never]")
}

// inHugePages is how many bytes of this process the kernel has in huge pages.
func inHugePages(t *testing.T) (kilobytes int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "AnonHugePages: %d kB", &kilobytes); err == nil {
			return kilobytes << 10
		}
	}
	return 0
}

// faults is how many page faults the caller's thread had: the collector of garbage takes its own in others.
func faults(t *testing.T) int64 {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		t.Fatal(err)
	}
	return u.Minflt
}

// Huge pages save nearly all page faults. How many the kernel has to give is its own affair.
func TestHugePagesSaveFaults(t *testing.T) {
	const blocks = 16
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a := open(t, Config{Name: "test", Budget: blocks * hugeBytes, ChunkBytes: blocks * hugeBytes, HugeBelow: always})
	had, before := inHugePages(t), faults(t)
	e := alloc(t, a, hugeGranules(blocks))
	touch(e.Bytes())
	got, took := (inHugePages(t)-had)/hugeBytes, faults(t)-before
	t.Logf("%d huge pages, %d faults for %d MiB", got, took, blocks*hugeBytes>>20)
	if most := hugeGranules(blocks-got) + 16*blocks; took > most {
		t.Errorf("%d faults for %d MiB, %d of them in huge pages", took, blocks*hugeBytes>>20, got*hugeBytes>>20)
	}
	a.Free(e)
}

// touch writes to every page. The race detector would take faults of its own for each.
//
//go:norace
func touch(b []byte) {
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 1
	}
}

// With huge pages too, every extent keeps its bytes, and the kernel holds no page beyond the budget, whatever is
// allocated, freed and resized: sizes from a granule to some blocks, in an arena that is mostly full.
func TestHugeStaysInBudget(t *testing.T) {
	for seed := range uint64(4) {
		a := open(t, Config{Name: "test", Budget: 20 * hugeBytes, ChunkBytes: 8 * hugeBytes, HugeBelow: always,
			Prefault: seed%2 == 1})
		r := xrand.New(seed)
		var all []held
		budget := int64(20 * hugeBytes)
		for i := range 300 {
			switch {
			case i%97 == 96:
				budget = int64(4+r.IntN(24)) * hugeBytes
				if err := a.SetBudget(budget); err != nil {
					t.Fatal(err)
				}
			case len(all) > 0 && r.IntN(5) < 2:
				k := r.IntN(len(all))
				h := all[k]
				if b := h.e.Bytes(); b[0] != h.mark || b[len(b)-1] != h.mark || b[len(b)/2] != h.mark {
					t.Fatal("overwritten")
				}
				a.Free(h.e)
				all[k] = all[len(all)-1]
				all = all[:len(all)-1]
			default:
				n := 1 + int64(r.IntN(int(Granule)*60))
				if r.IntN(10) == 0 {
					n += int64(r.IntN(3 * hugeBytes))
				}
				if e, err := a.Alloc(n); err == nil {
					fill(e.Bytes(), byte(i))
					all = append(all, held{e, byte(i)})
				}
			}
			if err := a.Check(); err != nil {
				t.Fatal(err)
			}
			if i%20 == 0 {
				if u, p := a.Usage(), physical(t, a); p > max(budget, u.Used) {
					t.Fatalf("step %d: the kernel holds %d bytes, budget %d, used %d", i, p, budget, u.Used)
				}
			}
		}
		for _, h := range all {
			a.Free(h.e)
		}
	}
}

// Memory comes in blocks while the budget has room for them, and in small pages where it has not.
func TestHugePagesComeWhole(t *testing.T) {
	if !hugePagesHere() {
		t.Skip("this kernel gives no huge pages")
	}
	a := open(t, Config{Name: "test", Budget: 2*hugeBytes + 100*Granule, ChunkBytes: 4 * hugeBytes, HugeBelow: always})
	all := []Extent{alloc(t, a, 10)}
	if u := a.Usage(); u.Committed != hugeBytes || u.Used != 10*Granule {
		t.Fatalf("%+v", u)
	}
	taken := a.Usage().Taken
	all = append(all, alloc(t, a, hugeGranules(1)-10)) // the rest of the first block
	if u := a.Usage(); u.Taken != taken {
		t.Errorf("the rest of a huge page was not used: %+v", u)
	}
	all = append(all, alloc(t, a, hugeGranules(1)))
	if u := a.Usage(); u.Committed != 2*hugeBytes {
		t.Errorf("%+v", u)
	}
	all = append(all, alloc(t, a, 60)) // the budget has no room for a third block
	if u, p := a.Usage(), physical(t, a); u.Committed != 2*hugeBytes+60*Granule || p != u.Committed {
		t.Errorf("%+v, %d bytes are resident", u, p)
	}
	all = append(all, alloc(t, a, 40))
	if p := physical(t, a); p != 2*hugeBytes+100*Granule {
		t.Errorf("%d bytes are resident", p)
	}
	for _, e := range all {
		a.Free(e)
	}
}

// Huge pages that take longer than small ones are given up, for what comes next.
func TestDearHugePagesAreGivenUp(t *testing.T) {
	a := open(t, Config{Name: "test", Budget: 64 * hugeBytes, ChunkBytes: 4 * hugeBytes, HugeBelow: 1})
	var all []Extent
	for range judged {
		if !a.Huge() {
			t.Fatal("given up too early")
		}
		all = append(all, alloc(t, a, hugeGranules(1)))
	}
	if a.Huge() {
		t.Fatal("a huge page takes longer than a nanosecond")
	}
	e := alloc(t, a, 1)
	if u := a.Usage(); u.Committed != judged*hugeBytes+Granule || physical(t, a) != u.Committed {
		t.Errorf("%+v, %d bytes are resident", u, physical(t, a))
	}
	for _, e := range append(all, e) {
		a.Free(e)
	}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
}

// Small blocks are mappings of their own to the kernel, so there are few of them.
func TestFewMappingsWithHugePages(t *testing.T) {
	const blocks = 2 * maxSmall
	a := open(t, Config{Name: "test", Budget: blocks * hugeBytes, ChunkBytes: blocks * hugeBytes, HugeBelow: always})
	var all []Extent
	for range blocks {
		all = append(all, alloc(t, a, hugeGranules(1)/2), alloc(t, a, hugeGranules(1)/2))
	}
	for i := 0; i < len(all); i += 2 { // half of each block is free, and must go
		a.Free(all[i])
	}
	if err := a.SetBudget(blocks / 2 * hugeBytes); err != nil {
		t.Fatal(err)
	}
	if p := physical(t, a); p != blocks/2*hugeBytes {
		t.Errorf("%d bytes are resident", p)
	}
	a.mu.Lock()
	small, whole := a.mu.chunks[0].small.Len(), a.mu.chunks[0].huge
	a.mu.Unlock()
	if small > maxSmall || whole {
		t.Errorf("%d blocks are small", small)
	}
	for i := 1; i < len(all); i += 2 {
		a.Free(all[i])
	}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
}
