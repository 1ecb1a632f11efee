package spool

import (
	"context"
	"errors"
	"fmt"
)

// ErrLost says that a block that was there is not any more: it left for others, or its bytes are damaged. Ask Block
// again, which makes it anew.
var ErrLost = errors.New("the block is not kept any more")

// ErrFull says that a block is larger than the spool.
var ErrFull = errors.New("the block is larger than what the spool may hold")

// MaxKey is the most bytes of a key.
const MaxKey = 8 << 10

// Spool keeps the records of blocks. Safe for concurrent use.
type Spool interface {
	// Block returns the block of a key, and has make make it when it is not there. Of several callers for one key, one
	// makes it and the others wait for that. The key says everything that the records depend on: the place, name, version
	// and offset of the bytes, the format, its arguments. Close the Reader. Errors: those of make, ErrFull, the
	// context's. A spool whose disk fails keeps the block in memory, so that costs speed only.
	Block(ctx context.Context, key string, make Make) (Reader, error)
}

// Make adds the records of a block, in order. It may run again, should the block be lost. The context is that of the
// caller who makes it.
type Make func(ctx context.Context, w Writer) error

// Writer takes the records of a block, from one goroutine.
type Writer interface {
	// Add appends a record, whose bytes it copies. After an error the block is lost: return the error.
	Add(record []byte) error
}

// Reader is a block. Its methods may be called from any goroutine.
type Reader interface {
	// Len returns the number of records.
	Len() int
	// Record appends the i-th record to dst, exactly as it was added. ErrLost: it is not there any more.
	Record(dst []byte, i int) ([]byte, error)
	// Close gives the block back.
	Close() error
}

// Filler is a Writer that gives the memory of a record, to be filled in place.
type Filler interface {
	Writer
	Fill(n int) ([]byte, error)
}

// Viewer is a Reader whose records lie in memory.
type Viewer interface {
	Reader
	// View is the i-th record, until Close. It must not be changed.
	View(i int) ([]byte, error)
}

// CheckKey says what is wrong with a key.
func CheckKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("a block's key has %d bytes, 1 to %d may be", len(key), MaxKey)
	}
	return nil
}

// CheckIndex says what is wrong with a record's number.
func CheckIndex(i, n int) error {
	if i < 0 || i >= n {
		return fmt.Errorf("record %d of a block of %d", i, n)
	}
	return nil
}

// Grouped is a Spool that keeps the blocks of a group, such as a dataset, by how many live jobs need it.
type Grouped interface {
	Spool
	For(group string) Spool
}

// For returns the part of a spool for a group: s itself where it knows no groups.
func For(s Spool, group string) Spool {
	if g, ok := s.(Grouped); ok {
		return g.For(group)
	}
	return s
}

type heldIn struct{}

// WithHeld returns a context for reads whose blocks s holds in memory: who reads asks s before any other spool. ErrFull
// of s says that another one is to be asked.
func WithHeld(ctx context.Context, s Spool) context.Context {
	return context.WithValue(ctx, heldIn{}, s)
}

// HeldIn is the Spool of WithHeld; nil = there is none.
func HeldIn(ctx context.Context) Spool {
	s, _ := ctx.Value(heldIn{}).(Spool)
	return s
}
