package source

import (
	"cmp"
	"strings"
	"unicode/utf8"
)

// pyCompare orders names as Python's sorted() orders what os.walk returns: by code point, where a byte that is not part
// of valid UTF-8 counts as U+DC00 plus the byte (PEP 383). For valid UTF-8 this is the order of the bytes. Label
// numbers and sample ids depend on it, so that they equal torchvision's also for odd file names.
func pyCompare(a, b string) int {
	n := min(len(a), len(b))
	i := 0
	for i < n && a[i] == b[i] {
		i++
	}
	switch {
	case i < n && a[i] < utf8.RuneSelf && b[i] < utf8.RuneSelf:
		return cmp.Compare(a[i], b[i])
	case i == n && (n == 0 || a[n-1] < utf8.RuneSelf):
		return cmp.Compare(len(a), len(b))
	case utf8.ValidString(a) && utf8.ValidString(b):
		return strings.Compare(a, b)
	}
	for a != "" && b != "" {
		ra, na := pyRune(a)
		rb, nb := pyRune(b)
		if ra != rb {
			return cmp.Compare(ra, rb)
		}
		a, b = a[na:], b[nb:]
	}
	return cmp.Compare(len(a), len(b))
}

func pyRune(s string) (rune, int) {
	r, n := utf8.DecodeRuneInString(s)
	if r == utf8.RuneError && n == 1 {
		return 0xdc00 + rune(s[0]), 1
	}
	return r, n
}

// imageSuffixes are torchvision's IMG_EXTENSIONS; a file is a sample by its name, and decoded by its content.
var imageSuffixes = []string{".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}

func isImageName(name string) bool {
	for _, suf := range imageSuffixes {
		if len(name) >= len(suf) && equalFold(name[len(name)-len(suf):], suf) {
			return true
		}
	}
	return false
}

// equalFold compares ASCII only: strings.EqualFold also folds letters that Python's lower() does not.
func equalFold(s, lower string) bool {
	for i := range len(s) {
		c := s[i]
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}
