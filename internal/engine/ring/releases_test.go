package ring

import (
	"bytes"
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"larder/internal/session/wire"
	"larder/internal/shm"
	"larder/internal/xrand"
)

// wordRing is a ring of that many slots that has nothing but a board and release words.
func wordRing(t interface{ Fatal(...any) }, slots int) *Ring {
	l := Layout{Slots: slots, SlotBytes: pageSize, Board: int64(slots) * pageSize, Posts: wire.Posts(slots)}
	seg, err := shm.Create("larder-test", l.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	r := &Ring{Layout: l, seg: seg, made: time.Now()}
	r.given = newReleases(r)
	return r
}

// words is the client's end.
func (r *Ring) words() wire.Releases { return wire.NewReleases(r.seg.Bytes()[r.Releases():], r.Slots) }

// twin is what a daemon may believe: by slot the batch that the client holds, and what its word says.
type twin struct{ held, word []uint64 }

func (w *twin) collect() (given []Given) {
	for i, gen := range w.held {
		if gen != 0 && w.word[i] == gen {
			given = append(given, Given{Slot: i, Gen: gen})
			w.held[i] = 0
		}
	}
	return given
}

// TestReleaseWordsMatchTheirTwin: whatever a client writes, and whenever, a slot is given back exactly when its word
// names the batch that the client holds there, and once.
func TestReleaseWordsMatchTheirTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 9).Draw(t, "slots")
		r := wordRing(t, slots)
		defer r.seg.Release()
		client, w := r.words(), twin{make([]uint64, slots), make([]uint64, slots)}
		next, read := make([]uint64, slots), 0
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			i := rapid.IntRange(0, slots-1).Draw(t, "slot")
			switch rapid.SampledFrom([]string{"lease", "release", "lie", "collect"}).Draw(t, "step") {
			case "lease":
				if w.held[i] == 0 {
					next[i]++
					r.given.lease(i, next[i], rapid.IntRange(0, 20).Draw(t, "batch"), rapid.Bool().Draw(t, "waits"))
					w.held[i] = next[i]
				}
			case "release":
				client.Write(uint32(i), next[i], 7, monotonic())
				w.word[i] = next[i]
			case "lie":
				gen := rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, next[i]+2)).Draw(t, "generation")
				client.Write(uint32(i), gen, rapid.Uint32().Draw(t, "waited"), rapid.Int64().Draw(t, "at"))
				w.word[i] = gen
			case "collect":
				got := r.given.collect(Key{}, nil)
				for k := range got {
					if got[k].Waited < 0 || got[k].Ago < 0 || got[k].Ago > time.Since(r.made)+time.Second {
						t.Fatalf("waited %v, ago %v", got[k].Waited, got[k].Ago)
					}
					got[k].Waited, got[k].Ago = 0, 0
				}
				slices.SortFunc(got, func(a, b Given) int { return a.Slot - b.Slot })
				want := w.collect()
				if read += len(want); !slices.Equal(got, want) {
					t.Fatalf("%v, want %v", got, want)
				}
				if n := binary.LittleEndian.Uint64(r.seg.Bytes()[r.Board+16:]); n != uint64(read) {
					t.Fatalf("the board says that %d were read, %d were", n, read)
				}
			}
			if at := wire.TellAt(r.seg.Bytes()[r.Board:]); at > r.given.sent || at+uint64(slots) < r.given.sent+1 {
				t.Fatalf("the client tells after %d batches; %d were handed over", at, r.given.sent)
			}
		}
	})
}

// FuzzReleaseWords: the client writes any bytes into its board and its words, and every slot that it holds is still
// given back by the word that says so.
func FuzzReleaseWords(f *testing.F) {
	f.Add([]byte("\x01"), uint64(1))
	f.Add(make([]byte, 4096), uint64(0))
	f.Add(bytes.Repeat([]byte{0xff}, 24), uint64(math.MaxUint64))
	f.Fuzz(func(t *testing.T, junk []byte, gen uint64) {
		const slots = 4
		r := wordRing(t, slots)
		defer r.seg.Release()
		gen = max(gen, 1)
		for i := range slots {
			r.given.lease(i, gen, i, false)
		}
		mem := r.seg.Bytes()[r.Board:]
		for at := 0; len(junk) > 0 && at < len(mem); at += len(junk) {
			copy(mem[at:], junk)
		}
		seen := map[int]bool{}
		take := func() {
			for _, g := range r.given.collect(Key{}, nil) {
				if g.Slot < 0 || g.Slot >= slots || g.Gen != gen || seen[g.Slot] || g.Waited < 0 || g.Ago < 0 {
					t.Fatalf("%+v of %d", g, gen)
				}
				seen[g.Slot] = true
			}
		}
		take()
		_, _ = r.WaitNow()
		for i := range uint32(slots) {
			r.words().Write(i, gen, 0, 0)
		}
		if take(); len(seen) != slots {
			t.Fatalf("%v of %d slots were given back", seen, slots)
		}
		r.given.lease(0, gen+1, 9, true)
		take() // the old word gives nothing back
	})
}

