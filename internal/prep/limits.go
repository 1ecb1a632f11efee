package prep

import (
	"errors"
	"io"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"larder/internal/errs"
	"larder/internal/units"
)

// scans bounds the scans of a JPEG image. A large one may have fewer than MaxScans, but at least 50, so that a small
// file cannot keep a core busy for minutes: 2e9 pixels in all, about ten seconds. Encoders write about ten scans.
func (l Limits) scans(h header) int {
	return min(l.MaxScans, max(50, int(2_000_000_000/(int64(h.w)*int64(h.h)))))
}

// memory is what decoding takes at most, in bytes: the image as RGB, and what the decoder has beside it. Decoders in Go
// make the whole image in a form of their own, whose size follows from the header; what else they take is bounded by
// the size of the file.
func (h header) memory() int64 { return 3*int64(h.w)*int64(h.h) + h.working() }

func (h header) working() int64 {
	pixels := int64(h.w) * int64(h.h)
	switch h.format {
	case "jpeg":
		return jpegWorking(h)
	case "png":
		n := pixels
		switch {
		case h.depth == 16: // RGBA; grey takes less unless it is transparent
			n *= 8
		case h.color != 3:
			n *= 4
		}
		if h.adam7 { // the largest of its seven passes has half of the pixels
			n += n / 2
		}
		return n
	case "gif":
		return pixels
	case "webp": // lossless: the image twice, for its last transform; lossy takes less
		return 8 * pixels
	case "bmp":
		return 4 * pixels
	case "tiff":
		return tiffWorking(h, pixels)
	}
	return 0
}

// checkMemory refuses what would take too much. That a crop needs less of an image does not count: it is good or bad
// whatever the crop.
func (w *Worker) checkMemory(h header) error {
	if n := h.memory(); n > w.limits.MaxBytes {
		return errs.New(errs.SampleBad, "", hintBad+", or raise prep.max_memory",
			"the %s image of %d x %d pixels takes %s to decode, and %s are allowed",
			h.format, h.w, h.h, units.Size(n), units.Size(w.limits.MaxBytes))
	}
	return nil
}

// Memory is what decoding enc takes at most, in bytes, by its header; 0 when it cannot be decoded.
func (w *Worker) Memory(enc []byte) int64 {
	h, err := w.header(enc)
	if err != nil {
		return 0
	}
	return h.memory()
}

func tooLong(h header, l Limits) error {
	return errs.New(errs.SampleBad, "", hintBad+", or raise prep.decode_timeout",
		"the %s image of %d x %d pixels takes more than %s of processor time to decode",
		h.format, h.w, h.h, l.Timeout)
}

// errLate stops a decoder.
var errLate = errors.New("the time for decoding is over")

// timedReader reads a file for a decoder until the decoder has had its processor time. Decoders read a few KiB at a
// time.
type timedReader struct {
	whole []byte
	data  []byte        // of it, what Read has not given yet
	until time.Duration // of this thread; 0 = no end
	late  bool
}

// begin keeps the goroutine on its thread until end, because processor time is counted by thread.
func (r *timedReader) begin(data []byte, limit time.Duration) {
	*r = timedReader{whole: data, data: data}
	runtime.LockOSThread()
	if limit > 0 {
		r.until = threadTime() + limit
	}
}

func (r *timedReader) end() { runtime.UnlockOSThread() }

// Read implements io.Reader.
func (r *timedReader) Read(p []byte) (int, error) {
	if r.until > 0 && threadTime() > r.until {
		r.late = true
		return 0, errLate
	}
	if len(r.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.data[:min(len(r.data), 16<<10)]) // a decoder that asks for everything comes by here, too
	r.data = r.data[n:]
	return n, nil
}

// ReadAt implements io.ReaderAt, which the TIFF decoder wants; it reads blocks of an image.
func (r *timedReader) ReadAt(p []byte, off int64) (int, error) {
	if r.until > 0 && threadTime() > r.until {
		r.late = true
		return 0, errLate
	}
	if off < 0 || off >= int64(len(r.whole)) {
		return 0, io.EOF
	}
	n := copy(p, r.whole[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// threadTime returns the processor time that this thread has used; 0 when the system does not report it.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
