package audit

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Nothing in a file can make the auditor panic, hang, or use memory beyond what the file has.
//
// The input is a script of edits of an honest log, so that it stays short: the fuzzer's search for a smaller input
// takes time in proportion to the square of the length. A script can write any log: its edits drop and insert lines.
func FuzzCheck(f *testing.F) {
	worlds := make([][]string, 4) // lines of an honest log
	for seed := range worlds {
		all := bytes.Join(newWorld(f, uint64(seed), 1, seed%2 == 1).logs(), nil)
		worlds[seed] = strings.SplitAfter(strings.TrimSuffix(string(all), "\n"), "\n")
		f.Add(uint8(seed), []byte{}, uint16(len(worlds[seed])/2))
	}
	for i, script := range []string{"d\x03", "d\x02d\x02d\x02", "c\x02\x04", "n\x02\x03\x04", "n\x01\x05\x01n\x03\x02\x06",
		"x\x04\x20z", "t\x05\x10", "i\x01{\"i\":2,\"r\":\"batch\",\"run\":1}\n", "i\x00\xff\xfe\nd\x01"} {
		f.Add(uint8(i), []byte(script), uint16(i))
	}
	f.Fuzz(func(t *testing.T, world uint8, script []byte, split uint16) {
		lines := slices.Clone(worlds[int(world)%len(worlds)])
		for len(script) > 0 {
			lines, script = edit(lines, script)
		}
		raw := []byte(strings.Join(lines, ""))
		// With sums that fit, the records are reached and not only the check of their lines; with numbers that count, too.
		for _, logs := range [][][]byte{{raw}, sealed(lines, int(split), false), sealed(lines, int(split), true)} {
			c := newChecker(Options{})
			for i, log := range logs {
				if err := c.log(fmt.Sprint(i), bytes.NewReader(log)); err != nil {
					t.Fatal(err)
				}
			}
			c.judge()
		}
	})
}

// numbers are what an edit makes of a number in a record.
var numbers = []string{"0", "1", "2", "-1", "65536", "1048576", "4294967295", "4294967296", "9223372036854775807",
	"18446744073709551615", "1e3", `"1"`, "null", "[]", "[0,0,1]"}

// edit carries out the first edit of a script: a letter, and the bytes that it needs. What is lacking is 0, and any
// other letter does nothing.
func edit(lines []string, script []byte) ([]string, []byte) {
	op, rest := script[0], script[1:]
	arg := func() int {
		if len(rest) == 0 {
			return 0
		}
		n := rest[0]
		rest = rest[1:]
		return int(n)
	}
	if len(lines) == 0 && op != 'i' {
		return lines, rest
	}
	at := arg() % (len(lines) + 1)
	line := min(at, max(len(lines)-1, 0))
	switch op {
	case 'd': // drop a line
		lines = slices.Delete(lines, line, line+1)
	case 'c': // copy it to another place
		lines = slices.Insert(lines, arg()%(len(lines)+1), lines[line])
	case 'n': // make something else of one of its numbers
		lines[line] = renumber(lines[line], arg(), numbers[arg()%len(numbers)])
	case 'x': // change a byte
		b := []byte(lines[line])
		if i, v := arg(), arg(); i < len(b) {
			b[i] = byte(v)
		}
		lines[line] = string(b)
	case 't': // cut it short
		lines[line] = lines[line][:min(arg(), len(lines[line]))]
	case 'i': // insert a line that the script has
		text, more, _ := bytes.Cut(rest, []byte{'\n'})
		lines, rest = slices.Insert(lines, at, "00000000 "+string(text)+"\n"), more
	}
	return lines, rest
}

// renumber puts another value in the place of the k-th number of a record.
func renumber(line string, k int, to string) string {
	for i := 9; i < len(line); i++ {
		if line[i] < '0' || line[i] > '9' {
			continue
		}
		end := i
		for end < len(line) && line[end] >= '0' && line[end] <= '9' {
			end++
		}
		if k == 0 {
			return line[:i] + to + line[end:]
		}
		k, i = k-1, end
	}
	return line
}

// sealed are the logs of these lines with sums that fit and, where they count, with the numbers that lines should have.
// A log begins where its first record is, and at the line split.
func sealed(lines []string, split int, count bool) [][]byte {
	logs := [][]byte{nil}
	n := 0
	for i, text := range lines {
		if i == split || strings.Contains(text, `"r":"log"`) && n > 0 {
			logs, n = append(logs, nil), 0
		}
		for line := range strings.Lines(text) {
			n++
			body := strings.TrimRight(line[min(9, len(line)):], "\n")
			if before, after, ok := strings.Cut(body, `"i":`); ok && count {
				body = before + `"i":` + strconv.Itoa(n) + strings.TrimLeft(after, "0123456789")
			}
			sum := append([]byte("00000000 "), body...)
			seal(sum)
			out := &logs[len(logs)-1]
			*out = append(append(*out, sum...), '\n')
		}
	}
	return logs
}
