package errs

import (
	"errors"
	"testing"
)

func TestNotYAML(t *testing.T) {
	for _, x := range []struct{ data, err, want, hint string }{
		{"a: [", "yaml: line 1: did not find expected node content", "f.yaml:1: did not find expected node content",
			"check indentation and quotes"},
		{"a:\n \tb: 1", "yaml: line 2: found a tab", "f.yaml:2: found a tab", "indent with blanks: YAML takes no tabs"},
		{"a: b\tc", "yaml: control characters are not allowed", "f.yaml: control characters are not allowed",
			"check indentation and quotes"},
	} {
		got := NotYAML(ConfigInvalid, "f.yaml", []byte(x.data), errors.New(x.err))
		if got.Message != x.want || got.Hint != x.hint || got.Reason != ConfigInvalid || got.Subject != "f.yaml" {
			t.Errorf("%+v, want %q (%s)", got, x.want, x.hint)
		}
	}
}
