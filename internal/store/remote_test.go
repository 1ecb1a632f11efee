package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"larder/internal/errs"
)

var object = content(100_000)

func bodyOf(off, n int64) io.ReadCloser { return io.NopCloser(bytes.NewReader(object[off : off+n])) }

func whole(key string) Info { return Info{Key: key, Size: int64(len(object)), Version: 5} }

// A failure that passes is tried again with waits that double, and the read goes on where it was cut.
func TestReadsAreTriedAgainFromWhereTheyWereCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var offsets []int64
		b := &scripted{}
		b.onGet = func(_ context.Context, nth int, in Info, off, n int64) (Info, io.ReadCloser, error) {
			offsets = append(offsets, off)
			switch nth {
			case 0:
				return Info{}, nil, &failure{kind: slowing, what: "slow down"}
			case 1: // cut
				return in, io.NopCloser(bytes.NewReader(object[off : off+1000])), nil
			case 2:
				return in, io.NopCloser(io.MultiReader(bytes.NewReader(object[off:off+500]),
					errReader{io.ErrUnexpectedEOF})), nil
			}
			return in, bodyOf(off, n), nil
		}
		s := scriptedStore(b, func(*Settings) {})
		begun := time.Now()
		got, err := readAll(t.Context(), s, whole("k"))
		if err != nil || !bytes.Equal(got, object) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		if want := []int64{0, 0, 1000, 1500}; fmt.Sprint(offsets) != fmt.Sprint(want) {
			t.Errorf("read from %d, want %d", offsets, want)
		}
		took := time.Since(begun)
		if lo, hi := 350*time.Millisecond, 700*time.Millisecond; took < lo || took > hi {
			t.Errorf("waited %v, want 0.1+0.2+0.4 s or half of it", took)
		}
		if c := s.Counters(); c.Retries != 3 || c.Errors != 0 {
			t.Errorf("%+v", c)
		}
	})
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

func TestAPlaceThatStaysDownIsAnErrorInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := false
		b := &scripted{onGet: func(_ context.Context, _ int, in Info, off, n int64) (Info, io.ReadCloser, error) {
			if down {
				return Info{}, nil, &failure{kind: passing, what: "the server answers 500"}
			}
			return in, bodyOf(off, n), nil
		}}
		s := scriptedStore(b, func(set *Settings) { set.RetryFor = 40 * time.Second })
		read := func() (time.Duration, error) {
			begun := time.Now()
			_, err := readAll(t.Context(), s, whole("k"))
			return time.Since(begun), err
		}
		down = true
		if took, err := read(); took > firstContact || !errs.Is(err, errs.DatasetUnread) {
			t.Errorf("a place that never answered: %v after %v", err, took)
		}
		down = false
		if _, err := read(); err != nil {
			t.Fatal(err)
		}
		down = true
		took, err := read()
		if took < 25*time.Second || took > 40*time.Second {
			t.Errorf("gave up after %v of 40 s", took)
		}
		if m := saysAll(fmt.Sprint(err), "read s3://data/k", "tries in", "the server answers 500"); m != nil {
			t.Errorf("%v does not say %q", err, m)
		}
	})
}

// Many reads that fail together do not storm a place: beyond what they saved up, two a second are sent again.
func TestRetriesHaveABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		b := &scripted{onGet: func(context.Context, int, Info, int64, int64) (Info, io.ReadCloser, error) {
			sent.Add(1)
			return Info{}, nil, &failure{kind: slowing, what: "slow down"}
		}}
		s := scriptedStore(b, func(set *Settings) { set.RetryFor = 30 * time.Second })
		s.reached.Store(true)
		const readers = 200
		done := make(chan error, readers)
		for range readers {
			go func() { _, err := readAll(t.Context(), s, whole("k")); done <- err }()
		}
		for range readers {
			if err := <-done; err == nil {
				t.Error("a read of a place that is down succeeded")
			}
		}
		// the saved ones, a tenth of all, two a second
		if n, most := sent.Load(), int64(readers+retryMost+readers/10+30*retryRate+30); n > most {
			t.Errorf("%d requests, want at most %d", n, most)
		}
	})
}

func TestServersSayWhenToComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &scripted{onGet: func(_ context.Context, nth int, in Info, off, n int64) (Info, io.ReadCloser, error) {
			if nth == 0 {
				return Info{}, nil, &failure{kind: slowing, what: "slow down", after: 3 * time.Second}
			}
			return in, bodyOf(off, n), nil
		}}
		s := scriptedStore(b, func(*Settings) {})
		begun := time.Now()
		if _, err := readAll(t.Context(), s, whole("k")); err != nil || time.Since(begun) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}

func TestAnAnswerThatStallsIsCutAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &scripted{}
		b.onGet = func(ctx context.Context, nth int, in Info, off, n int64) (Info, io.ReadCloser, error) {
			switch nth {
			case 0: // no answer
				<-ctx.Done()
				return Info{}, nil, ctx.Err()
			case 1: // no end
				return in, io.NopCloser(io.MultiReader(bytes.NewReader(object[off:off+10]), blocked{ctx})), nil
			}
			return in, bodyOf(off, n), nil
		}
		s := scriptedStore(b, func(set *Settings) { set.Timeout = 2 * time.Second })
		s.reached.Store(true)
		begun := time.Now()
		got, err := readAll(t.Context(), s, whole("k"))
		if err != nil || !bytes.Equal(got, object) {
			t.Fatal(len(got), err)
		}
		if took := time.Since(begun); took < 4*time.Second || took > 5*time.Second {
			t.Errorf("took %v, want twice 2 s and short waits", took)
		}
		b.onGet = func(ctx context.Context, _ int, _ Info, _, _ int64) (Info, io.ReadCloser, error) {
			<-ctx.Done()
			return Info{}, nil, ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := readAll(ctx, s, whole("k")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the reader's own deadline", err)
		}
	})
}

type blocked struct{ ctx context.Context }

func (b blocked) Read([]byte) (int, error) { <-b.ctx.Done(); return 0, b.ctx.Err() }

// A slow answer is chased by a second request after the 95th of a hundred first-byte times, within a budget.
func TestSlowRequestsAreHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, slow := &scripted{}, &sync.Map{}
		var cut atomic.Int64
		b.onGet = func(ctx context.Context, nth int, in Info, off, n int64) (Info, io.ReadCloser, error) {
			d := 10 * time.Millisecond
			if _, is := slow.Load(nth); is {
				d = time.Second
			}
			select {
			case <-time.After(d):
				return in, bodyOf(off, n), nil
			case <-ctx.Done():
				cut.Add(1)
				return Info{}, nil, ctx.Err()
			}
		}
		s := scriptedStore(b, func(set *Settings) { set.Hedge = 0.05 })
		read := func() time.Duration {
			begun := time.Now()
			if got, err := readAll(t.Context(), s, whole("k")); err != nil || !bytes.Equal(got, object) {
				t.Fatal(len(got), err)
			}
			return time.Since(begun)
		}
		slow.Store(0, true)
		if took := read(); took != time.Second {
			t.Errorf("hedged after %v, before anything was measured", took)
		}
		for range 99 {
			read()
		}
		slow.Store(100, true)
		slow.Store(102, true)
		if took := read(); took > 30*time.Millisecond {
			t.Errorf("a slow read took %v", took)
		}
		if took := read(); took > 30*time.Millisecond {
			t.Errorf("the next slow read took %v", took)
		}
		synctest.Wait()
		if c := s.Counters(); c.Hedges != 2 || cut.Load() != 2 {
			t.Errorf("%d hedges, %d requests cut; want 2 and 2", c.Hedges, cut.Load())
		}
		for i := range 1000 { // all are slow now: 5 % and what was saved up
			slow.Store(104+i, true)
		}
		before := s.Counters().Hedges
		s.latency = latency{p95: 15 * time.Millisecond}
		for range 20 {
			read()
		}
		if n := s.Counters().Hedges - before; n > hedgeMost+1 || n < hedgeMost-2 {
			t.Errorf("%d hedges of 20 reads, want what the budget of %d has", n, hedgeMost)
		}
	})
}

// A second request that fails does not spoil the first.
func TestAHedgeThatFailsIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &scripted{onGet: func(_ context.Context, nth int, in Info, off, n int64) (Info, io.ReadCloser, error) {
			if nth == 1 {
				return Info{}, nil, &failure{kind: final, what: "denied"}
			}
			time.Sleep(time.Second)
			return in, bodyOf(off, n), nil
		}}
		s := scriptedStore(b, func(set *Settings) { set.Hedge = 1 })
		s.latency.p95 = 10 * time.Millisecond
		if got, err := readAll(t.Context(), s, whole("k")); err != nil || !bytes.Equal(got, object) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
}

// Parallel bounds the requests under way, hedges among them, and long reads are several requests.
func TestRequestsUnderWayAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		big := content(5*partSize + 123)
		var now, most atomic.Int64
		b := &scripted{onGet: func(_ context.Context, _ int, in Info, off, n int64) (Info, io.ReadCloser, error) {
			if k := now.Add(1); k > most.Load() {
				most.Store(k)
			}
			time.Sleep(time.Second)
			now.Add(-1)
			return in, io.NopCloser(bytes.NewReader(big[off : off+n])), nil
		}}
		s := scriptedStore(b, func(set *Settings) { set.Parallel, set.Hedge = 3, 1 })
		s.latency.p95 = time.Millisecond
		in := Info{Key: "big", Size: int64(len(big)), Version: 1}
		got, err := readAll(t.Context(), s, in)
		if err != nil || !bytes.Equal(got, big) {
			t.Fatalf("%d of %d bytes, %v", len(got), len(big), err)
		}
		if most.Load() != 3 {
			t.Errorf("%d requests at once, want 3", most.Load())
		}
	})
}

