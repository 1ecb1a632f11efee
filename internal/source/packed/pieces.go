package packed

import "slices"

// readsOnce are the formats whose scans read every byte of a file once, though not in order.
var readsOnce = []string{"jsonl", "csv", "text"}

// ReadsOnce reports whether scans of a scheme read every byte of a file once, in whatever order.
func ReadsOnce(scheme string) bool { return slices.Contains(readsOnce, scheme) }
