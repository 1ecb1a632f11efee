package prep

import (
	"fmt"
	"math"
	"sort"
	"strings"

	"larder/internal/errs"
	"larder/internal/nearest"
)

// maxSide bounds every side an op can ask for; JPEG cannot hold more either.
const maxSide = 65500

func opError(i int, name, hint, format string, args ...any) *errs.Error {
	return errs.New(errs.RecipeInvalid, fmt.Sprintf("transform[%d] %s", i, name), hint, "op %d, %s: "+format,
		append([]any{i, name}, args...)...)
}

// args reads the arguments of one op, remembers the first error and which names were read.
type args struct {
	i    int
	name string
	in   map[string]any
	out  map[string]any // canonical
	err  *errs.Error
}

func (a *args) fail(hint, format string, v ...any) {
	if a.err == nil {
		a.err = opError(a.i, a.name, hint, format, v...)
	}
}

// number accepts what JSON and Go callers use for numbers; bools are not numbers.
func number(v any) (float64, bool) {
	var f float64
	switch n := v.(type) {
	case float64:
		f = n
	case float32:
		f = float64(n)
	case int:
		f = float64(n)
	case int64:
		f = float64(n)
	default:
		return 0, false
	}
	return f, !math.IsNaN(f) && !math.IsInf(f, 0)
}

func list(v any) ([]any, bool) {
	switch l := v.(type) {
	case []any:
		return l, true
	case []float64:
		out := make([]any, len(l))
		for i := range l {
			out[i] = l[i]
		}
		return out, true
	case []int:
		out := make([]any, len(l))
		for i := range l {
			out[i] = float64(l[i])
		}
		return out, true
	}
	return nil, false
}

func show(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return fmt.Sprintf("%.60q", v)
	}
	s := fmt.Sprint(v)
	if len(s) > 60 {
		s = s[:57] + "..."
	}
	return s
}

// has reports whether an argument was given and is not null.
func (a *args) has(name string) bool { return a.in[name] != nil }

func (a *args) side(name string, v any) int {
	f, ok := number(v)
	if !ok || f != math.Trunc(f) || f < 1 || f > maxSide {
		a.fail("give a whole number of pixels", "%s is %s, not a size of 1 to %d pixels", name, show(v), maxSide)
		return 1
	}
	return int(f)
}

// size reads size as torchvision does: a number, [n], or [height, width]. One number comes back as single.
func (a *args) size(name string) (h, w int, single bool) {
	v := a.in[name]
	if v == nil {
		a.fail("write "+a.name+"("+name+"=224)", "needs the argument %s", name)
		return 1, 1, true
	}
	if l, ok := list(v); ok {
		switch len(l) {
		case 1:
			n := a.side(name, l[0])
			return n, n, true
		case 2:
			return a.side(name, l[0]), a.side(name, l[1]), false
		}
		a.fail("give a number or [height, width]", "%s is %s: a list of %d numbers", name, show(v), len(l))
		return 1, 1, true
	}
	n := a.side(name, v)
	return n, n, true
}

// float reads a number in [lo, hi].
func (a *args) float(name string, def, lo, hi float64) float64 {
	f := def
	if a.has(name) {
		var ok bool
		if f, ok = number(a.in[name]); !ok || f < lo || f > hi {
			a.fail(fmt.Sprintf("give a number from %g to %g", lo, hi), "%s is %s, not a number from %g to %g", name,
				show(a.in[name]), lo, hi)
			f = def
		}
	}
	a.out[name] = f
	return f
}

// pair reads [lo, hi] with bounds.
func (a *args) pair(name string, def [2]float64, lo, hi float64) [2]float64 {
	p := def
	if a.has(name) {
		l, ok := list(a.in[name])
		if !ok || len(l) != 2 {
			a.fail(fmt.Sprintf("write %s=[%g, %g], say", name, def[0], def[1]), "%s is %s, not a list of two numbers", name,
				show(a.in[name]))
		} else {
			for k := range p {
				if p[k], ok = number(l[k]); !ok || p[k] < lo || p[k] > hi {
					a.fail(fmt.Sprintf("give two numbers from %g to %g", lo, hi), "%s is %s, not two numbers from %g to %g", name,
						show(a.in[name]), lo, hi)
					return def
				}
			}
			if p[0] > p[1] {
				a.fail("swap them", "%s is %s: the first number is the larger one", name, show(a.in[name]))
				return def
			}
		}
	}
	a.out[name] = []any{p[0], p[1]}
	return p
}

func (a *args) bool(name string, def bool) bool {
	b := def
	if a.has(name) {
		var ok bool
		if b, ok = a.in[name].(bool); !ok {
			a.fail("give true or false", "%s is %s, not true or false", name, show(a.in[name]))
		}
	}
	a.out[name] = b
	return b
}

// word reads one of the words; aliases maps other spellings to them.
func (a *args) word(name, def string, words []string, aliases map[string]string) string {
	w := def
	if a.has(name) {
		s, ok := a.in[name].(string)
		if !ok {
			a.fail("use one of "+strings.Join(words, ", "), "%s is %s, not a word", name, show(a.in[name]))
			return def
		}
		w = strings.ToLower(s)
		if to, ok := aliases[w]; ok {
			w = to
		}
		found := false
		for _, k := range words {
			if strings.EqualFold(k, w) {
				w, found = k, true
			}
		}
		if !found {
			a.fail(nearest.DidYouMean(s, words), "%s is %s", name, show(s))
			return def
		}
	}
	a.out[name] = w
	return w
}

// interpolation reads the filter. Numbers are Pillow's constants, as older scripts use them.
func (a *args) interpolation() filter {
	v := a.in["interpolation"]
	if n, ok := number(v); ok {
		switch n {
		case 0:
			v = "nearest"
		case 2:
			v = "bilinear"
		case 3:
			v = "bicubic"
		}
		a.in["interpolation"] = v
	}
	switch a.word("interpolation", "bilinear", []string{"bilinear", "bicubic", "nearest"},
		map[string]string{"nearest-exact": "nearest"}) {
	case "bicubic":
		return bicubic
	case "nearest":
		return nearestSample
	}
	return bilinear
}

// antialias accepts what torchvision does on PIL images: it is always on there. False would silently give other bits
// than asked for, so it is refused.
func (a *args) antialias() {
	if !a.bool("antialias", true) {
		a.fail("leave antialias out", "antialias=false exists for tensors only; on PIL images, which larder equals, "+
			"resizing always antialiases")
	}
	a.out["antialias"] = true
}

// known refuses arguments that the op does not have.
func (a *args) known(names ...string) {
	given := make([]string, 0, len(a.in))
	for k := range a.in {
		given = append(given, k)
	}
	sort.Strings(given)
	for _, k := range given {
		ok := false
		for _, n := range names {
			ok = ok || n == k
		}
		if !ok {
			hint := "it takes no arguments"
			if len(names) > 0 {
				hint = nearest.DidYouMean(k, names)
			}
			a.fail(hint, "has no argument %s", show(k))
		}
	}
}
