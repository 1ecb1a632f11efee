package prep

import "errors"

// located is an error about a place in a file.
type located struct {
	error
	at int64
}

func (l *located) Unwrap() error { return l.error }

// locate says where in the file an error is; below 0 it is not known.
func locate(err error, at int64) error {
	if at < 0 {
		return err
	}
	return &located{err, at}
}

// DamagedAt returns the byte of a file at which its decoder met what it could not decode, where it reports it. For a
// truncated file that is its end. Decoders read ahead: the damage of a JPEG is at that byte or up to one block of
// pixels behind it, that of a PNG or GIF up to 4 KiB before it.
func DamagedAt(err error) (int64, bool) {
	if l, ok := errors.AsType[*located](err); ok {
		return l.at, true
	}
	return 0, false
}

// short says of a file that it ends too early.
func short(enc []byte, format string, args ...any) error {
	return locate(bad(format, args...), int64(len(enc)))
}
