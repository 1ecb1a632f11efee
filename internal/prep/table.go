package prep

// Steps that replace values by a table a channel, in place: what Pillow's ImageOps does by Image.point.

type tables [3][256]uint8

// applyTables runs a step of a table.
func (w *Worker) applyTables(s *step, pix []byte) {
	t := &w.tables
	switch s.kind {
	case stepAutocontrast:
		autocontrast(t, pix)
	case stepEqualize:
		equalize(t, pix)
	default:
		for v := range 256 {
			to := uint8(v)
			switch {
			case s.kind == stepPosterize:
				to &= uint8(0xff << (8 - int(s.amount)))
			case s.kind == stepInvert || float64(v) >= s.amount: // or stepSolarize
				to = ^to
			}
			t[0][v], t[1][v], t[2][v] = to, to, to
		}
	}
	r, g, b := &t[0], &t[1], &t[2]
	for i := 0; i+3 <= len(pix); i += 3 {
		p := pix[i : i+3 : i+3]
		p[0], p[1], p[2] = r[p[0]], g[p[1]], b[p[2]]
	}
}

func histograms(pix []byte) (h [3][256]int) {
	r, g, b := &h[0], &h[1], &h[2]
	for i := 0; i+3 <= len(pix); i += 3 {
		p := pix[i : i+3 : i+3]
		r[p[0]]++
		g[p[1]]++
		b[p[2]]++
	}
	return h
}

// autocontrast is ImageOps.autocontrast without cutoff: the darkest value of a channel becomes 0, the brightest 255.
func autocontrast(t *tables, pix []byte) {
	h := histograms(pix)
	for c := range h {
		lo, hi := 0, 255
		for lo < 255 && h[c][lo] == 0 {
			lo++
		}
		for hi > 0 && h[c][hi] == 0 {
			hi--
		}
		scale, offset := 1.0, 0.0
		if hi > lo {
			scale = 255 / float64(hi-lo)
			offset = -float64(lo) * scale
		}
		for v := range t[c] {
			t[c][v] = uint8(min(max(int(float64(float64(v)*scale)+offset), 0), 255))
		}
	}
}

// equalize is ImageOps.equalize.
func equalize(t *tables, pix []byte) {
	h := histograms(pix)
	for c := range h {
		total, last, values := 0, 0, 0
		for _, n := range h[c] {
			if n > 0 {
				total, last, values = total+n, n, values+1
			}
		}
		step := (total - last) / 255
		n := step / 2
		for v := range t[c] {
			if values <= 1 || step == 0 {
				t[c][v] = uint8(v)
				continue
			}
			t[c][v] = uint8(min(n/step, 255))
			n += h[c][v]
		}
	}
}
