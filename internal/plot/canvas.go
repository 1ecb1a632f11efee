package plot

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

const (
	plotW, plotH             = 860.0, 330.0
	left, top, right, bottom = 62.0, 30.0, 196.0, 52.0
	labelStep                = 14.0 // between two names at the right
)

// canvas collects the elements of a picture.
type canvas struct {
	strings.Builder
	styles Styles
}

// group opens the elements of one series; the name is shown where the pointer rests.
func (b *canvas) group(colour, name string) {
	fmt.Fprintf(b, `<g class="s %s"><title>%s</title>`, colour, html.EscapeString(name))
}

func (b *canvas) text(x, y float64, anchor, class, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`, x, y, anchor, class,
		html.EscapeString(s))
}

func (b *canvas) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, class)
}

// spread moves places apart so that two are at least step apart and all are from lo to hi, each as near to its own as
// its neighbours let it.
func spread(at []float64, lo, hi, step float64) []float64 {
	n := len(at)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case at[a] < at[b]:
			return -1
		case at[a] > at[b]:
			return 1
		}
		return 0
	})
	out := slices.Clone(at)
	if n > 1 {
		step = min(step, (hi-lo)/float64(n-1))
	}
	next := lo
	for _, i := range order {
		out[i] = max(out[i], next)
		next = out[i] + step
	}
	next = hi
	for _, i := range slices.Backward(order) {
		out[i] = min(out[i], next)
		next = out[i] - step
	}
	return out
}

// finite reports whether a point can be drawn.
func finite(q [2]float64) bool {
	return !math.IsNaN(q[0]+q[1]) && !math.IsInf(q[0], 0) && !math.IsInf(q[1], 0)
}

// Clip shortens a text to n characters.
func Clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// ticks are some round numbers from lo to hi.
func ticks(lo, hi float64) []float64 {
	step := math.Pow(10, math.Floor(math.Log10((hi-lo)/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if (hi-lo)/(step*m) <= 6 {
			step *= m
			break
		}
	}
	var out []float64
	for i := math.Ceil(lo/step - 1e-9); i*step <= hi+step*1e-9 && len(out) < 12; i++ {
		out = append(out, i*step)
	}
	return out
}

// Number writes a value in a few characters.
func Number(v float64) string {
	a := math.Abs(v)
	switch {
	case v == 0: // and never -0
		return "0"
	case a >= 1e7:
		return fmt.Sprintf("%.3g", v)
	case a >= 1e4:
		return Thousands(fmt.Sprintf("%.0f", v))
	case a < 1e-3:
		return fmt.Sprintf("%.2g", v)
	case a >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	}
	return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.3f", v), "0"), ".")
}

// Thousands puts commas into a whole number.
func Thousands(s string) string {
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}
