//go:build failpoints

package prep

import (
	"bytes"
	"os"
	"strings"
)

var poisonSignal, poisonFlag, _ = strings.Cut(os.Getenv("LARDER_POISON"), ":")

// poison crashes this process as a decoder could when it comes upon a file that has "larder-poison" in it.
// LARDER_POISON is SIGSEGV or SIGABRT, or either and behind a colon a file: then as soon as there is that file. This
// build is for tests of crashes.
func poison(enc []byte) {
	if poisonSignal == "" || !bytes.Contains(enc, []byte("larder-poison")) {
		return
	}
	if _, err := os.Stat(poisonFlag); err == nil || poisonFlag == "" {
		crash(poisonSignal)
	}
}
