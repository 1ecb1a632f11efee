package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/ident"
	"larder/internal/xrand"
)

// damaged is a directory after a life of several terms, and what it holds.
type damaged struct {
	fs   *MemFS
	all  []row
	want *State
}

func newDamaged(t testing.TB, seed uint64) damaged {
	fs, s := NewMemFS(), newStory(seed)
	var all []row
	for range 3 {
		d, err := OpenDisk(fs, small)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 120 {
			all = append(all, s.record())
			d.Append(all[len(all)-1], nil)
			if i%5 == 0 {
				if err := d.Sync(bg); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return damaged{fs, all, fold(all)}
}

// frameEnds are the offsets where frames of a file begin.
func frameEnds(b []byte) []int {
	var out []int
	h, err := decodeHeader(b)
	for off := headerSize; err == nil && off < len(b); {
		_, body, ok := readFrame(b[off:], h.seed())
		if !ok {
			break
		}
		out = append(out, off)
		off += headSize + len(body)
	}
	return out
}

// hurt damages one file; it says how, "" when nothing changed.
func hurt(r *xrand.Rand, fs *MemFS, name string) string {
	names, _ := fs.List()
	before, _ := fs.ReadFile(name)
	foreign, _ := fs.ReadFile(names[r.IntN(len(names))])
	what := ""
	change := func(b []byte) []byte {
		switch r.IntN(6) {
		case 0:
			i := r.IntN(len(b))
			b[i] ^= 1 << r.IntN(8)
			what = fmt.Sprintf("bit flip at %d", i)
		case 1:
			i := r.IntN(len(b))
			end := min(len(b), i+1+r.IntN(600))
			clear(b[i:end])
			what = fmt.Sprintf("zeros from %d to %d", i, end)
		case 2:
			i := r.IntN(len(b))
			if e := frameEnds(b); len(e) > 0 && r.IntN(2) == 0 {
				i = e[r.IntN(len(e))]
			}
			b = b[:i]
			what = fmt.Sprintf("cut at %d", i)
		case 3, 4: // two records change places, one is there twice or not at all
			e := append(frameEnds(b), len(b))
			if len(e) < 3 {
				return b
			}
			i := r.IntN(len(e) - 2)
			j := i + 1 + r.IntN(len(e)-i-2)
			x, y := b[e[i]:e[i+1]], b[e[j]:e[j+1]]
			switch r.IntN(3) {
			case 0:
				b = slices.Concat(b[:e[i]], y, b[e[i+1]:e[j]], x, b[e[j+1]:])
			case 1:
				b = slices.Concat(b[:e[j]], x, b[e[j]:])
			case 2:
				b = slices.Concat(b[:e[i]], b[e[i+1]:])
			}
			what = fmt.Sprintf("records %d and %d", i, j)
		case 5: // bytes of another file
			if len(foreign) == 0 {
				return b
			}
			i := r.IntN(len(b))
			copy(b[i:], foreign[r.IntN(len(foreign)):])
			what = fmt.Sprintf("foreign bytes at %d", i)
		}
		return b
	}
	if len(before) == 0 {
		return ""
	}
	if err := fs.Damage(name, change); err != nil {
		panic(err)
	}
	after, _ := fs.ReadFile(name)
	if bytes.Equal(before, after) {
		return ""
	}
	return what
}

// Damaged media are never taken for the truth: a directory either opens with exactly what was in it, or is refused
// with file and offset; and Check sees damage in every file. LARDER_DAMAGED_LOGS sets how many are tried.
func TestDamagedLogs(t *testing.T) {
	left := runs(t, "LARDER_DAMAGED_LOGS", 1500)
	refused, unharmed := 0, 0
	for seed := uint64(0); left > 0; seed++ {
		base := newDamaged(t, seed)
		names, _ := base.fs.List()
		r := xrand.New(seed, 3)
		for range min(left, 500) {
			left--
			fs := base.fs.Clone()
			name := names[r.IntN(len(names))]
			what := ""
			switch k := r.IntN(12); {
			case k == 0:
				if err := fs.Remove(name); err != nil {
					t.Fatal(err)
				}
				what = "removed"
			case k == 1 && name != markName: // an older copy is put back
				b, _ := fs.ReadFile(name)
				if e := frameEnds(b); len(e) > 0 {
					what = "older copy"
					if err := fs.Damage(name, func(b []byte) []byte { return b[:e[r.IntN(len(e))]] }); err != nil {
						t.Fatal(err)
					}
				}
			case k == 2 && name != markName: // a file takes the place of another
				other := names[r.IntN(len(names))]
				if other != name && other != markName {
					what = "renamed to " + other
					if err := fs.Rename(name, other); err != nil {
						t.Fatal(err)
					}
				}
			default:
				what = hurt(r, fs, name)
			}
			if what == "" {
				continue
			}
			ok := tryDamaged(t, base, fs, harm{fmt.Sprintf("seed %d: %s of %s", seed, what, name), name, what})
			if ok {
				unharmed++
			} else {
				refused++
			}
		}
	}
	t.Logf("%d damaged directories were refused, %d opened with all that was in them", refused, unharmed)
	if refused == 0 || unharmed == 0 {
		t.Error("the damage is not what it should be")
	}
}

// harm is what was done to a file of a folder.
type harm struct{ label, name, what string }

func tryDamaged(t *testing.T, base damaged, fs *MemFS, h harm) (opened bool) {
	t.Helper()
	label, name, what := h.label, h.name, h.what
	if rep, err := Check(fs); err == nil && len(rep.Notes) == 0 && name != markName && what != "removed" &&
		!strings.HasPrefix(what, "renamed") {
		t.Errorf("%s: Check found nothing", label)
	} else if err != nil && (!errs.Is(err, errs.StateDamaged) && !errs.Is(err, errs.Unsupported) ||
		!strings.Contains(err.Error(), "byte")) {
		t.Errorf("%s: Check says %v", label, err)
	}
	repaired := fs.Clone()
	d, err := OpenDisk(fs, small)
	tryRepaired(t, base, repaired, label, err == nil)
	if err != nil {
		if !errs.Is(err, errs.StateDamaged) {
			t.Errorf("%s: %v", label, err)
		}
		return false
	}
	defer d.Close()
	if dump(d.Found()) != dump(base.want) {
		t.Errorf("%s: opened with %d of %d records", label, d.Found().Seq, len(base.all))
	}
	for k, want := range wantOrders(base.want) {
		got, err := d.Order(k.job, k.epoch)
		gone := what == "removed" || strings.HasPrefix(what, "renamed") // like a file beyond the retention
		if dmg := (*Damage)(nil); errors.As(err, &dmg) || err == nil && gone &&
			(len(got) == 0 || begunBefore(base.want, k, got)) {
			continue
		}
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: the order of job %d epoch %d is %v, %v; want %v", label, k.job, k.epoch, got, err, want)
		}
	}
	return true
}

// begunBefore reports whether an order is one that the epoch had before it was begun again.
func begunBefore(s *State, k epochKey, got [][]ident.ObjectID) bool {
	for _, c := range s.closed {
		if c.job != k.job || c.Epoch != k.epoch {
			continue
		}
		r := c.recorded()
		if fmt.Sprint(r.objects()) == fmt.Sprint(got) {
			return true
		}
	}
	return false
}

// tryRepaired checks that a repaired directory opens, with a beginning of what was there, and says how much is missing.
func tryRepaired(t *testing.T, base damaged, fs *MemFS, label string, sound bool) {
	t.Helper()
	rep, err := Repair(fs)
	if err != nil {
		if !errs.Is(err, errs.StateDamaged) || !strings.Contains(err.Error(), "move the directory away") {
			t.Errorf("%s: Repair: %v", label, err)
		}
		return
	}
	if sound && rep.Lost > 0 {
		t.Errorf("%s: Repair lost %d records of a directory that opens", label, rep.Lost)
	}
	if !sound && len(rep.Done) == 0 {
		t.Errorf("%s: Repair did nothing", label)
	}
	d, err := OpenDisk(fs, small)
	if err != nil {
		t.Errorf("%s: after Repair: %v", label, err)
		return
	}
	defer d.Close()
	found := d.Found()
	if found.Seq > uint64(len(base.all)) || dump(found) != dump(fold(base.all[:found.Seq])) {
		t.Errorf("%s: after Repair %d records are not the first of %d", label, found.Seq, len(base.all))
	}
	if found.Seq+rep.Lost < uint64(len(base.all)) {
		t.Errorf("%s: Repair says that %d records are lost, and %d of %d are left", label, rep.Lost, found.Seq, len(base.all))
	}
}

// A copy that was not finished is refused, whichever files are missing and wherever the last one ends, or it has
// everything that counts.
func TestHalfCopied(t *testing.T) {
	refused := 0
	for seed := range uint64(20) {
		base := newDamaged(t, seed)
		names, _ := base.fs.List()
		r := xrand.New(seed, 4)
		for range 30 {
			fs, order := NewMemFS(), slices.Clone(names)
			if r.IntN(2) == 0 { // else by name, as most programs copy
				r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			}
			n := r.IntN(len(order) + 1)
			for i, name := range order[:n] {
				b, _ := base.fs.ReadFile(name)
				if i == n-1 {
					b = b[:r.IntN(len(b)+1)]
				}
				if err := putFile(fs, name, b); err != nil {
					t.Fatal(err)
				}
			}
			label := fmt.Sprintf("seed %d: %d of %v", seed, n, order)
			if n == 0 {
				continue // an empty folder is a new one
			}
			found := tryCopied(t, base, fs, label)
			if !found {
				refused++
			}
		}
	}
	if refused < 300 {
		t.Errorf("only %d copies were refused", refused)
	}
}

// tryCopied opens a copy: false when it is refused, with a file.
func tryCopied(t *testing.T, base damaged, fs *MemFS, label string) bool {
	t.Helper()
	d, err := OpenDisk(fs, small)
	if err != nil {
		if !errs.Is(err, errs.StateDamaged) || !strings.Contains(err.Error(), "damaged at byte") ||
			!strings.Contains(err.Error(), "larder state repair") {
			t.Errorf("%s: %v", label, err)
		}
		return false
	}
	defer d.Close()
	names, _ := fs.List()
	logs := slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, "log-") })
	if seq := d.Found().Seq; (seq > 0 || len(logs) > 2) && dump(d.Found()) != dump(base.want) {
		t.Errorf("%s: opened with %d of %d records", label, seq, len(base.all))
	}
	return true
}