// TestReleaseWordsUnderWay: a client gives back while the daemon hands over and looks from two goroutines. Every batch
// is given back once, with what belongs to it.
func TestReleaseWordsUnderWay(t *testing.T) {
	const slots, rounds = 4, 1_000
	r := wordRing(t, slots)
	defer r.seg.Release()
	leases, free := make(chan Given, slots), make(chan Given, slots)
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { // the client
		rng, words := xrand.New(1, 2), r.words()
		var held []Given
		for g := range leases {
			held = append(held, g)
			for len(held) > 0 && (len(held) == slots || rng.IntN(2) == 0) {
				k := rng.IntN(len(held))
				words.Write(uint32(held[k].Slot), held[k].Gen, uint32(held[k].Gen), monotonic())
				held = slices.Delete(held, k, k+1)
			}
		}
		for _, g := range held {
			words.Write(uint32(g.Slot), g.Gen, uint32(g.Gen), monotonic())
		}
	})
	for range 2 { // the session and the loop
		all.Go(func() {
			for {
				for _, g := range r.given.collect(Key{}, nil) {
					free <- g
				}
				select {
				case <-done:
					return
				default:
					runtime.Gosched()
				}
			}
		})
	}
	gens := make([]uint64, slots)
	lease := func(slot, n int) {
		gens[slot]++
		r.given.lease(slot, gens[slot], n, false)
		leases <- Given{Slot: slot, Gen: gens[slot]}
	}
	for i := range slots {
		lease(i, i)
	}
	for n := range rounds {
		g := <-free
		if g.Gen != gens[g.Slot] || g.Waited != time.Duration(uint32(g.Gen))*time.Microsecond {
			t.Errorf("%+v, want generation %d", g, gens[g.Slot])
			break
		}
		lease(g.Slot, n)
	}
	close(leases)
	for range slots {
		<-free
	}
	close(done)
	all.Wait()
}

// TestReleaseBytes pins the layout of docs/protocol.md: Python writes the same bytes.
func TestReleaseBytes(t *testing.T) {
	r := wordRing(t, 4)
	defer r.seg.Release()
	if want := r.Board + 128 + 64*8; r.Releases() != want {
		t.Fatalf("the words are at %d, want %d", r.Releases(), want)
	}
	r.words().Write(2, 0x0102030405060708, 0x090a0b0c, 0x0d0e0f1011121314)
	le := binary.LittleEndian
	w := r.seg.Bytes()[r.Releases()+64:]
	if le.Uint64(w) != 0x0d0e0f1011121314 || le.Uint32(w[8:]) != 0x090a0b0c || le.Uint64(w[16:]) != 0x0102030405060708 {
		t.Errorf("%x", w[:32])
	}
	wire.SetTellAt(r.seg.Bytes()[r.Board:], 5)
	if r.seg.Bytes()[r.Board+8] != 5 {
		t.Error("the word that says when to tell is at 8")
	}
	if (&Ring{}).given.collect(Key{}, nil) != nil || newReleases(&Ring{}) != nil {
		t.Error("a ring without a board has no words")
	}
}

// TestTimesOfReleasesAreTheClients: when it gave back and how long it waited; a time that cannot be is none.
func TestTimesOfReleasesAreTheClients(t *testing.T) {
	r := wordRing(t, 3)
	defer r.seg.Release()
	r.given.made -= int64(time.Hour)
	for i := range 3 {
		r.given.lease(i, 1, i, false)
	}
	now := monotonic()
	r.words().Write(0, 1, 3, now-int64(time.Minute))
	r.words().Write(1, 1, math.MaxUint32, now-int64(2*time.Minute))
	r.words().Write(2, 1, 0, now+int64(time.Minute))
	got := r.given.collect(Key{Rank: 3}, nil)
	if len(got) != 3 || got[0].Slot != 1 || got[1].Slot != 0 || got[2].Slot != 2 || got[0].Key.Rank != 3 {
		t.Fatalf("%+v: the oldest is the first", got)
	}
	if got[0].Ago < 2*time.Minute || got[1].Ago < time.Minute || got[1].Ago > 2*time.Minute || got[2].Ago != 0 {
		t.Errorf("%+v", got)
	}
	if got[1].Waited != 3*time.Microsecond || got[0].Waited != math.MaxUint32*time.Microsecond {
		t.Errorf("%+v", got)
	}
}
