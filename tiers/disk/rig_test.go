package disk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"larder/internal/xrand"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("LARDER_TEST_DISK_WRITER"); dir != "" {
		writeForEver(dir)
	}
	goleak.VerifyTestMain(m)
}

// openAt opens a Store, and closes it with the test.
func openAt(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// keyOf is the i-th key, and bytesOf what belongs to it: up to 8 KiB.
func keyOf(i int) Key {
	return Key{Place: "s3://bucket", Object: fmt.Sprintf("train/class %d/ü%d.jpg", i%7, i), Version: uint64(i) * 77,
		Off: int64(i % 3 * 512), Size: int64(len(bytesOf(i)))}
}

func bytesOf(i int) []byte {
	r := xrand.New(uint64(i), 1)
	b := binary.LittleEndian.AppendUint64(nil, r.Uint64())
	return bytes.Repeat(b, 1+int(r.Uint64()%1024))
}

// has reads the i-th entry; a hit must be what was put.
func has(t testing.TB, s *Store, group string, i int) bool {
	t.Helper()
	want := bytesOf(i)
	got := make([]byte, len(want))
	ok := s.Get(Whom{Group: group}, keyOf(i), got)
	if ok && !bytes.Equal(got, want) {
		t.Fatalf("entry %d has other bytes than were put", i)
	}
	return ok
}

func put(s *Store, group string, from, to int) {
	for i := from; i < to; i++ {
		s.Put(Whom{Group: group}, keyOf(i), bytesOf(i))
		if i%500 == 499 {
			s.Flush()
		}
	}
	s.Flush()
}

func countHits(t testing.TB, s *Store, group string, from, to int) (n int) {
	for i := from; i < to; i++ {
		if has(t, s, group, i) {
			n++
		}
	}
	return n
}

// diskUse is what the files of a directory take, as du counts them.
func diskUse(t testing.TB, dir string) (n int64) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append([]string{""}, names(list)...) {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, name), &st); err == nil { // it may have left
			n += st.Blocks * 512
		}
	}
	return n
}

func names(list []os.DirEntry) (out []string) {
	for _, d := range list {
		out = append(out, d.Name())
	}
	return out
}

// broken is a directory whose operations fail when they are told to.
type broken struct {
	files
	fail func(op, name string) error
	ops  atomic.Int64
}

func (d *broken) open(name string, flags int) (file, error) {
	if err := d.check("open", name); err != nil {
		return nil, err
	}
	f, err := d.files.open(name, flags)
	if err != nil {
		return nil, err
	}
	return &brokenFile{f, d, name}, nil
}

func (d *broken) remove(name string) error {
	if err := d.check("remove", name); err != nil {
		return err
	}
	return d.files.remove(name)
}

func (d *broken) list() ([]os.DirEntry, error) {
	if err := d.check("list", ""); err != nil {
		return nil, err
	}
	return d.files.list()
}

func (d *broken) check(op, name string) error {
	d.ops.Add(1)
	return d.fail(op, name)
}

type brokenFile struct {
	file
	d    *broken
	name string
}

func (f *brokenFile) readv(parts [][]byte, off int64) error {
	if err := f.d.check("read", f.name); err != nil {
		return err
	}
	return f.file.readv(parts, off)
}

func (f *brokenFile) writev(parts [][]byte, off int64) error {
	if err := f.d.check("write", f.name); err != nil {
		half := len(parts) / 2 // a part of it is on the disk
		_ = f.file.writev(parts[:half], off)
		return err
	}
	return f.file.writev(parts, off)
}

func (f *brokenFile) truncate(n int64) error {
	if err := f.d.check("truncate", f.name); err != nil {
		return err
	}
	return f.file.truncate(n)
}

func (f *brokenFile) size() (int64, error) {
	if err := f.d.check("size", f.name); err != nil {
		return 0, err
	}
	return f.file.size()
}

// needs is what live jobs need.
type needs struct {
	sync.Mutex
	of map[string]int
}

func (n *needs) set(group string, need int) {
	n.Lock()
	defer n.Unlock()
	if n.of == nil {
		n.of = map[string]int{}
	}
	n.of[group] = need
}

func (n *needs) need(group string) int {
	n.Lock()
	defer n.Unlock()
	return n.of[group]
}

// clock is a time that a test moves.
type clock struct{ seconds atomic.Int64 }

func (c *clock) now() time.Time { return time.Unix(c.seconds.Load(), 0) }