// A folder that must not be written is refused, with what to do.
func TestReadOnly(t *testing.T) {
	dir := mounted(t, "4m")
	fs, err := OpenDir(filepath.Join(dir, "state"), true)
	if err != nil {
		t.Fatal(err)
	}
	d := open(t, fs, Options{})
	d.Append(row{Kind: kindRegistered, Job: 1, Text: "job"}, nil)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("larder-test", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, "size=4m,mode=0700"); err != nil {
		t.Skip(err)
	}
	if fs, err = OpenDir(filepath.Join(dir, "state"), true); err != nil {
		t.Fatal(err)
	}
	if _, err = OpenDisk(fs, Options{}); !errs.Is(err, errs.StateFailed) || !errors.Is(err, unix.EROFS) ||
		!strings.Contains(err.Error(), "that larder may write to") {
		t.Error(err)
	}
	if _, err := OpenDir(filepath.Join(dir, "new"), true); !errs.Is(err, errs.ConfigInvalid) ||
		!strings.Contains(err.Error(), "that you may write to") {
		t.Error(err)
	}
}

// A directory of a newer version is refused and left alone.
func TestNewerVersion(t *testing.T) {
	base := newDamaged(t, 1)
	names, _ := base.fs.List()
	last := names[slices.IndexFunc(names, func(s string) bool { return strings.HasPrefix(s, "mark") })-1]
	newer := func(b []byte) []byte {
		b[8] = version + 1
		binary.LittleEndian.PutUint32(b[40:], crc32.Checksum(b[:40], castagnoli))
		return b
	}
	if err := base.fs.Damage(last, newer); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDisk(base.fs, small); !errs.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "newer") {
		t.Errorf("open: %v", err)
	}
	if _, err := Repair(base.fs); !errs.Is(err, errs.Unsupported) {
		t.Errorf("repair: %v", err)
	}
}

