package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"larder/internal/prep"
)

// Descriptors of a child: the socket to the daemon, and the shared memory, which it closes when it has mapped it.
const (
	linkFD   = 3
	memoryFD = 4
)

// Decoder is what a child decodes with; see prep.Worker.Pixels.
type Decoder func(enc []byte, want prep.Want, dst []byte) (prep.Area, error)

// Serve is a child: it gives up what it does not need, and decodes what it is asked for until the daemon ends the
// connection. It is to be the whole program: on return the process must end.
func Serve() error {
	return serve(func(l prep.Limits) Decoder { return prep.NewWorker(l).Pixels })
}

// serve is Serve with another decoder, which open makes before the process is guarded.
func serve(open func(prep.Limits) Decoder) error {
	runtime.LockOSThread() // the end of this thread would be that of PR_SET_PDEATHSIG
	b := make([]byte, maxSetup)
	n, err := read(b)
	if err != nil || n == 0 {
		return fmt.Errorf("no setup came on descriptor %d: this command is for the daemon alone: %w", linkFD, err)
	}
	var x setup
	if err := json.Unmarshal(b[:n], &x); err != nil {
		return fmt.Errorf("the setup cannot be read: %w", err)
	}
	memory, err := unix.Mmap(memoryFD, 0, int(x.Memory), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %d bytes of shared memory: %w", x.Memory, err)
	}
	debug.SetMemoryLimit(imageBytes(x.Limits) + overhead/4)
	decode := open(x.Limits)
	state := guard(&x)
	text, err := json.Marshal(&state)
	if err != nil {
		return err
	}
	if err := write(text); err != nil {
		return err
	}
	return answerAll(decode, memory)
}

// answerAll answers requests until the connection ends.
func answerAll(decode Decoder, memory []byte) error {
	b := make([]byte, requestBytes+1)
	out := make([]byte, 0, maxAnswer)
	for {
		n, err := read(b)
		if err != nil || n == 0 {
			return err
		}
		r, err := parseRequest(b[:n], int64(len(memory)))
		if err != nil {
			return err
		}
		at := pixelsAt(r.stored)
		a := answer{seq: r.seq}
		a.got, err = decode(memory[:r.stored:r.stored], r.want, memory[at:at+r.pixels:at+r.pixels])
		if err != nil {
			f, ok := prep.FailureOf(err)
			if !ok {
				return err
			}
			a.bad, a.got = &f, prep.Area{}
		}
		if out, err = a.append(out[:0]); err != nil {
			return err
		}
		if err := write(out); err != nil {
			return err
		}
		if r.stored+r.pixels > keepShared { // Go's decoders made the image once more
			debug.FreeOSMemory()
		}
	}
}

func read(b []byte) (int, error) {
	for {
		n, err := unix.Read(linkFD, b)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func write(b []byte) error {
	for {
		_, err := unix.Write(linkFD, b)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// environment is what a child gets: what it needs, and no secrets of the daemon's.
func environment() []string {
	out := []string{"GOMAXPROCS=2", "GOTRACEBACK=single"}
	for _, name := range []string{"LD_LIBRARY_PATH", "GODEBUG", "LARDER_POISON"} { // the last is for tests, see prep
		if v, ok := os.LookupEnv(name); ok {
			out = append(out, name+"="+v)
		}
	}
	return out
}
