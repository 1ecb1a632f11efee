// Package release knows which version of larder this is. The file VERSION beside it is the only place where the number
// is written: the command line and the daemon embed it, `make generate` writes it to the Python client, and a test
// compares everything that repeats it.
//
// A new release changes VERSION, runs `make generate`, and gives CHANGELOG.md a section of that name.
package release

import (
	_ "embed"
	"runtime/debug"
	"strings"
)

//go:embed VERSION
var file string

// Version is the number of this release, MAJOR.MINOR.PATCH (semver.org).
var Version = strings.TrimSpace(file)

// Commit returns the commit that this binary was built from, and whether files had changed since. The linker may have
// set it (linked); otherwise it is what the Go toolchain noted, and "" where neither did.
func Commit(linked string) (commit string, modified bool) {
	commit = linked
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return commit, false
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			if commit == "" {
				commit = s.Value
			}
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	return commit, modified
}

// Build returns Version with the commit as semver's build metadata, e.g. 0.1.0+1a2b3c4d5e6f or
// 0.1.0+1a2b3c4d5e6f.dirty; Version alone where no commit is known. Two builds of different code never have the same
// one, as far as that is known: the daemon remembers by it which build an image has crashed.
func Build(commit string, modified bool) string {
	const digits = 12
	if commit == "" {
		return Version
	}
	b := Version + "+" + commit[:min(digits, len(commit))]
	if modified {
		b += ".dirty"
	}
	return b
}
