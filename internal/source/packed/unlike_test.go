package packed

import (
	"io/fs"
	"slices"
	"strings"
	"testing"

	"larder/internal/errs"
)

// bucket is a place of some files in the folder /d; without lists, it only says which of them are there.
type bucket struct {
	files   []string
	noLists bool
}

func (b bucket) Size(path string) (int64, error) {
	if slices.Contains(b.files, strings.TrimPrefix(path, "/d/")) {
		return 1, nil
	}
	return 0, fs.ErrNotExist
}

func (b bucket) List(dir string) ([]string, error) {
	switch {
	case b.noLists:
		return nil, errs.New(errs.Unsupported, "", "", "no lists")
	case dir != "/d":
		return nil, nil
	}
	return b.files, nil
}

func (bucket) Read(string, int64) ([]byte, error) { return nil, fs.ErrNotExist }

// TestStoredFoldersOfAnotherFormat: in a store, too, one error says what is there, where there are lists.
func TestStoredFoldersOfAnotherFormat(t *testing.T) {
	for name, x := range map[string]struct {
		b          bucket
		says, hint string
	}{
		"tars": {bucket{[]string{"b.tar", "a.tar"}, false}, `folder "s3://b/d" is no CIFAR-10: it should hold data_batch_1`,
			"did you mean wds:s3://b/d?"},
		"empty":    {bucket{nil, false}, `(or cifar-10-batches-bin with them), and is empty`, ""},
		"no lists": {bucket{nil, true}, `the folder "s3://b/d" of CIFAR-10 lacks data_batch_1.bin`, ""},
	} { // order-free: each by itself
		_, _, err := cifar{10}.Files(Address{Scheme: "cifar10", Path: "/d", Place: "s3://b", At: x.b})
		hint := ""
		if u, ok := err.(*Unlike); ok { //nolint:errorlint // what Files gives
			hint = u.Hint
		}
		if err == nil || !strings.Contains(err.Error(), x.says) || hint != x.hint {
			t.Errorf("%s: %v, hint %q", name, err, hint)
		}
	}
}
