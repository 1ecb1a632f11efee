//go:build !failpoints

package main

import "larder/internal/journal"

// failing is the folder as it is: failpoints are compiled in with -tags failpoints only.
func failing(fs journal.FS) journal.FS { return fs }
