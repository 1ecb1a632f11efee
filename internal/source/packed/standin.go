package packed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
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
	errXML  = errors.New("it is an error of a store (XML) and not the file, as failed downloads leave: " +
		"download it again")
	errAnswer = errors.New("it is the answer of a server and not the file, as failed downloads leave: download it again")
	errAnnex  = errors.New("it is a pointer of git-annex and not the file: fetch the files with `git annex get` in its " +
		"repository")
	errLink = errors.New("it is the text of a symbolic link and not the file, as copies to file systems without links " +
		"leave: copy the files that the links lead to")
)

// StandsIn is the error of a file whose first bytes are those of a text that stands for another file; nil = they are
// not.
func StandsIn(head []byte) error {
	head = bytes.TrimLeft(bytes.TrimPrefix(head[:min(len(head), standInHead)], []byte("\xef\xbb\xbf")), " \t\r\n")
	begins := func(with string) bool {
		return len(head) >= len(with) && bytes.EqualFold(head[:len(with)], []byte(with))
	}
	switch {
	case len(head) == 0 || bytes.IndexByte([]byte("<v/.4Ee"), head[0]) < 0:
		return nil
	case begins(pointerHead):
		return errPointer
	case begins("/annex/objects/"):
		return errAnnex
	case begins("../../blobs/"), begins(".git/annex/objects/"), begins("../.git/annex/objects/"):
		return errLink
	case slices.Contains(answers, strings.ToLower(string(bytes.TrimSpace(head)))):
		return errAnswer
	}
	return markup(head)
}

// answers are whole files, in small letters: what GitHub, Hugging Face and web servers say of a file that is not there.
var answers = []string{"404: not found", "404 not found", "entry not found", "entry not found."}

// markup refuses HTML and XML: comments and declarations may stand before the element that tells.
func markup(head []byte) error {
	text := strings.ToLower(string(head))
	for {
		end, found := 0, false
		for open, closes := range map[string]string{"<?xml": "?>", "<!--": "-->"} { // order-free: one of them fits
			if strings.HasPrefix(text, open) {
				end, found = strings.Index(text, closes)+len(closes), strings.Contains(text, closes)
			}
		}
		if !found {
			break
		}
		text = strings.TrimLeft(text[end:], " \t\r\n")
	}
	for _, tag := range []string{"<!doctype html", "<html", "<head"} {
		if strings.HasPrefix(text, tag) && strings.ContainsAny(text[len(tag):min(len(text), len(tag)+1)], "> \t\r\n") {
			return errPage
		}
	}
	if strings.HasPrefix(text, "<error>") && strings.Contains(text, "<code>") {
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
