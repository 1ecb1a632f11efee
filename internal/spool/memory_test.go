package spool_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"larder/internal/spool"
	"larder/internal/spool/spooltest"
)

func TestMemory(t *testing.T) {
	spooltest.Run(t, func(*testing.T) spool.Spool { return spool.NewMemory(1 << 20) })
}

// TestMemoryIsBounded: blocks leave, the least recent first, and readers keep what they hold.
func TestMemoryIsBounded(t *testing.T) {
	const size = 64 << 10
	m := spool.NewMemory(size)
	made := 0
	block := func(key string) spool.Reader {
		t.Helper()
		r, err := m.Block(context.Background(), key, func(_ context.Context, w spool.Writer) error {
			made++
			return w.Add(make([]byte, 10<<10))
		})
		if err != nil {
			t.Fatal(err)
		}
		if m.Used() > size {
			t.Fatalf("%d bytes are used of %d", m.Used(), size)
		}
		return r
	}
	first := block("first")
	for i := range 20 {
		block(fmt.Sprint(i))
		block("first") // stays, as it is the most recent
	}
	if made != 21 {
		t.Errorf("%d blocks were made, want 21", made)
	}
	block("0")
	if made != 22 {
		t.Errorf("a block that left was not made again")
	}
	if b, err := first.Record(nil, 0); err != nil || len(b) != 10<<10 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	_, err := m.Block(context.Background(), "huge", func(_ context.Context, w spool.Writer) error {
		return w.Add(make([]byte, size))
	})
	if !errors.Is(err, spool.ErrFull) {
		t.Errorf("a block larger than all: %v", err)
	}
}
