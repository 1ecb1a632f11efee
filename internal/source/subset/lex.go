package subset

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"larder/internal/errs"
)

type kind uint8

const (
	tEOF kind = iota
	tWord
	tInt
	tFloat
	tString
	tPunct // one of ( ) [ ] , - % ~ = == != < <= > >=
)

type token struct {
	kind kind
	pos  int    // byte offset of the first byte
	text string // the word, number or punctuation; the value of a string
}

// shown names the token in an error.
func (t token) shown() string {
	switch t.kind {
	case tEOF:
		return "the end of the expression"
	case tString:
		return "the string " + strconv.Quote(clip(t.text))
	default:
		return strconv.Quote(clip(t.text))
	}
}

func clip(s string) string {
	if len(s) <= 40 {
		return s
	}
	return strings.ToValidUTF8(s[:37], "") + "..."
}

// example is the hint where no better one is known.
const example = `as in: label < 600 and not class in ("dog", "cat") or key ~ "b/**/*.jpg" ` +
	`or id % 2 == 0 or sample(0.5, seed=3)`

// syntax builds the error every failure of Parse returns: what is wrong, then the line with a caret under the byte.
func syntax(src string, pos int, hint, format string, args ...any) *errs.Error {
	if hint == "" {
		hint = example
	}
	line, col := caret(src, pos)
	args = append(args, line, strings.Repeat(" ", col))
	return errs.New(errs.SubsetSyntax, "subset", hint, "subset: "+format+"\n  %s\n  %s^", args...)
}

// caret returns a printable excerpt of src around pos, in one line, and the column of pos in it (in runes).
func caret(src string, pos int) (line string, col int) {
	const side = 60 // runes shown before and after the place
	clean := func(s string) []rune {
		rs := []rune(strings.ToValidUTF8(s, "?"))
		for i, r := range rs {
			if r < ' ' || r == 0x7f || !strconv.IsPrint(r) && r != ' ' {
				rs[i] = ' '
			}
		}
		return rs
	}
	lo, hi := max(0, pos-4*side-4), min(len(src), pos+4*side+4)
	before, after := clean(src[lo:pos]), clean(src[pos:hi])
	if len(before) > side || lo > 0 {
		before = append([]rune("..."), before[max(0, len(before)-side):]...)
	}
	if len(after) > side || hi < len(src) {
		after = append(after[:min(len(after), side)], []rune("...")...)
	}
	return string(before) + string(after), len(before)
}

func isWordStart(c byte) bool { return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' }
func isDigit(c byte) bool     { return c >= '0' && c <= '9' }

// lex returns the token that begins at or after pos, and where it ends.
func lex(src string, pos int) (token, int, error) {
	for pos < len(src) && (src[pos] == ' ' || src[pos] == '\t' || src[pos] == '\n' || src[pos] == '\r') {
		pos++
	}
	if pos == len(src) {
		return token{kind: tEOF, pos: pos}, pos, nil
	}
	c := src[pos]
	switch {
	case isWordStart(c):
		end := pos + 1
		for end < len(src) && (isWordStart(src[end]) || isDigit(src[end]) ||
			src[end] == '.' && end+1 < len(src) && isWordStart(src[end+1])) { // json.width
			end++
		}
		return token{tWord, pos, src[pos:end]}, end, nil
	case isDigit(c) || c == '.':
		return lexNumber(src, pos)
	case c == '"' || c == '\'':
		return lexString(src, pos)
	}
	return lexPunct(src, pos)
}

func lexNumber(src string, pos int) (token, int, error) {
	end, k, digits := pos, tInt, 0
	run := func() {
		for end < len(src) && (isDigit(src[end]) || src[end] == '_' && end > pos && isDigit(src[end-1]) && end+1 < len(src) &&
			isDigit(src[end+1])) {
			end++
			digits++
		}
	}
	run()
	if end < len(src) && src[end] == '.' {
		k = tFloat
		end++
		run()
	}
	if digits > 0 && end < len(src) && src[end]|0x20 == 'e' {
		exp := end + 1
		if exp < len(src) && (src[exp] == '-' || src[exp] == '+') {
			exp++
		}
		if exp < len(src) && isDigit(src[exp]) {
			k, end = tFloat, exp
			run()
		}
	}
	if digits == 0 {
		return token{}, 0, syntax(src, pos, "", "a number needs a digit")
	}
	if end < len(src) && (isWordStart(src[end]) || src[end] == '.') {
		return token{}, 0, syntax(src, end, "numbers are written 5000, 5_000 or 0.5", "%q does not belong in a number",
			src[end:end+1])
	}
	return token{k, pos, src[pos:end]}, end, nil
}

func lexString(src string, pos int) (token, int, error) {
	quote := src[pos]
	var b strings.Builder
	for i := pos + 1; i < len(src); i++ {
		switch c := src[i]; c {
		case quote:
			return token{tString, pos, b.String()}, i + 1, nil
		case '\\':
			if i+1 == len(src) || src[i+1] != '\\' && src[i+1] != '"' && src[i+1] != '\'' {
				return token{}, 0, syntax(src, i, `write \\ for one backslash`, `after \ only \, " and ' can follow in a string`)
			}
			i++
			b.WriteByte(src[i])
		case 0:
			return token{}, 0, syntax(src, i, "no file name holds it", "a string cannot hold a NUL byte")
		default:
			b.WriteByte(c)
		}
	}
	return token{}, 0, syntax(src, pos, "put the same quote at its end", "this string has no end")
}

// foreign are operators of other languages, with what to write instead.
var foreign = []struct{ op, instead string }{
	{"&&", "and"}, {"||", "or"}, {"&", "and"}, {"|", "or"}, {"!~", "not key ~"}, {"!", "not"}, {"<>", "!="}, {"//",
		"%"}, {"}", ")"}, {"{", "("},
}

func lexPunct(src string, pos int) (token, int, error) {
	rest := src[pos:]
	for _, op := range []string{"==", "!=", "<=", ">="} {
		if strings.HasPrefix(rest, op) {
			return token{tPunct, pos, op}, pos + 2, nil
		}
	}
	for _, f := range foreign {
		if strings.HasPrefix(rest, f.op) {
			return token{}, 0, syntax(src, pos, "write "+strconv.Quote(f.instead), "%q is not an operator here", f.op)
		}
	}
	if strings.IndexByte("()[],-%~=<>", rest[0]) >= 0 {
		return token{tPunct, pos, rest[:1]}, pos + 1, nil
	}
	r, size := utf8.DecodeRuneInString(rest)
	if r == utf8.RuneError && size == 1 {
		return token{}, 0, syntax(src, pos, "", "byte 0x%02x does not belong in an expression", rest[0])
	}
	return token{}, 0, syntax(src, pos, "", "%q does not belong in an expression", r)
}
