package packed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxDamaged is how many files an error names; the others are counted.
const maxDamaged = 10

// damagedFiles is the error about files that could not be read, one error for each of them; nil where there is none. It
// is not told of those that were not read because ctx ended.
func damagedFiles(ctx context.Context, all []error) error {
	found := slices.DeleteFunc(all, func(err error) bool {
		return err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled)
	})
	switch {
	case len(found) == 0:
		return ctx.Err()
	case len(found) == 1:
		return found[0]
	}
	return &severalDamaged{found}
}

// severalDamaged lists files that could not be read, each on a line of its own.
type severalDamaged struct{ files []error }

func (e *severalDamaged) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d files cannot be read\n", len(e.files))
	for i, err := range e.files {
		if i == maxDamaged {
			fmt.Fprintf(&b, "  and %d more\n", len(e.files)-i)
			break
		}
		fmt.Fprintf(&b, "  %v\n", err)
	}
	return b.String()
}

func (e *severalDamaged) Unwrap() []error { return e.files }