func FuzzRecord(f *testing.F) {
	s := newStory(1)
	for range 50 {
		e := entry{row: s.record()}
		f.Add(appendBody(nil, &e))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeBody(b)
		if err != nil {
			return
		}
		if got := appendBody(nil, &e); !bytes.Equal(got, b) {
			t.Fatalf("%x became %x", b, got)
		}
		r := e.unpacked()
		again := r
		back, err := decodeBody(appendBody(nil, &again))
		if err != nil || fmt.Sprint(back.unpacked()) != fmt.Sprint(r) {
			t.Fatalf("%v became %v, %v", r, back.unpacked(), err)
		}
		newState().apply(&e)
	})
}

// FuzzLog opens a directory whose only segment and snapshot are anything.
func FuzzLog(f *testing.F) {
	base := newDamaged(f, 2)
	names, _ := base.fs.List()
	for _, name := range names {
		b, _ := base.fs.ReadFile(name)
		f.Add(b, uint8(strings.IndexByte("los", name[0])), false)
		f.Add(b[:len(b)/2], uint8(strings.IndexByte("los", name[0])), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, kind uint8, seal bool) {
		if seal { // checksums that fit, so that what is behind them is reached
			h := header{kind: fileKind(kind%3 + 1), id: 1, first: 1, term: 1}
			out := h.encode()
			for n := uint64(1); len(b) > 0; n++ {
				k := min(len(b), 1+int(b[0]))
				from := len(out)
				out = append(openFrame(out), b[:k]...)
				sealFrame(out[from:], h.seed(), n, n-1)
				b = b[k:]
			}
			b = out
		}
		fs := NewMemFS()
		name := []string{logName(1, 1), snapshotName(1), ordersName(1)}[kind%3]
		if err := putFile(fs, name, b); err != nil {
			t.Fatal(err)
		}
		_, _ = Check(fs)
		if d, err := OpenDisk(fs, small); err == nil {
			_, _ = d.Order(1, 0)
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
