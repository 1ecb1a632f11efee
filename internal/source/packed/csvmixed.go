package packed

import (
	"fmt"
	"path/filepath"
	"slices"

	"larder/internal/record"
)

// A column of CSV is text where one cell is no number. Numbers that became text so are told, with the first odd cell
// and its place.

// mixture counts the cells of a column of text.
type mixture struct {
	name    string
	at      int // in a row
	label   bool
	numbers oddCells
	words   oddCells
}

// oddCells are cells of one kind, and the first one.
type oddCells struct {
	n    int64
	row  int64 // from 0, the header is one
	text string
}

func (c *oddCells) add(text string, row int64) {
	if c.n++; c.n == 1 {
		c.row, c.text = row, text
	}
}

func (c *oddCells) join(d oddCells, row int64) {
	if c.n == 0 && d.n > 0 {
		c.row, c.text = row+d.row, d.text
	}
	c.n += d.n
}

// mixtures has those of all columns of text that a schema has.
type mixtures []mixture

func newMixtures(s *record.Schema, names []string) (out mixtures) {
	for i := range s.Fields {
		f := &s.Fields[i]
		if at := slices.Index(names, f.Name); f.Kind == record.Text && at >= 0 {
			out = append(out, mixture{name: f.Name, at: at, label: slices.Contains(labelNames, f.Name)})
		}
	}
	return out
}

// take takes a row of that number.
func (m mixtures) take(row [][]byte, n int64) {
	const most = 64 // bytes of a number
	for i := range m {
		x, b := &m[i], row[m[i].at]
		if len(b) > most || len(b) > 0 && wordByte(b[0]) {
			if x.words.n++; x.words.n == 1 {
				x.words.row, x.words.text = n, string(b[:min(len(b), most)])
			}
			continue
		}
		text := cellText(b)
		if text == "" {
			continue
		}
		if couldBeNumber(text) && isNumber(text) {
			x.numbers.add(text, n)
		} else {
			x.words.add(text, n)
		}
	}
}

// couldBeNumber is false for dates, times and the like, which floatOf takes longer to refuse.
func couldBeNumber(s string) bool {
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == ':', c == '/', c == ' ', c == ',', (c == '-' || c == '+') && s[i-1]|0x20 != 'e':
			return false
		}
	}
	return true
}

func isNumber(s string) bool { _, err := floatOf(s); return err == nil }

// wordByte reports whether no number begins with a byte; inf and nan are numbers.
func wordByte(c byte) bool {
	return (c|0x20) >= 'a' && (c|0x20) <= 'z' && c|0x20 != 'i' && c|0x20 != 'n'
}

// join takes those of a part that begins with a row.
func (m mixtures) join(part mixtures, row int64) {
	for i := range m {
		m[i].numbers.join(part[i].numbers, row)
		m[i].words.join(part[i].words, row)
	}
}

// found says which columns would be numbers without some of their cells: labels always, others where most are numbers.
func (m mixtures) found(f File) Found {
	out := Found{}
	for i := range m {
		x := &m[i]
		odd, others := &x.words, "numbers"
		if x.words.n > x.numbers.n {
			odd, others = &x.numbers, "words"
		}
		if x.words.n == 0 || x.numbers.n == 0 || odd == &x.numbers && !x.label {
			continue
		}
		if out.Skipped == nil {
			out.Skipped = map[string]int{}
		}
		// A kind of nothing: it is told as it is.
		out.Skipped[fmt.Sprintf("column %q of %s is text: row %d has %q, and most others are %s", x.name,
			filepath.Base(f.Path), odd.row+1, odd.text, others)] = 0
	}
	return out
}
