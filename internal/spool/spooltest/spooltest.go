// Package spooltest checks that a spool keeps what package spool promises.
package spooltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"larder/internal/spool"
	"larder/internal/xrand"
)

// Records are those of a block: of some hundred bytes, some of them empty.
func Records(key string, n int) [][]byte {
	r := xrand.New(uint64(n), uint64(len(key)))
	out := make([][]byte, n)
	for i := range out {
		out[i] = bytes.Repeat([]byte(fmt.Sprintf("%s/%d;", key, i)), r.IntN(20))
	}
	return out
}

// maker adds the records and counts how often.
func maker(records [][]byte, times *atomic.Int64) spool.Make {
	return func(_ context.Context, w spool.Writer) error {
		times.Add(1)
		for _, r := range records {
			if err := w.Add(r); err != nil {
				return err
			}
		}
		return nil
	}
}

// Check compares a block with its records.
func Check(t testing.TB, r spool.Reader, records [][]byte) {
	t.Helper()
	if r.Len() != len(records) {
		t.Fatalf("the block has %d records, want %d", r.Len(), len(records))
	}
	for i, want := range records {
		got, err := r.Record([]byte("before"), i)
		if err != nil || !bytes.Equal(got, append([]byte("before"), want...)) {
			t.Fatalf("record %d is %.60q, %v, want %.60q", i, got, err, want)
		}
	}
	for _, i := range []int{-1, len(records)} {
		if _, err := r.Record(nil, i); err == nil {
			t.Fatalf("record %d of %d was read", i, len(records))
		}
	}
}

// Run checks a spool that holds at least a MiB. open gives an empty one.
func Run(t *testing.T, open func(t *testing.T) spool.Spool) {
	t.Run("a block is made once", func(t *testing.T) {
		s, times, ctx := open(t), atomic.Int64{}, context.Background()
		want := Records("a", 100)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 3 {
					r, err := s.Block(ctx, "a", maker(want, &times))
					if err != nil {
						t.Error(err)
						return
					}
					Check(t, r, want)
					if err := r.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if times.Load() != 1 {
			t.Errorf("the block was made %d times", times.Load())
		}
	})
	t.Run("a block without records", func(t *testing.T) {
		var times atomic.Int64
		r, err := open(t).Block(context.Background(), "none", maker(nil, &times))
		if err != nil {
			t.Fatal(err)
		}
		Check(t, r, nil)
		_ = r.Close()
	})
	t.Run("an error of make comes back, and leaves nothing", func(t *testing.T) { failing(t, open(t)) })
	t.Run("one who waits goes on when the maker gives up", func(t *testing.T) { givenUp(t, open(t)) })
	t.Run("a key that cannot be", func(t *testing.T) {
		for _, key := range []string{"", string(make([]byte, spool.MaxKey+1))} {
			if _, err := open(t).Block(context.Background(), key, maker(nil, new(atomic.Int64))); err == nil {
				t.Errorf("a key of %d bytes was taken", len(key))
			}
		}
	})
}

func failing(t *testing.T, s spool.Spool) {
	want, boom := Records("b", 10), errors.New("boom")
	_, err := s.Block(context.Background(), "b", func(_ context.Context, w spool.Writer) error {
		if err := w.Add([]byte("half")); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatalf("the error is %v", err)
	}
	r, err := s.Block(context.Background(), "b", maker(want, new(atomic.Int64)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	Check(t, r, want)
}

func givenUp(t *testing.T, s spool.Spool) {
	ctx, cancel := context.WithCancel(context.Background())
	making, want := make(chan struct{}), Records("c", 10)
	first := make(chan error, 1)
	go func() {
		_, err := s.Block(ctx, "c", func(ctx context.Context, _ spool.Writer) error {
			close(making)
			<-ctx.Done()
			return ctx.Err()
		})
		first <- err
	}()
	<-making
	second := make(chan error, 1)
	go func() {
		r, err := s.Block(context.Background(), "c", maker(want, new(atomic.Int64)))
		if err == nil {
			err = r.Close()
		}
		second <- err
	}()
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the maker got %v", err)
	}
	if err := <-second; err != nil {
		t.Errorf("the one who waited got %v", err)
	}
}
