package sandbox

import (
	"encoding/binary"
	"slices"
	"testing"
	"unicode"

	"golang.org/x/sys/unix"

	"larder/internal/prep"
	"larder/internal/xrand"
)

// FuzzAnswer: whatever a child answers, the daemon takes nothing that does not fit what it asked for, copies no more
// than it has room for, and prints nothing that a terminal would obey.
func FuzzAnswer(f *testing.F) {
	good, _ := (&answer{seq: 3, got: prep.Area{X: 8, Y: 8, W: 40, H: 40}}).append(nil)
	f.Add(good, uint16(100), uint16(80), uint16(10), uint16(9), uint16(20), uint16(20))
	bad, _ := (&answer{seq: 3, bad: &prep.Failure{Message: "it is\x1b[31m", Cause: "\x00", At: 5}}).append(nil)
	f.Add(bad, uint16(100), uint16(80), uint16(0), uint16(0), uint16(0), uint16(0))
	f.Fuzz(func(t *testing.T, b []byte, w, h, x, y, pw, ph uint16) {
		r := request{seq: 3, stored: 1000, want: prep.Want{W: int(w) + 1, H: int(h) + 1,
			Part: prep.Area{X: int(x), Y: int(y), W: int(pw), H: int(ph)}}}
		if pw == 0 || ph == 0 || int(x)+int(pw) > r.want.W || int(y)+int(ph) > r.want.H {
			r.want.Part = prep.Area{}
		}
		if len(b) > 8 {
			binary.LittleEndian.PutUint64(b, 3)
		}
		r.pixels = int64(r.want.W) * int64(r.want.H) * 3
		a, err := parseAnswer(b, &r)
		if err != nil {
			return
		}
		if a.bad != nil {
			for _, c := range a.bad.Message + a.bad.Hint + a.bad.Cause {
				if !unicode.IsPrint(c) {
					t.Fatalf("%q is printed", c)
				}
			}
			if e := a.bad.Err(); e.Error() == "" || len(e.Error()) > 4*maxText {
				t.Fatalf("an error of %d bytes", len(e.Error()))
			}
			return
		}
		g, p := a.got, r.want.Part
		inside := g.X >= 0 && g.Y >= 0 && g.X+g.W <= r.want.W && g.Y+g.H <= r.want.H
		holds := g == prep.Area{} || g.X <= p.X && g.Y <= p.Y && g.X+g.W >= p.X+p.W && g.Y+g.H >= p.Y+p.H
		if !inside || !holds || int64(r.want.Bytes(g)) > r.pixels || r.want.Bytes(g) < 0 {
			t.Fatalf("%+v is taken for %+v", g, r.want)
		}
	})
}

// FuzzRequest: a child reads no request that reaches beyond the shared memory, and what is sent is what is read.
func FuzzRequest(f *testing.F) {
	r := request{seq: 1, stored: 100, pixels: 300, want: prep.Want{W: 10, H: 10, As: prep.Planes420}}
	f.Add(r.append(nil), int64(1<<20))
	f.Fuzz(func(t *testing.T, b []byte, memory int64) {
		memory = max(memory&(1<<40-1), page)
		r, err := parseRequest(b, memory)
		if err != nil {
			return
		}
		if end := pixelsAt(r.stored) + r.pixels; r.stored < 0 || r.pixels < 0 || end > memory || end < 0 {
			t.Fatalf("%+v in %d bytes", r, memory)
		}
		if !slices.Equal(r.append(nil), b) {
			t.Fatalf("%x is read as %+v", b, r)
		}
	})
}

// filterSays runs the filter on a call, as the kernel does.
func filterSays(p []unix.SockFilter, arch uint32, call uint32, args [6]uint64) uint32 {
	data := make([]byte, 64)
	binary.LittleEndian.PutUint32(data[offNumber:], call)
	binary.LittleEndian.PutUint32(data[offArch:], arch)
	for i, a := range args {
		binary.LittleEndian.PutUint64(data[offArgument+8*i:], a)
	}
	a := uint32(0)
	for pc := 0; ; pc++ {
		i, holds := p[pc], false
		switch i.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = binary.LittleEndian.Uint32(data[i.K:])
			continue
		case unix.BPF_RET | unix.BPF_K:
			return i.K
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			holds = a == i.K
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			holds = a&i.K != 0
		}
		if holds {
			pc += int(i.Jt)
		} else {
			pc += int(i.Jf)
		}
	}
}

// TestFilter: the filter answers every call, with any arguments, as the list of what is allowed reads.
func TestFilter(t *testing.T) {
	const pid = 4711
	p := program(auditArch, pid)
	plain := slices.Concat(allowed, onlyHere)
	naive := func(arch, call uint32, args [6]uint64) uint32 {
		yes := slices.Contains(plain, uintptr(call))
		if arch != auditArch {
			return unix.SECCOMP_RET_KILL_PROCESS
		}
		switch call {
		case unix.SYS_MMAP, unix.SYS_MPROTECT:
			yes = args[2]&unix.PROT_EXEC == 0
		case unix.SYS_CLONE:
			yes = args[0]&unix.CLONE_THREAD != 0
		case unix.SYS_TGKILL:
			yes = uint32(args[0]) == pid
		case unix.SYS_CLONE3:
			return unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
		}
		if yes {
			return unix.SECCOMP_RET_ALLOW
		}
		return unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	}
	r := xrand.New(1)
	values := []uint64{0, 1, unix.PROT_EXEC, unix.PROT_READ | unix.PROT_WRITE, unix.CLONE_THREAD, pid, 1 << 32, 7}
	for call := range uint32(1200) {
		if call >= 600 {
			call = uint32(r.Uint64())
		}
		for range 40 {
			var args [6]uint64
			for i := range args {
				if args[i] = values[r.IntN(len(values))]; r.IntN(3) == 0 {
					args[i] = r.Uint64()
				}
				if r.IntN(3) == 0 { // an argument that is the number of a call
					args[i] = uint64(plain[r.IntN(len(plain))])
				}
			}
			arch := auditArch
			if r.IntN(9) == 0 {
				arch ^= 1 << r.IntN(32)
			}
			got := filterSays(p, arch, call, args)
			if want := naive(arch, call, args); got != want {
				t.Fatalf("call %d of %#x with %#x: %#x, not %#x", call, arch, args, got, want)
			}
		}
	}
}
