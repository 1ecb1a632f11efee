package release

import (
	"regexp"
	"testing"
)

func TestVersion(t *testing.T) {
	if !regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+$`).MatchString(Version) {
		t.Errorf("VERSION holds %q, which is no MAJOR.MINOR.PATCH", Version)
	}
	if file != Version+"\n" {
		t.Errorf("VERSION holds %q, want one line", file)
	}
}

func TestBuild(t *testing.T) {
	for _, c := range []struct {
		commit   string
		modified bool
		want     string
	}{
		{"", true, Version},
		{"1a2b", false, Version + "+1a2b"},
		{"0123456789abcdef", false, Version + "+0123456789ab"},
		{"0123456789abcdef", true, Version + "+0123456789ab.dirty"},
	} {
		if got := Build(c.commit, c.modified); got != c.want {
			t.Errorf("Build(%q, %v) = %q, want %q", c.commit, c.modified, got, c.want)
		}
	}
	if commit, _ := Commit("abc"); commit != "abc" {
		t.Errorf("Commit: the linker's %q is lost", commit)
	}
}