// Bytes of another version are never returned, and never mixed with those of the first.
func TestAChangedObjectIsAnError(t *testing.T) {
	for name, f := range map[string]func(nth int, in Info, off, n int64) (Info, io.ReadCloser, error){
		"other version": func(_ int, in Info, off, n int64) (Info, io.ReadCloser, error) {
			in.Version++
			return in, bodyOf(off, n), nil
		},
		"other size": func(_ int, in Info, off, n int64) (Info, io.ReadCloser, error) {
			in.Size--
			return in, bodyOf(off, n), nil
		},
		"refused": func(int, Info, int64, int64) (Info, io.ReadCloser, error) {
			return Info{}, nil, &failure{kind: altered, what: "it was written again"}
		},
		"between two tries": func(nth int, in Info, off, n int64) (Info, io.ReadCloser, error) {
			if nth == 0 {
				return in, io.NopCloser(bytes.NewReader(object[:1000])), nil
			}
			in.Version++
			return in, bodyOf(off, n), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &scripted{onGet: func(_ context.Context, nth int, in Info, off, n int64) (Info, io.ReadCloser, error) {
					return f(nth, in, off, n)
				}}
				s := scriptedStore(b, func(*Settings) {})
				got, err := readAll(t.Context(), s, whole("k"))
				if len(got) != 0 || !errors.Is(err, ErrChanged) || !errs.Is(err, errs.DatasetUnread) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
				if !strings.Contains(hint(err), "larder dataset refresh") {
					t.Errorf("the hint %q is no help", hint(err))
				}
			})
		})
	}
}

func TestExpiredCredentialsAreRenewedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stays := false
		b := &scripted{}
		b.onGet = func(_ context.Context, _ int, in Info, off, n int64) (Info, io.ReadCloser, error) {
			if stays || b.renews == 0 {
				return Info{}, nil, &failure{kind: expired, what: "the credentials have expired", hint: "renew them"}
			}
			return in, bodyOf(off, n), nil
		}
		s := scriptedStore(b, func(*Settings) {})
		if _, err := readAll(t.Context(), s, whole("k")); err != nil || b.renews != 1 {
			t.Errorf("%v after %d renewals", err, b.renews)
		}
		stays = true
		if _, err := readAll(t.Context(), s, whole("k")); err == nil || hint(err) != "renew them" || b.renews != 2 {
			t.Errorf("%v after %d renewals", err, b.renews)
		}
	})
}

// A list that is cut goes on from its last key: every object once, in order.
func TestListsGoOnWhereTheyWereCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &scripted{onList: func(nth int, prefix, after string) ([]Info, bool, error) {
			if nth%2 == 0 {
				return nil, false, &failure{kind: passing, what: "the server failed"}
			}
			from := 0
			if after != "" {
				if _, err := fmt.Sscanf(after, prefix+"%d", &from); err != nil {
					return nil, false, err
				}
				from++
			}
			page := make([]Info, 0, 10)
			for i := from; i < from+10 && i < 35; i++ {
				page = append(page, Info{Key: fmt.Sprintf("%s%03d", prefix, i)})
			}
			return page, from+10 < 35, nil
		}}
		s := scriptedStore(b, func(*Settings) {})
		var got []string
		if err := s.List(t.Context(), "p/", func(in Info) error { got = append(got, in.Key); return nil }); err != nil {
			t.Fatal(err)
		}
		if len(got) != 35 || got[0] != "p/000" || got[34] != "p/034" {
			t.Errorf("%d keys: %q", len(got), got)
		}
		stop := errors.New("stop")
		seen := 0
		err := s.List(t.Context(), "p/", func(Info) error { seen++; return stop })
		if !errors.Is(err, stop) || seen != 1 {
			t.Errorf("%v after %d", err, seen)
		}
		b.onList = func(int, string, string) ([]Info, bool, error) { return []Info{{Key: "b"}, {Key: "a"}}, false, nil }
		if err := s.List(t.Context(), "", func(Info) error { return nil }); !errs.Is(err, errs.Unsupported) {
			t.Errorf("a list without order: %v", err)
		}
	})
}

func TestCountersAndMoney(t *testing.T) {
	c := &counters{}
	c.reads.Store(3000)
	c.lists.Store(200)
	c.writes.Store(300)
	c.deletes.Store(7000) // stores take nothing for them
	c.bytes.Store(5 << 30)
	got := c.read("s3://a", Settings{PriceGet: 0.0004, PriceList: 0.005, PriceGiB: 0.09})
	if got.Lists != 200 || got.Writes != 300 || got.Deletes != 7000 {
		t.Errorf("%+v", got)
	}
	if want := 3*0.0004 + 0.5*0.005 + 5*0.09; got.Money < want-1e-9 || got.Money > want+1e-9 {
		t.Errorf("money %v, want %v", got.Money, want)
	}
}
