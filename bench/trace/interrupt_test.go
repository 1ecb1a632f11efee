package trace

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/ident"
)

// A daemon goes away at any moment, as often as it likes, and gives again what had not been used: each job has every
// sample of an epoch once, in the order in which it came first, and nothing that is in memory comes twice.
func TestInterruptions(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a := NewAssembler("t", 0)
		type job struct {
			epoch uint32
			order []uint32 // of the epoch that runs
			at    int      // delivered of it
			want  []uint32
		}
		n := rapid.IntRange(2, 20).Draw(rt, "samples")
		ids := make([]uint32, n)
		for i := range ids {
			ids[i] = uint32(i)
		}
		jobs := make([]*job, rapid.IntRange(1, 3).Draw(rt, "jobs"))
		for i := range jobs {
			jobs[i] = &job{order: rapid.Permutation(ids).Draw(rt, "order")}
		}
		in := map[uint32]bool{}
		deliver := func(k int, lo, hi int) { a.Batch(uint32(k+7), jobs[k].epoch, jobs[k].order[lo:hi]) }
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			k := rapid.IntRange(0, len(jobs)-1).Draw(rt, "job")
			j := jobs[k]
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0, 1, 2: // a batch, and the next epoch when this one is over
				size := min(rapid.IntRange(1, 6).Draw(rt, "batch"), n-j.at)
				deliver(k, j.at, j.at+size)
				j.want = append(j.want, j.order[j.at:j.at+size]...)
				if j.at += size; j.at == n && rapid.Bool().Draw(rt, "continues") {
					j.epoch, j.at, j.order = j.epoch+1, 0, rapid.Permutation(ids).Draw(rt, "order")
				}
			case 3:
				x := uint32(rapid.IntRange(0, n-1).Draw(rt, "object"))
				in[x] = !in[x]
				a.Move(x, ident.Decoded, in[x])
			case 4:
				a.Batch(uint32(k+7), j.epoch, nil) // nothing is known of it
			case 5:
				a.Interrupted()
				clear(in)
				for k, j := range jobs { // some of what was delivered was not used
					back := rapid.IntRange(0, j.at).Draw(rt, "unused")
					for lo := j.at - back; lo < j.at; {
						hi := min(j.at, lo+rapid.IntRange(1, 6).Draw(rt, "batch"))
						deliver(k, lo, hi)
						lo = hi
					}
				}
			}
		}
		got := map[uint16][]uint32{}
		for i, x := range a.t.Pick.Object {
			got[a.t.Pick.Job[i]&JobMask] = append(got[a.t.Pick.Job[i]&JobMask], x)
		}
		for k, j := range jobs {
			number, known := a.number[uint32(k+7)]
			if !known && len(j.want) == 0 {
				continue
			}
			if picks := got[uint16(number)]; !slices.Equal(picks, j.want) {
				rt.Fatalf("job %d: %v were recorded, %v came", k, picks, j.want)
			}
		}
		held := map[uint32]bool{}
		for _, m := range a.t.Moves {
			if held[m.Object] == m.In {
				rt.Fatalf("%+v comes or leaves twice", m)
			}
			held[m.Object] = m.In
		}
	})
}

// What a successor does not know of a sample stays as it was; what it says of a job replaces what was said.
func TestWhatIsToldAgain(t *testing.T) {
	a := NewAssembler("t", 0)
	a.Object(3, Object{Stored: 10, Decoded: 50, Decode: 7})
	a.Object(3, Object{Stored: 11, Augment: 2})
	if got := a.object(3); got != (Object{Stored: 11, Decoded: 50, Decode: 7, Augment: 2}) {
		t.Errorf("%+v", got)
	}
	for _, r := range [][]Range{{{0, 4}}, {{2, 6}}} {
		a.Job(1, Recorded{Job: Job{Name: "a", Batch: 1}, World: JobWorld{Ranks: 1, Prefetch: 1}})
		a.Subset(1, r)
	}
	a.Batch(1, 0, []uint32{2, 3, 4, 5})
	tr, err := a.Finish(World{Workers: 1, Cores: 1, Breaks: 1})
	if err != nil || tr.Objects != 4 || !slices.Equal(tr.Members(0), []uint32{0, 1, 2, 3}) || tr.World.Breaks != 1 {
		t.Errorf("%v %+v", err, tr)
	}
}
