package archtest

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the picture of the rooms into docs/architecture.md")

// The picture stands between these marks of docs/architecture.md.
const (
	pictureBegin = "<!-- layers: go test ./internal/archtest -run TestPicture -update -->\n"
	pictureEnd   = "<!-- end of the layers -->\n"
)

// helpers are small rooms that any other may import. They would only blur the picture.
var helpers = []string{
	"internal/ident", "internal/bits", "internal/xrand", "internal/invariant", "internal/errs", "internal/units",
	"internal/nearest", "internal/heap", "internal/release", "proto/larder/v1",
}

// TestPicture compares the layers in docs/architecture.md with the import graph. A room stands one layer above the
// highest room that it imports.
func TestPicture(t *testing.T) {
	const page = "../../docs/architecture.md"
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(data), pictureBegin)
	old, tail, ended := strings.Cut(rest, pictureEnd)
	if !found || !ended {
		t.Fatalf("%s lacks the marks\n%s%s", page, pictureBegin, pictureEnd)
	}
	got := picture(layers(t))
	if got == old {
		return
	}
	if !*update {
		t.Fatalf("%s has other layers than the code: go test ./internal/archtest -run TestPicture -update\n%s", page, got)
	}
	text := head + pictureBegin + got + pictureEnd + tail
	if err := os.WriteFile(page, []byte(text), 0o644); err != nil { //nolint:gosec // a page of the repository
		t.Fatal(err)
	}
}

// layers returns what the program is made of, lowest layer first, names sorted.
func layers(t *testing.T) [][]string {
	imports := map[string][]string{}
	for _, p := range load(t) {
		name := strings.TrimPrefix(p.PkgPath, "larder/")
		for path := range p.Imports {
			if room, ours := strings.CutPrefix(path, "larder/"); ours && !slices.Contains(helpers, room) {
				imports[name] = append(imports[name], room)
			}
		}
	}
	level := map[string]int{}
	var rise func(string) int
	rise = func(room string) int {
		if level[room] == 0 {
			highest := 0
			for _, below := range imports[room] {
				highest = max(highest, rise(below))
			}
			level[room] = highest + 1
		}
		return level[room]
	}
	rise("cmd/larder")
	var out [][]string
	for room, n := range level {
		for len(out) < n {
			out = append(out, nil)
		}
		out[n-1] = append(out[n-1], room)
	}
	for _, rooms := range out {
		slices.Sort(rooms)
	}
	return out
}

// picture draws layers from the highest to the lowest, in lines of at most 100 columns. A star marks a pure room.
func picture(all [][]string) string {
	var b strings.Builder
	b.WriteString("```\n")
	for i, rooms := range slices.Backward(all) {
		line := fmt.Sprintf("%2d ", i+1)
		for _, room := range rooms {
			if _, isPure := pure["larder/"+room]; isPure {
				room += "*"
			}
			if len(line)+1+len(room) > 100 {
				b.WriteString(line + "\n")
				line = "   "
			}
			line += " " + room
		}
		b.WriteString(line + "\n")
	}
	b.WriteString("```\n")
	return b.String()
}
