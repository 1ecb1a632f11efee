package arena

import (
	"sync/atomic"
	"testing"

	"larder/internal/testenv"
)

// alloc takes an extent that must be had.
func alloc(t *testing.T, a *Arena, granules int64) Extent {
	t.Helper()
	e, err := a.Alloc(granules * Granule)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// await waits until the arena has so many bytes of pages, and none of them is still being got: those count from the
// start of their step, but no allocation can have them before its end.
func await(t *testing.T, a *Arena, committed int64) {
	t.Helper()
	testenv.Eventually(t, "the memory is committed and warm", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.mu.committed == committed && a.mu.warming == 0
	})
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
}

// A freed span that has its pages is taken before a fresh one, also if the fresh one fits better.
func TestFreedSpansBeforeFreshOnes(t *testing.T) {
	a := open(t, Config{Name: "test", Budget: 256 * Granule, ChunkBytes: 64 * Granule})
	full := alloc(t, a, 56) // 8 fresh granules are left of its chunk
	freed := alloc(t, a, 20)
	a.Free(freed)
	taken := a.Usage().Taken
	var again []Extent
	for _, n := range []int64{8, 4, 8} { // 8 would fit the fresh ones exactly
		again = append(again, alloc(t, a, n))
	}
	if u := a.Usage(); u.Taken != taken {
		t.Errorf("%d granules came from the kernel while as many freed ones were there", (u.Taken-taken)/Granule)
	}
	again = append(again, alloc(t, a, 8))
	if u := a.Usage(); u.Taken != taken+8*Granule {
		t.Errorf("%d granules came for 8", (u.Taken-taken)/Granule)
	}
	for _, e := range append(again, full) {
		a.Free(e)
	}
}

// While what is stored changes and its bytes stay the same, hardly a page comes from the kernel: three quarters of the
// budget, sizes of 1 to 8 granules, each freed one replaced.
func TestReplacingTakesFewFreshPages(t *testing.T) {
	a := open(t, Config{Name: "test", Budget: 4096 * Granule, ChunkBytes: 1024 * Granule})
	var all []Extent
	for a.Usage().Used < 3072*Granule {
		all = append(all, alloc(t, a, 1+int64(len(all)*7%8)))
	}
	taken := a.Usage().Taken
	moved := int64(0)
	for i := range 20 * len(all) {
		k := i * 31 % len(all)
		n := all[k].Size()
		a.Free(all[k])
		all[k] = alloc(t, a, n/Granule)
		moved += n
	}
	if fresh := a.Usage().Taken - taken; fresh > moved/100 {
		t.Errorf("%d of %d granules that were replaced came from the kernel", fresh/Granule, moved/Granule)
	}
	for _, e := range all {
		a.Free(e)
	}
}

// Pages come ahead only while the machine is idle, only as many as are to be kept free, and before the chunk is used
// up also those of the next one. What finds them waits for none.
func TestPagesComeAheadWhileIdle(t *testing.T) {
	a := open(t, Config{Name: "test", Budget: 200 * Granule, ChunkBytes: 64 * Granule, Prefault: true,
		Ahead: 32 * Granule})
	var idle atomic.Bool
	asked := make(chan struct{}, 1000)
	a.WhenIdle(func() bool {
		asked <- struct{}{}
		return idle.Load()
	})
	all := []Extent{alloc(t, a, 40)}
	<-asked
	if u := a.Usage(); u.Ahead != 0 || u.Committed != 40*Granule {
		t.Fatalf("pages came while the machine was busy: %+v", u)
	}
	idle.Store(true)
	all = append(all, alloc(t, a, 4))
	await(t, a, (44+32)*Granule) // 12 of them in a chunk that nothing asked for
	before := a.Usage()
	if before.Ahead != 32*Granule || before.Mapped != 128*Granule {
		t.Fatalf("%+v", before)
	}
	all = append(all, alloc(t, a, 20), alloc(t, a, 12))
	if u := a.Usage(); u.Taken-u.Ahead != before.Taken-before.Ahead {
		t.Errorf("an allocation waited for pages that were there: %+v, before %+v", u, before)
	}
	await(t, a, (76+32)*Granule)
	all = append(all, alloc(t, a, 64), alloc(t, a, 50))
	await(t, a, 200*Granule) // the budget ends it
	if p := physical(t, a); p != 200*Granule {
		t.Errorf("the kernel holds %d granules", p/Granule)
	}
	for _, e := range all {
		a.Free(e)
	}
}

// An arena that nobody uses takes nothing.
func TestUnusedArenaTakesNothing(t *testing.T) {
	a := open(t, Config{Name: "test", Budget: 1 << 30, Prefault: true})
	asked := make(chan struct{})
	a.WhenIdle(func() bool { asked <- struct{}{}; return true })
	<-asked
	a.WhenIdle(nil)
	if u := a.Usage(); u.Taken != 0 || u.Mapped != 0 {
		t.Errorf("%+v", u)
	}
}
