package prep

import "bytes"

// segment finds the next segment of a JPEG file from p on: its marker, where its length stands, and the length. Bytes
// between segments are skipped, as libjpeg does. ok is false where the file ends.
func segment(enc []byte, p int) (marker byte, at, size int, ok bool) {
	for p < len(enc) {
		i := bytes.IndexByte(enc[p:], 0xff)
		if i < 0 {
			break
		}
		p += i
		for p < len(enc) && enc[p] == 0xff {
			p++
		}
		if p+3 > len(enc) {
			break
		}
		marker, size = enc[p], be16(enc[p+1:])
		p++
		if marker == 0 || marker == 0x01 || marker >= 0xd0 && marker <= 0xd7 { // stuffed, TEM, RST: no length
			continue
		}
		return marker, p, size, true
	}
	return 0, 0, 0, false
}

// jpegHeader walks the segments to the frame header (SOF).
func jpegHeader(enc []byte) (header, error) {
	for p := 2; ; {
		marker, at, size, ok := segment(enc, p)
		switch {
		case !ok:
			return header{}, short(enc, "the JPEG image ends in its header, after %d bytes", len(enc))
		case marker == 0xd8:
			return header{}, bad("the JPEG image begins a second time inside its header")
		case marker == 0xd9 || marker == 0xda:
			return header{}, bad("the JPEG image has no frame header")
		case size < 2:
			return header{}, bad("the JPEG image has a segment of length %d", size)
		case marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc:
			if size < 8 || at+8 > len(enc) {
				return header{}, short(enc, "the JPEG image ends in its header, after %d bytes", len(enc))
			}
			h := header{format: "jpeg", h: be16(enc[at+3:]), w: be16(enc[at+5:]), channels: int(enc[at+7]),
				waves: marker&3 == 2}
			if kind := marker & 3; kind != 3 { // libjpeg gives no planes of lossless images
				h.planes = jpegPlanes(enc, enc[at:min(at+size, len(enc))], h)
			}
			return h, nil
		}
		p = at + size
	}
}

// jpegPlanes finds what an image may be kept as, by its frame header. turbo.c asks libjpeg for the same, and refuses an
// image where they differ.
func jpegPlanes(enc, frame []byte, h header) Planes {
	if len(frame) < 8+3*h.channels {
		return Packed
	}
	if h.channels == 1 {
		return PlaneGrey
	}
	// libjpeg repeats chroma of up to two columns instead of smoothing it.
	if h.channels != 3 || h.w < 5 || !storesYCbCr(enc, [3]byte{frame[8], frame[11], frame[14]}) {
		return Packed
	}
	switch [3]byte{frame[9], frame[12], frame[15]} { // samples across and down, of each component
	case [3]byte{0x22, 0x11, 0x11}:
		return Planes420
	case [3]byte{0x21, 0x11, 0x11}:
		return Planes422
	}
	return Packed
}

// storesYCbCr reports whether libjpeg takes the three components of an image for luma and chroma, by what it knows at
// the first scan. It does so for most other identifiers too, which do not occur.
func storesYCbCr(enc []byte, ids [3]byte) bool {
	jfif, adobe := false, -1
	for p := 2; ; {
		marker, at, size, ok := segment(enc, p)
		if !ok || size < 2 {
			return false
		}
		p = at + size
		data := enc[min(at+2, len(enc)):min(p, len(enc))]
		switch {
		case marker == 0xe0 && len(data) >= 14 && hasPrefix(data, "JFIF\x00"):
			jfif = true
		case marker == 0xee && len(data) >= 12 && hasPrefix(data, "Adobe"):
			adobe = int(data[11])
		case marker == 0xda && adobe >= 0 && !jfif:
			return adobe == 1
		case marker == 0xda:
			return jfif || ids == [3]byte{1, 2, 3}
		}
	}
}
