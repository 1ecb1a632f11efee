//go:build !failpoints

package daemon

import "larder/internal/journal"

// withFailpoints is the folder as it is: failpoints are compiled in with -tags failpoints only.
func withFailpoints(fs journal.FS) journal.FS { return fs }
