package store

import "errors"

// Unreachable reports whether an error says that a place could not be used at all, after all that was tried: its server
// failed or gave no answer, or the credentials have expired. An object that is missing, or that may not be read, is no
// such thing: the place has answered.
func Unreachable(err error) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && (f.kind == passing || f.kind == slowing || f.kind == expired)
}
