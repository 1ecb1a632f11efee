// Command counts measures what must not grow back unnoticed, and compares it with counts.txt beside this file.
//
// A quality number (methods and fields of a type, parameters, interfaces, waits in tests, banned phrases, words of the
// glossary with two meanings) may only fall. counts.txt holds it exactly: -update writes down a number that fell, so it
// cannot rise again. A size number (words, lines, arguments, the binary) is a ceiling. A commit that raises
// it says by how much and why, in a line of its message:
//
//	Ceiling: words.docs +1200: a page about object stores
//
// A type, function or package that is renamed takes its number along if the commit says so:
//
//	Moved: methods.internal/source.Catalog -> methods.internal/source.Index
//
// The old one must be gone from the tree of that commit: one that only fell below its limit leaves its number to none.
//
// -check reads the history of counts.txt as well, so a raised number stays red after it was committed. The first commit
// that has the file is the start. For each number, a merge may hold what one side changed or, where both sides changed
// it, the larger number; ceilings that both sides raised may add up. A breach in an old commit is forgiven once the
// number is back at what it was. Where CI is set, a clone without the whole history fails; elsewhere it is a note.
//
// The structure of code is measured without its tests, generated code is left out everywhere, and this package is left
// out where phrases are counted, since it names them.
package main
