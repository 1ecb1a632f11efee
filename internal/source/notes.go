package source

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"larder/internal/ident"
	"larder/internal/source/packed"
)

// pictures are suffixes of what a user may take for samples, and torchvision's ImageFolder does not.
var pictures = []string{
	".heic", ".heif", ".avif", ".gif", ".jxl", ".jp2", ".jpe", ".jfif", ".pbm", ".pnm", ".tga", ".psd", ".svg", ".dng",
	".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf",
	".rw2", ".exr", ".hdr", ".dcm", ".nii", ".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".npy", ".npz", ".zip",
	".tar",
}

// Ignored is a kind of files that are no samples.
type Ignored struct {
	// the suffix in small letters, "" = none, "hidden" (a name that begins with a dot), "others", or "image in the root
	// folder"
	Kind  string
	Files int
}

// RootKind is the kind of images that lie in the root, where only class folders are looked into.
const RootKind = "image in the root folder"

// Ignored lists what the last walk found beside samples, the most frequent kind first.
func (d *Dataset) Ignored() []Ignored {
	r := d.Report()
	var out []Ignored
	for _, kind := range slices.Sorted(maps.Keys(r.Kinds)) {
		if r.Kinds[kind] > 0 { // else it is told in words
			out = append(out, Ignored{kind, r.Kinds[kind]})
		}
	}
	if r.RootImage > 0 {
		out = append(out, Ignored{RootKind, r.RootImage})
	}
	slices.SortStableFunc(out, func(a, b Ignored) int { return cmp.Compare(b.Files, a.Files) })
	return out
}

// Notes says in words what a user may miss in the dataset: files that look like samples and are none, and classes
// without any. Text files and others that often lie beside images are left to Ignored.
func (d *Dataset) Notes() []string {
	snap := d.snap.Load()
	if snap.labels != nil {
		return snap.packedNotes(d.Ignored())
	}
	var notes []string
	var parts []string
	files := 0
	for _, k := range d.Ignored() {
		what := k.Kind
		switch {
		case what == "":
			what = "without a suffix"
		case what != RootKind && !slices.Contains(pictures, what):
			continue
		}
		parts = append(parts, count(k.Files)+" "+what)
		files += k.Files
	}
	if files > 0 {
		verb := "files are no samples"
		if files == 1 {
			verb = "file is no sample"
		}
		notes = append(notes, fmt.Sprintf("%s %s: %s (samples lie in class folders and end in %s, as in torchvision's "+
			"ImageFolder)",
			count(files), verb, strings.Join(parts, ", "), strings.Join(imageSuffixes, " ")))
	}
	if n := snap.report.Irregular; n > 0 {
		notes = append(notes, count(n)+" pipes, sockets or devices have an image's suffix and are no samples")
	}
	var empty []string
	for _, l := range snap.empty {
		empty = append(empty, printable(snap.classes[l]))
	}
	if len(empty) > 0 {
		notes = append(notes, fmt.Sprintf("%s without an image: %s; labels stay as they are", classes(len(empty)),
			list(empty)))
	}
	if out := snap.report.LeftOut; len(out) > 0 {
		shown := make([]string, len(out))
		for i, c := range out {
			shown[i] = printable(c)
		}
		notes = append(notes, fmt.Sprintf("%s new and without an image, so no class yet: %s", classes(len(out)), list(shown)))
	}
	return notes
}

// packedNotes says what of packed files is not delivered.
func (s *snapshot) packedNotes(ignored []Ignored) []string {
	var notes []string
	var parts []string
	for _, k := range ignored {
		if packed.IsLeftOutKind(k.Kind) {
			files := count(k.Files) + " files"
			if k.Files == 1 {
				files = "1 file"
			}
			notes = append(notes, printable(packed.LeftOutNote(k.Kind, files)))
			continue
		}
		parts = append(parts, count(k.Files)+" "+printable(k.Kind))
	}
	if len(parts) > 0 {
		delivers := "larder delivers images and labels; "
		if s.records() {
			delivers = ""
		}
		notes = append(notes, delivers+"not delivered: "+list(parts))
	}
	if n := s.report.Without; n > 0 {
		why := map[bool]string{false: "have no image", true: "have not all fields of ?fields="}[s.records()]
		who := count(n) + " samples " + why + " and are left out"
		if n == 1 {
			who = "1 sample " + strings.Replace(why, "have", "has", 1) + " and is left out"
		}
		notes = append(notes, who)
	}
	told := slices.Sorted(maps.Keys(s.report.Kinds))
	told = slices.DeleteFunc(told, func(kind string) bool { return s.report.Kinds[kind] > 0 || kind == otherKind })
	for i, words := range told {
		if i == mostTold {
			notes = append(notes, fmt.Sprintf("and %s more of such columns", count(len(told)-i)))
			break
		}
		notes = append(notes, printable(words))
	}
	return append(notes, oddLabels(s)...)
}

// mostTold is how many columns of mixed values are told one by one.
const mostTold = 5

// oddLabels says where labels that are numbers became places in the list of classes, because others are words.
func oddLabels(s *snapshot) []string {
	if !packed.LabelsByWord(s.scheme()) || numbered(s.classes) {
		return nil
	}
	kinds, words := make([]packed.LabelKind, len(s.classes)), true
	for l, c := range s.classes {
		kinds[l] = packed.KindOfLabel(c)
		words = words && kinds[l] == packed.LabelWord
	}
	if words {
		return nil
	}
	var counts [packed.LabelKinds]int
	var first [packed.LabelKinds]ident.SampleID
	for id := range ident.SampleID(s.Len()) {
		if l := s.Label(id); s.Live(id) && l >= 0 && l < int64(len(kinds)) {
			if counts[kinds[l]]++; counts[kinds[l]] == 1 {
				first[kinds[l]] = id
			}
		}
	}
	if counts[packed.LabelWhole]+counts[packed.LabelNumber] == 0 {
		return nil
	}
	var there []int // kinds, the rarest first
	for _, k := range []int{int(packed.LabelWord), int(packed.LabelNumber), int(packed.LabelWhole)} {
		if counts[k] > 0 {
			there = append(there, k)
		}
	}
	slices.SortStableFunc(there, func(a, b int) int { return cmp.Compare(counts[a], counts[b]) })
	odd := first[there[0]]
	why := fmt.Sprintf("a label is %q (%s)", printable(s.Class(odd)), printable(s.Key(odd)))
	if len(there) > 1 {
		why += fmt.Sprintf(", and others are such as %q", printable(s.Class(first[there[len(there)-1]])))
	}
	return []string{why + ": so labels are names of classes, and what is delivered are places in the sorted list of " +
		"names, which are not these numbers"}
}

func classes(n int) string {
	if n == 1 {
		return "1 class folder is"
	}
	return count(n) + " class folders are"
}

func list(names []string) string {
	more := ""
	if len(names) > 5 {
		more = fmt.Sprintf(" and %s more", count(len(names)-5))
		names = names[:5]
	}
	return strings.Join(names, ", ") + more
}

// count writes a number with commas.
func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
