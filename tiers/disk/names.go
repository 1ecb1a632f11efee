package disk

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	lockName   = "larder.lock"
	namePrefix = "larder-"
	segmentEnd = ".seg"
	blockEnd   = ".blk"
)

func segmentName(id uint32) string { return fmt.Sprintf("%s%08x%s", namePrefix, id, segmentEnd) }
func blockName(id uint32) string   { return fmt.Sprintf("%s%08x%s", namePrefix, id, blockEnd) }

// ours returns the number in the name of a file of the tier, and whether it is one.
func ours(name string) (id uint32, isBlock, ok bool) {
	rest, found := strings.CutPrefix(name, namePrefix)
	if !found || len(rest) != 8+len(segmentEnd) {
		return 0, false, false
	}
	n, err := strconv.ParseUint(rest[:8], 16, 32)
	if err != nil || n == 0 {
		return 0, false, false
	}
	id = uint32(n)
	isBlock = name == blockName(id)
	return id, isBlock, isBlock || name == segmentName(id)
}
