package packed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
)

// Text may lie where a file should: a pointer of Git LFS in a clone without the files, a page or an error of a web
// server that was saved under the name of a file. Formats without a head would read it as data.

const (
	pointerHead = "version https://git-lfs.github.com/spec/v"
	// A pointer of Git LFS has fewer than maxPointer bytes, and at least leastPointer.
	maxPointer   = 1024
	leastPointer = 120
	// standInHead is how many first bytes tell.
	standInHead = 512
)

var (
	errPointer = errors.New("it is a pointer of Git LFS and not the file: fetch the files with `git lfs pull` in its " +
		"repository")
	errPage = errors.New("it is a web page (HTML) and not the file, as a failed download leaves: download it again")
	errXML  = errors.New("it is an error of a store (XML) and not the file, as failed downloads leave: download it again")
)

// StandsIn is the error of a file whose first bytes are those of a text that stands for another file; nil = they are
// not.
func StandsIn(head []byte) error {
	head = bytes.TrimLeft(bytes.TrimPrefix(head[:min(len(head), standInHead)], []byte("\xef\xbb\xbf")), " \t\r\n")
	begins := func(with string) bool {
		return len(head) >= len(with) && bytes.EqualFold(head[:len(with)], []byte(with))
	}
	switch {
	case len(head) == 0 || head[0] != '<' && head[0] != 'v':
		return nil
	case begins(pointerHead):
		return errPointer
	case begins("<!doctype html"), begins("<html>"), begins("<html "), begins("<html\n"), begins("<html\r"):
		return errPage
	case begins("<?xml") && bytes.Contains(head, []byte("<Error>")):
		return errXML
	}
	return nil
}

// IsPointer is StandsIn of a file of so many bytes that may be a pointer of Git LFS by its size; of others it reads
// nothing. What fails to be read is for its reader to say.
func IsPointer(r io.ReaderAt, size int64) error {
	if size < leastPointer || size >= maxPointer {
		return nil
	}
	head := make([]byte, len(pointerHead))
	if readFull(r, head, 0) == nil && string(head) == pointerHead {
		return errPointer
	}
	return nil
}

// maxPage is the size of a page or error in the place of a file, at most.
const maxPage = 1 << 20

// Misread reports whether an earlier larder may have read a file of so many bytes and samples, and this one refuses it
// or leaves it out: text that stands for a file, compressed lines that are cut in their heads, files of other programs.
func Misread(scheme, path string, size int64, samples int) bool {
	switch {
	case leavesOut(filepath.Base(path)):
		return true
	case scheme == "tokens" && !strings.HasSuffix(path, ".npy"), scheme == "text" && !compressedName(path):
		return size >= int64(len("<html>")) && size <= maxPage
	case scheme == "text" || scheme == "csv" || scheme == "jsonl":
		return compressedName(path) && samples < 2 // what is behind the head gives two bytes at least
	}
	return false
}

// named adds the name of a file to the error that it is a pointer; others have it.
func named(path string, err error) error {
	if errors.Is(err, errPointer) {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return err
}
