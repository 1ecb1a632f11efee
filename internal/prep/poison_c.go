//go:build failpoints && cgo

package prep

/*
#include <stdlib.h>

static volatile int *volatile nowhere;

static void larder_crash(int gently) {
	if (gently)
		abort();
	*nowhere = 1;
}
*/
import "C"

// crash dies in C code.
func crash(signal string) {
	gently := C.int(0)
	if signal == "SIGABRT" {
		gently = 1
	}
	C.larder_crash(gently)
}
