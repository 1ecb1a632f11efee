package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// View shows how far the demo is: bars that redraw themselves on a terminal, plain lines anywhere else. All methods may
// be called from any goroutine. A nil View shows nothing.
type View struct {
	w     io.Writer
	live  bool
	color bool
	fancy bool // the terminal shows block characters
	width func() int

	mu struct {
		sync.Mutex
		title string
		bars  []bar
		drawn int // lines of the picture that is on the screen
		stage int // counts stages, so that a late update of an earlier one is dropped
	}
	quit, gone chan struct{}
}

type bar struct {
	name        string
	done, total int64
	note        string
}

// redrawEvery is often enough to look alive and seldom enough to cost nothing.
const redrawEvery = 100 * time.Millisecond

// OpenView shows on f. Close it to stop its goroutine.
func OpenView(f *os.File, env func(string) string) *View {
	fd := int(f.Fd())
	v := &View{w: f, live: term.IsTerminal(fd) && env("TERM") != "dumb"}
	v.color = v.live && env("NO_COLOR") == ""
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if l := env(name); l != "" {
			l = strings.ToUpper(l)
			v.fancy = strings.Contains(l, "UTF-8") || strings.Contains(l, "UTF8")
			break
		}
	}
	v.width = func() int {
		if w, _, err := term.GetSize(fd); err == nil && w > 0 {
			return w
		}
		return 80
	}
	v.open()
	return v
}

// PlainView writes plain lines to any writer.
func PlainView(w io.Writer) *View {
	v := &View{w: w}
	v.open()
	return v
}

func (v *View) open() {
	if !v.live {
		return
	}
	quit, gone := make(chan struct{}), make(chan struct{})
	v.quit, v.gone = quit, gone
	go func() {
		defer close(gone)
		t := time.NewTicker(redrawEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				v.mu.Lock()
				v.drawLocked()
				v.mu.Unlock()
			case <-quit:
				return
			}
		}
	}()
}

// Close takes an unfinished picture away. Calling it twice is fine.
func (v *View) Close() {
	if v == nil {
		return
	}
	v.mu.Lock()
	v.eraseLocked()
	v.mu.bars = nil
	v.mu.title = ""
	quit := v.quit
	v.quit = nil
	v.mu.Unlock()
	if quit != nil {
		close(quit)
		<-v.gone
	}
}

// stage begins a new picture with one bar per name.
func (v *View) stage(title string, total []int64, names ...string) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.eraseLocked()
	v.mu.stage++
	v.mu.title, v.mu.bars = title, make([]bar, len(names))
	for i, n := range names {
		v.mu.bars[i] = bar{name: n, total: total[i]}
	}
	if !v.live {
		fmt.Fprintln(v.w, title)
		return
	}
	v.drawLocked()
}

// update moves bar i.
func (v *View) update(i int, done int64, note string) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if i < len(v.mu.bars) {
		v.mu.bars[i].done, v.mu.bars[i].note = done, note
	}
}

// milestone prints, to plain lines only, what the bars show by themselves.
func (v *View) milestone(format string, args ...any) {
	if v == nil || v.live {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	fmt.Fprintf(v.w, "  "+format+"\n", args...)
}

// say prints a line below everything.
func (v *View) say(format string, args ...any) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.eraseLocked()
	fmt.Fprintf(v.w, format+"\n", args...)
}

// finish replaces the picture with one line that stays.
func (v *View) finish(format string, args ...any) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.eraseLocked()
	v.mu.title, v.mu.bars = "", nil
	text := fmt.Sprintf(format, args...)
	if v.live {
		text = v.paint("32", v.glyph("✓", "*")) + " " + text
	}
	fmt.Fprintln(v.w, text)
}

func (v *View) eraseLocked() {
	if v.mu.drawn > 0 {
		fmt.Fprintf(v.w, "\x1b[%dA\x1b[J", v.mu.drawn)
		v.mu.drawn = 0
	}
}

// drawLocked draws the whole picture over the last one, in one write, so that it never flickers.
func (v *View) drawLocked() {
	if v.mu.title == "" {
		return
	}
	width := max(1, v.width()-1) // a full last column would wrap and spoil the count of lines
	var b strings.Builder
	if v.mu.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r", v.mu.drawn)
	}
	b.WriteString(v.paint("1", cut(v.mu.title, width)) + "\x1b[K\n")
	for i := range v.mu.bars {
		b.WriteString(v.line(&v.mu.bars[i], width) + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	v.mu.drawn = 1 + len(v.mu.bars)
	_, _ = io.WriteString(v.w, b.String())
}

// line is "  name     ██████░░░░  62%  note" cut to the width.
func (v *View) line(b *bar, width int) string {
	share := 0.0
	if b.total > 0 {
		share = min(1, float64(b.done)/float64(b.total))
	}
	if width < 32 {
		return cut(fmt.Sprintf("  %-9s %3.0f%%", cut(b.name, 9), share*100), width)
	}
	// 2 + 9 name, 1 + bar + 1 + 4 percent, 2 + note.
	cells := max(6, min(32, width-11-6-2-34))
	full := int(share*float64(cells) + .5)
	color := "36"
	if share >= 1 {
		color = "32"
	}
	head := fmt.Sprintf("  %-9s ", cut(b.name, 9))
	tail := cut(fmt.Sprintf(" %3.0f%%  %s", share*100, b.note), max(0, width-utf8.RuneCountInString(head)-cells))
	return head + v.paint(color, strings.Repeat(v.glyph("█", "#"), full)) +
		v.paint("2", strings.Repeat(v.glyph("░", "."), cells-full)) + tail
}

func (v *View) glyph(fancy, plain string) string {
	if v.fancy {
		return fancy
	}
	return plain
}

func (v *View) paint(code, s string) string {
	if !v.color || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// cut shortens s to n characters.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:max(0, n)])
}
