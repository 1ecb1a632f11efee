// Command worker makes the samples of a dataset for larder, in a process of its own and in 100 lines: sample i is the
// number i squared. docs/protocol.md#workers describes what it speaks; nothing of larder is imported.
//
//	worker SOCKET python:squares@1 RECIPE    (RECIPE is Job.recipe of RegisterJob's answer)
package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

const hello, welcome, result, work, task, done, free = 1, 2, 4, 32, 33, 34, 36 // types of frames
const recordBytes, slotBytes, memoryBytes = 128, 4096, 1 << 20

var le = binary.LittleEndian

// frame is the header of 16 bytes (abi 1, type, length, id) and the payload.
func frame(kind uint16, id uint64, payload []byte) []byte {
	b := le.AppendUint16([]byte{1, 0}, kind)
	b = le.AppendUint32(b, uint32(len(payload)))
	return append(le.AppendUint64(b, id), payload...)
}

// read returns the next frame. Descriptors that ride on it are dropped: this worker takes no inputs.
func read(c *net.UnixConn) (kind uint16, payload []byte) {
	var head [16]byte
	_, err := io.ReadFull(c, head[:])
	if err == io.EOF { // the daemon has hung up: the work is done
		os.Exit(0)
	}
	check(err)
	payload = make([]byte, le.Uint32(head[4:]))
	must(io.ReadFull(c, payload))
	return le.Uint16(head[2:]), payload
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// square writes the record of a sample: one scalar of int64 (docs/protocol.md#records).
func square(sample uint64, b []byte) {
	clear(b[:recordBytes])
	copy(b, "LREC\x01\x00\x01\x00")  // version 1, one field
	le.PutUint64(b[8:], recordBytes) // the checksum at 16 stays 0
	b[24], b[25] = 4, 9              // scalar, int64, no dimensions
	le.PutUint64(b[32:], 64)         // where its value is
	le.PutUint64(b[40:], 8)          // and its bytes
	le.PutUint64(b[64:], sample*sample)
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: worker SOCKET DATASET RECIPE")
	}
	c := must(net.DialUnix("unix", nil, &net.UnixAddr{Name: os.Args[1], Net: "unix"}))
	send := func(b, oob []byte) { _, _, err := c.WriteMsgUnix(b, oob, nil); check(err) }
	send(frame(hello, 1, []byte(`{"client":"example","abiMin":1,"abiMax":1}`)), nil)
	if kind, p := read(c); kind != welcome {
		log.Fatalf("refused: %s", p)
	}
	fd := must(unix.MemfdCreate("squares", unix.MFD_ALLOW_SEALING)) // the memory of the records
	check(unix.Ftruncate(fd, memoryBytes))                          // nobody can resize it under the daemon:
	must(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL))
	mem := must(unix.Mmap(fd, 0, memoryBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
	request := must(json.Marshal(map[string]any{"dataset": os.Args[2], "recipes": []string{os.Args[3]},
		"pid": os.Getpid(), "outBytes": memoryBytes, "client": fmt.Sprint(os.Getppid())}))
	send(frame(work, 2, request), unix.UnixRights(fd))
	used := [memoryBytes / slotBytes]bool{}
	for {
		switch kind, p := read(c); kind {
		case result: // {"worker":…,"inBytes":…,"window":…}
		case free:
			used[le.Uint64(p)/slotBytes] = false
		case task:
			slot := slices.Index(used[:], false) // a window of tasks is less than there are slots
			used[slot] = true
			square(le.Uint64(p[8:]), mem[slot*slotBytes:])
			answer := le.AppendUint64(append([]byte(nil), p[:8]...), uint64(slot*slotBytes))
			send(frame(done, 0, le.AppendUint64(answer, recordBytes)), nil)
		default:
			log.Fatalf("the daemon says: %s", p)
		}
	}
}
