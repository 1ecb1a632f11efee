// Command worker makes the samples of a dataset for larder, in a process of its own and in 111 lines: sample i is the
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

	"golang.org/x/sys/unix"
)

const (
	hello, welcome, result              = 1, 2, 4
	work, task, done, free              = 32, 33, 34, 36
	recordBytes, slotBytes, memoryBytes = 128, 4096, 1 << 20
)

var le = binary.LittleEndian

// frame is the header of 16 bytes (abi 1, type, length, id) and the payload.
func frame(kind uint16, id uint64, payload []byte) []byte {
	b := le.AppendUint16(nil, 1)
	b = le.AppendUint16(b, kind)
	b = le.AppendUint32(b, uint32(len(payload)))
	return append(le.AppendUint64(b, id), payload...)
}

// read returns the next frame. Descriptors that ride on it are dropped: this worker takes no inputs.
func read(c *net.UnixConn) (kind uint16, payload []byte) {
	var head [16]byte
	_, err := io.ReadFull(c, head[:])
	if err == nil {
		payload = make([]byte, le.Uint32(head[4:]))
		_, err = io.ReadFull(c, payload)
	}
	if err == io.EOF { // the daemon has hung up: the work is done
		os.Exit(0)
	}
	check(err)
	return le.Uint16(head[2:]), payload
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// square writes the record of a sample: one scalar of int64 (docs/protocol.md#records).
func square(sample uint64, b []byte) {
	clear(b[:recordBytes])
	le.PutUint32(b, 0x4345524c)
	le.PutUint16(b[4:], 1)           // version
	le.PutUint16(b[6:], 1)           // fields
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
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: os.Args[1], Net: "unix"})
	check(err)
	send := func(b, oob []byte) { _, _, err := c.WriteMsgUnix(b, oob, nil); check(err) }
	send(frame(hello, 1, []byte(`{"client":"example","abiMin":1,"abiMax":1}`)), nil)
	if kind, p := read(c); kind != welcome {
		log.Fatalf("refused: %s", p)
	}
	// the memory of the records: nobody can resize it under the daemon
	fd, err := unix.MemfdCreate("squares", unix.MFD_ALLOW_SEALING)
	check(err)
	check(unix.Ftruncate(fd, memoryBytes))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	check(err)
	mem, err := unix.Mmap(fd, 0, memoryBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check(err)
	request, err := json.Marshal(map[string]any{"dataset": os.Args[2], "recipes": []string{os.Args[3]},
		"pid": os.Getpid(), "outBytes": memoryBytes, "client": fmt.Sprint(os.Getppid())})
	check(err)
	send(frame(work, 2, request), unix.UnixRights(fd))
	used := [memoryBytes / slotBytes]bool{}
	for {
		switch kind, p := read(c); kind {
		case result: // {"worker":…,"inBytes":…,"window":…}
		case free:
			used[le.Uint64(p)/slotBytes] = false
		case task:
			slot := 0
			for used[slot] { // a window of tasks is less than there are slots
				slot++
			}
			used[slot] = true
			square(le.Uint64(p[8:]), mem[slot*slotBytes:])
			answer := le.AppendUint64(append([]byte(nil), p[:8]...), uint64(slot*slotBytes))
			send(frame(done, 0, le.AppendUint64(answer, recordBytes)), nil)
		default:
			log.Fatalf("the daemon says: %s", p)
		}
	}
}
