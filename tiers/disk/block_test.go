package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"larder/internal/spool"
	"larder/internal/spool/spooltest"
)

func TestSpool(t *testing.T) {
	spooltest.Run(t, func(t *testing.T) spool.Spool { return openAt(t, Config{Dir: t.TempDir(), Size: 16 << 20}) })
	t.Run("without room", func(t *testing.T) {
		spooltest.Run(t, func(t *testing.T) spool.Spool { return openAt(t, Config{Dir: t.TempDir()}) })
	})
}

// TestBlocksStay: a block is made once for all runs.
func TestBlocksStay(t *testing.T) {
	dir, made := t.TempDir(), 0
	for range 3 {
		s := openAt(t, Config{Dir: dir, Size: 64 << 20})
		for range 2 {
			for i := range 100 { // more than stay open
				key := fmt.Sprint("block ", i)
				b, err := s.For("a").Block(context.Background(), key, func(ctx context.Context, w spool.Writer) error {
					made++
					return recordsOf(key)(ctx, w)
				})
				if err != nil {
					t.Fatal(err)
				}
				spooltest.Check(t, b, spooltest.Records(key, 300))
				_ = b.Close()
			}
		}
		if st := s.Stats(); st.Blocks != 100 || diskUse(t, dir) > st.Used {
			t.Errorf("%d bytes, %+v", diskUse(t, dir), st)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if made != 100 {
		t.Errorf("100 blocks were made %d times", made)
	}
}

// TestBlocksBeyondTheSize: what does not fit is made again, is right, and never exceeds the size.
func TestBlocksBeyondTheSize(t *testing.T) {
	const size = 4 << 20
	dir := t.TempDir()
	s := openAt(t, Config{Dir: dir, Size: size, Memory: 1 << 20})
	var held []spool.Reader
	for round := range 2 {
		for i := range 40 {
			key := fmt.Sprint(i)
			b, err := s.Block(context.Background(), key, recordsOf(key))
			if err != nil {
				t.Fatal(err)
			}
			spooltest.Check(t, b, spooltest.Records(key, 300))
			if held = append(held, b); len(held) > 3 {
				_ = held[0].Close()
				held = held[1:]
			}
			if n := diskUse(t, dir); n > size {
				t.Fatalf("round %d: the files take %d bytes of %d", round, n, size)
			}
		}
	}
	for _, b := range held {
		_ = b.Close()
		_ = b.Close() // does nothing
	}
	large := func(n int) spool.Make {
		return func(_ context.Context, w spool.Writer) error {
			for i := range n {
				if err := w.Add(bytes.Repeat([]byte{byte(i)}, 64<<10)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	b, err := s.Block(context.Background(), "larger than the memory", large(32))
	if err != nil || b.Len() != 32 {
		t.Fatal(b, err)
	}
	_ = b.Close()
	made := 0
	tooLarge := func(ctx context.Context, w spool.Writer) error {
		made++
		return large(100)(ctx, w)
	}
	for range 5 { // it is found out once
		_, err := s.Block(context.Background(), "larger than the disk", tooLarge)
		if !errors.Is(err, spool.ErrFull) || !strings.Contains(err.Error(), "4MiB") {
			t.Fatal("a block larger than the tier:", err)
		}
	}
	if made > 2 {
		t.Errorf("a block larger than the tier was made %d times", made)
	}
	if n := diskUse(t, dir); n > size {
		t.Errorf("the files take %d bytes of %d", n, size)
	}
	s.Resize(16 << 20)
	if b, err = s.Block(context.Background(), "larger than the disk", tooLarge); err != nil || b.Len() != 100 {
		t.Fatal("in a larger tier:", b, err)
	}
	for _, i := range []int{99, 0, 42} {
		if got, err := b.Record([]byte("x"), i); err != nil || len(got) != 1+64<<10 || got[1] != byte(i) {
			t.Errorf("record %d: %d bytes, %v", i, len(got), err)
		}
	}
	if _, err := b.Record(nil, 100); err == nil {
		t.Error("it has a record 100")
	}
	_ = b.Close()
}

// TestUnkeptBlocksEndWithTheirContext: what makes a block again for each read ends with the context of who asked for
// it, and others ask anew.
func TestUnkeptBlocksEndWithTheirContext(t *testing.T) {
	s := openAt(t, Config{Dir: t.TempDir(), Size: 8 << 20, Memory: 1 << 20})
	read, err := s.Block(t.Context(), "is being read", func(_ context.Context, w spool.Writer) error {
		return w.Add(make([]byte, 4<<20))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	slow := func(ctx context.Context, w spool.Writer) error {
		for range 100 {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := w.Add(make([]byte, 64<<10)); err != nil {
				return err
			}
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	b, err := s.Block(ctx, "a", slow)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := b.Record(nil, 99); err != nil || len(got) != 64<<10 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	cancel()
	if _, err := b.Record(nil, 99); !errors.Is(err, spool.ErrLost) {
		t.Errorf("without its context: %v", err)
	}
	if b, err = s.Block(t.Context(), "a", slow); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Record(nil, 99); err != nil || len(got) != 64<<10 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestLostBlock: a reader of a block that left reads on, and one of a damaged block gets ErrLost, then a new one.
func TestLostBlock(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, Config{Dir: dir, Size: 16 << 20})
	b, err := s.Block(context.Background(), "a", recordsOf("a"))
	if err != nil {
		t.Fatal(err)
	}
	list := must(realFiles{dir}.list())
	for _, name := range names(list) {
		if _, isBlock, ok := ours(name); ok && isBlock {
			f := must(realFiles{dir}.open(name, 2))
			if err := errors.Join(f.truncate(100), f.close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err = b.Record(nil, b.Len()-1)
	for i := b.Len() - 2; err == nil && i >= 0; i-- { // empty records may be whole
		_, err = b.Record(nil, i)
	}
	if !errors.Is(err, spool.ErrLost) {
		t.Errorf("a damaged block: %v", err)
	}
	again, err := s.Block(context.Background(), "a", recordsOf("a"))
	if err != nil {
		t.Fatal(err)
	}
	spooltest.Check(t, again, spooltest.Records("a", 300))
	_, _ = again.Close(), b.Close()
	if st := s.Stats(); diskUse(t, dir) > st.Used || st.Blocks != 1 || st.Damaged == 0 {
		t.Errorf("%d bytes, %+v", diskUse(t, dir), st)
	}
}

// unopened is a folder whose blocks can be written and not be opened.
type unopened struct{ files }

func (f unopened) open(name string, flags int) (file, error) {
	if _, isBlock, ok := ours(name); ok && isBlock && flags == unix.O_RDONLY {
		return nil, unix.EIO
	}
	return f.files.open(name, flags)
}

// TestABlockThatIsLostAgainAndAgain: one that memory does not take either is made for each read, and is no error.
func TestABlockThatIsLostAgainAndAgain(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, Config{Dir: dir, Size: 8 << 20, Memory: 64 << 10, files: unopened{realFiles{dir}}})
	b, err := s.Block(t.Context(), "a", func(_ context.Context, w spool.Writer) error {
		return errors.Join(w.Add(make([]byte, 100<<10)), w.Add([]byte("second")))
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := b.Record(nil, 1); err != nil || string(got) != "second" {
		t.Errorf("%q, %v", got, err)
	}
	_ = b.Close()
}
