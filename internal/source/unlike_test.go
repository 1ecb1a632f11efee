package source

import (
	"strings"
	"testing"

	"larder/internal/errs"
)

// TestFoldersOfAnotherFormat: a folder without the files of CIFAR or MNIST is one error that says what it should hold,
// what it holds, and what it seems to be.
func TestFoldersOfAnotherFormat(t *testing.T) {
	const five = "data_batch_1.bin, data_batch_2.bin, data_batch_3.bin, data_batch_4.bin, data_batch_5.bin"
	for name, x := range map[string]struct {
		uri, files string
		says       []string
	}{
		"tars": {"cifar10:%s", "a.tar b.tar README.md", []string{"%s\" is no CIFAR-10: it should hold " + five +
			` (or cifar-10-batches-bin with them), and holds "README.md", "a.tar", "b.tar"`,
			"did you mean wds:%s? Or write cifar10:"}},
		"images": {"cifar100:%s", "cat/1.jpg classes.json", []string{"is no CIFAR-100: it should hold train.bin (or",
			`and holds "cat/", "classes.json"`, "did you mean imagefolder:%s?"}},
		"the other": {"cifar10:%s", "train.bin test.bin fine_label_names.txt", []string{"did you mean cifar100:%s?"}},
		"shards":    {"idx:%s", "index.json shard.00000.mds", []string{"did you mean mds:%s?"}},
		"nothing": {"idx:%s", ".hidden", []string{`%s" is no idx dataset: it should hold train-images-idx3-ubyte, ` +
			"train-labels-idx1-ubyte (or the folder raw with them), and is empty (write idx:DIR"}},
		"above": {"idx:%s", "MNIST/raw/train-images-idx3-ubyte", []string{`and holds "MNIST/"`,
			"did you mean idx:%s/MNIST?"}},
		"texts":   {"idx:%s?split=test", "a.txt", []string{"should hold t10k-images-idx3-ubyte", "did you mean text:%s?"}},
		"unknown": {"cifar10:%s", "a.xyz", []string{`and holds "a.xyz" (write cifar10:DIR`}},
		"python":  {"cifar10:%s", "cifar-10-batches-py/x", []string{"is the Python version, pickles"}},
		"some": {"cifar10:%s", strings.Replace(five, ", data_batch_3.bin", "", 1), []string{`%s" of CIFAR-10 lacks ` +
			`data_batch_3.bin; it holds "data_batch_1.bin", "data_batch_2.bin", "data_batch_4.bin"`}},
		"archived": {"cifar10:%s", "cifar-10-batches-bin/data_batch_1.bin", []string{
			`%s/cifar-10-batches-bin" of CIFAR-10 lacks data_batch_2.bin, data_batch_3.bin, data_batch_4.bin, data_b`}},
		"a file": {"cifar10:%s/x.parquet", "x.parquet", []string{`x.parquet" is a file, and CIFAR-10 is a folder with data_b`,
			"did you mean parquet:%s/x.parquet?"}},
		"none":      {"idx:%s/none", "x", []string{`/none" does not exist (write idx:DIR`}},
		"no labels": {"idx:%s", "train-images-idx3-ubyte", []string{`/train-labels-idx1-ubyte": no such file`}},
	} { // order-free: each by itself
		root := t.TempDir()
		for f := range strings.FieldsFuncSeq(x.files, func(r rune) bool { return r == ' ' || r == ',' }) {
			write(t, root, f, "x")
		}
		c, _ := open(t, "")
		_, err := c.Add(t.Context(), "", strings.Replace(x.uri, "%s", root, 1))
		if !errs.Is(err, errs.DatasetUnread) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, part := range x.says {
			if part = strings.ReplaceAll(part, "%s", root); !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v\ndoes not say %q", name, err, part)
			}
		}
		if n := strings.Count(err.Error(), "no such file"); n > 1 || strings.Contains(err.Error(), "  ") {
			t.Errorf("%s: %d files one by one: %v", name, n, err)
		}
	}
}
