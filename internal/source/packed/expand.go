package packed

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const (
	// maxFiles bounds what one uri may name.
	maxFiles = 1 << 20
	// maxPattern is the longest path with braces, bytes: that of Linux.
	maxPattern = 4096
	maxDigits  = 10
)

// expand replaces brace ranges, {000..009} with the width that both ends have, and lists, {a,b,c}, as the shell does.
func expand(pattern string) ([]string, error) {
	open := strings.IndexByte(pattern, '{')
	if open < 0 {
		return []string{pattern}, nil
	}
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("%.40q… is longer than %d bytes", pattern, maxPattern)
	}
	end := strings.IndexByte(pattern[open:], '}')
	if end < 0 {
		return nil, fmt.Errorf("%q has { without }", pattern)
	}
	inner := pattern[open+1 : open+end]
	if strings.IndexByte(inner, '{') >= 0 {
		return nil, fmt.Errorf("%q has a { inside {}", pattern)
	}
	words, err := braced(inner)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", pattern, err)
	}
	tails, err := expand(pattern[open+end+1:])
	if err != nil {
		return nil, err
	}
	if len(words)*len(tails) > maxFiles {
		return nil, fmt.Errorf("%q names more than %d files", pattern, maxFiles)
	}
	out := make([]string, 0, len(words)*len(tails))
	for _, w := range words {
		for _, t := range tails {
			out = append(out, pattern[:open]+w+t)
		}
	}
	return out, nil
}

func braced(inner string) ([]string, error) {
	first, last, isRange := strings.Cut(inner, "..")
	if !isRange {
		words := strings.Split(inner, ",")
		if len(words) < 2 {
			return nil, fmt.Errorf("{%s} is neither a range {000..009} nor a list {a,b}", inner)
		}
		return words, nil
	}
	a, aerr := strconv.ParseUint(first, 10, 32)
	b, berr := strconv.ParseUint(last, 10, 32)
	switch {
	case aerr != nil || berr != nil:
		return nil, fmt.Errorf("{%s} is no range of numbers such as {000..009}", inner)
	case len(first) > maxDigits || len(last) > maxDigits:
		return nil, fmt.Errorf("{%.40s…} has numbers of more than %d digits", inner, maxDigits)
	case b < a:
		return nil, fmt.Errorf("{%s} ends before it begins", inner)
	case b-a >= maxFiles:
		return nil, fmt.Errorf("{%s} names more than %d files", inner, maxFiles)
	}
	width := 0
	if len(first) > 1 && first[0] == '0' || len(last) > 1 && last[0] == '0' {
		width = max(len(first), len(last))
	}
	out := make([]string, 0, b-a+1)
	for n := a; n <= b; n++ {
		out = append(out, fmt.Sprintf("%0*d", width, n))
	}
	return out, nil
}

// unique refuses a file that is named twice: its samples would be, too.
func unique(files []string) error {
	seen := make(map[string]bool, len(files))
	for _, f := range files {
		if seen[f] {
			return fmt.Errorf("%q is named twice", f)
		}
		seen[f] = true
	}
	return nil
}

var errNoFiles = errors.New("it names no file")
