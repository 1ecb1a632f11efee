package demo

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// liveView is a view of a terminal of the given width that draws only on request.
func liveView(width int, color bool) (*View, *strings.Builder) {
	var b strings.Builder
	return &View{w: &b, live: true, color: color, fancy: true, width: func() int { return width }}, &b
}

func (v *View) draw() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drawLocked()
}

// screen plays what was written on a terminal and returns its lines. It knows what the view uses, no more.
func screen(t *testing.T, text string) []string {
	t.Helper()
	lines, row := []string{""}, 0
	esc := regexp.MustCompile("^\x1b\\[([0-9]*)([AJKm])")
	for len(text) > 0 {
		if m := esc.FindStringSubmatch(text); m != nil {
			text = text[len(m[0]):]
			switch m[2] {
			case "A":
				n := 0
				fmt.Sscan(m[1], &n)
				if row -= n; row < 0 {
					t.Fatal("the view drew above its place")
				}
				lines[row] = "\r" + lines[row]
			case "J":
				lines = append(lines[:row], "")
			}
			continue
		}
		c, n := utf8.DecodeRuneInString(text)
		text = text[n:]
		switch c {
		case '\n':
			if row++; row == len(lines) {
				lines = append(lines, "")
			}
			lines[row] = "\r" + lines[row]
		case '\r':
			lines[row] = "\r" + strings.TrimPrefix(lines[row], "\r")
		default:
			if strings.HasPrefix(lines[row], "\r") { // back at the start: what follows replaces the line
				lines[row] = ""
			}
			lines[row] += string(c)
		}
	}
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "\r")
	}
	return lines
}

func TestViewFitsAnyTerminal(t *testing.T) {
	for _, width := range []int{1, 20, 40, 60, 80, 200} {
		v, b := liveView(width, true)
		v.stage("a title that is longer than a narrow terminal is wide, by far", []int64{100, 0}, "lr-0.003",
			"a-very-long-name")
		for i := range 5 {
			v.update(0, int64(i*30), "epoch 1/2   412/s  waits 37% and some more words that never end, really")
			v.draw()
		}
		lines := screen(t, b.String())
		if len(lines) != 4 || lines[3] != "" {
			t.Fatalf("width %d: %d lines: %q", width, len(lines), lines)
		}
		for _, l := range lines {
			if n := utf8.RuneCountInString(l); n > max(1, width-1) {
				t.Errorf("width %d: a line has %d characters: %q", width, n, l)
			}
		}
		if width >= 60 && !strings.Contains(lines[1], "100%") {
			t.Errorf("width %d: %q", width, lines[1])
		}
		v.finish("it took %d s", 3)
		if got := screen(t, b.String()); got[0] != "✓ it took 3 s" || len(got) != 2 {
			t.Errorf("width %d: at the end %q", width, got)
		}
	}
}

func TestViewWithoutColour(t *testing.T) {
	v, b := liveView(80, false)
	v.fancy = false
	v.stage("title", []int64{10}, "x")
	v.update(0, 5, "note")
	v.draw()
	v.finish("done")
	if m := regexp.MustCompile("\x1b\\[[0-9]*m").FindString(b.String()); m != "" {
		t.Errorf("colours in %q", b.String())
	}
	if s := b.String(); strings.ContainsFunc(s, func(r rune) bool { return r > 127 }) || !strings.Contains(s, "#") {
		t.Errorf("not ASCII: %q", s)
	}
}

// Into a file or a pipe go plain lines, and every line once.
func TestViewOfAPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	v := OpenView(w, func(k string) string { return map[string]string{"TERM": "xterm", "LANG": "C.UTF-8"}[k] })
	if v.live {
		t.Fatal("a pipe is no terminal")
	}
	v.stage("one", []int64{10}, "x")
	v.update(0, 5, "half")
	v.milestone("epoch %d", 1)
	v.finish("two")
	v.Close()
	v.Close()
	w.Close()
	b := make([]byte, 100)
	n, _ := r.Read(b)
	if got := string(b[:n]); got != "one\n  epoch 1\ntwo\n" {
		t.Errorf("got %q", got)
	}
}

func TestViewClosesItsPicture(t *testing.T) {
	v, b := liveView(80, true)
	v.open()
	v.stage("title", []int64{10, 10}, "x", "y")
	v.Close()
	v.Close()
	if got := screen(t, b.String()); len(got) != 1 || got[0] != "" {
		t.Errorf("an interrupted view leaves %q", got)
	}
	var none *View
	none.stage("t", nil)
	none.update(0, 1, "")
	none.milestone("m")
	none.finish("f")
	none.Close()
}
