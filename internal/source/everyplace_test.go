package source

import (
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"larder/internal/source/packed"
	"larder/internal/store"
	"larder/internal/testenv"
)

// somewhere is a store that has the files of a folder.
type somewhere struct {
	at     string // what its uris begin with
	stores *store.Stores
}

// everywhere puts the files of a folder, which are named by their paths in it, into one store of each kind.
func everywhere(t *testing.T, root string, files map[string]string) map[string]somewhere {
	t.Helper()
	b, az := newBucket(t), testenv.StartAzure(t)
	for name, content := range files { // order-free: files of one folder
		write(t, root, name, content)
		b.put(t, "set/"+name, content)
		az.Put("set/"+name, content)
	}
	web := httptest.NewTLSServer(http.FileServer(http.Dir(root)))
	t.Cleanup(web.Close)
	authority := filepath.Join(t.TempDir(), "authority.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})
	must(t, os.WriteFile(authority, block, 0o600))
	t.Setenv("AWS_CA_BUNDLE", authority)
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", testenv.Connection(az.URL))
	plain := store.New(store.Config{Log: slog.New(slog.DiscardHandler), Settings: func(string, string) store.Settings {
		s := store.Default()
		s.RetryFor, s.Hedge = time.Second, 0
		return s
	}})
	t.Cleanup(plain.Close)
	return map[string]somewhere{"s3": {"s3://data/set", b.stores}, "gs": {"gs://data/set", b.stores},
		"az": {"az://data/set", plain}, "https": {web.URL, plain}}
}

// imageSets are a small dataset of each format whose samples are images.
func imageSets(t *testing.T) map[string]map[string]string {
	t.Helper()
	five, err := os.ReadFile(filepath.Join("packed", "testdata", "five.beton"))
	must(t, err)
	mds := mdsImages(t, "one", "two", "three")
	index := fmt.Sprintf(`{"version":2,"shards":[{"format":"mds","compression":null,"samples":3,"raw_data":`+
		`{"basename":"shard.00000.mds","bytes":%d}}]}`, len(mds))
	var ten, hundred strings.Builder
	for i := range 5 {
		ten.WriteString(string(rune(i)) + strings.Repeat(string(rune('a'+i)), 3072))
		hundred.WriteString(string(rune(i)) + string(rune(2*i)) + strings.Repeat(string(rune('k'+i)), 3072))
	}
	idx := "\x00\x00\x08\x03\x00\x00\x00\x03\x00\x00\x00\x04\x00\x00\x00\x04" + strings.Repeat("abcdefgh", 6)
	return map[string]map[string]string{
		"imagefolder:%s":          {"a/1.jpg": "image 1", "a/2.png": "image 2", "b/3.jpg": "image 3"},
		"imagefiles:%s/list.csv":  {"list.csv": "path,label\nx/1.jpg,1\nx/2.jpg,0\n", "x/1.jpg": "one", "x/2.jpg": "two"},
		"wds:%s/train-{0..1}.tar": {"train-0.tar": shard(t, "1=1"), "train-1.tar": shard(t, "2=0", "3=")},
		"mds:%s":                  {"index.json": index, "shard.00000.mds": mds},
		"mds:%s/merged": {"merged/index.json": strings.ReplaceAll(index, "shard.00000", "0/shard.00000"),
			"merged/0/shard.00000.mds": mds},
		"mds:%s/zipped": {"zipped/index.json": packedIndex("zstd", len(mds)),
			"zipped/shard.00000.mds.zstd": string(zstdOf(t, []byte(mds)))},
		"beton:%s/x.beton":       {"x.beton": string(five)},
		"cifar10:%s?split=test":  {"test_batch.bin": ten.String()},
		"cifar100:%s?split=test": {"test.bin": hundred.String()},
		"idx:%s": {"train-images-idx3-ubyte": idx,
			"train-labels-idx1-ubyte": "\x00\x00\x08\x01\x00\x00\x00\x03\x02\x00\x01"},
	}
}

// samplesOf is what a dataset says of each sample, and what its bytes are.
func samplesOf(t *testing.T, c *Catalog, d *Dataset) []string {
	t.Helper()
	out := []string{fmt.Sprintf("%q %+v", d.Classes(), d.Schema())}
	for i, content := range recordsOf(t, c, d) {
		s := sampleID(i)
		out = append(out, fmt.Sprintf("%q %d %d %q", d.Key(s), d.Label(s), d.Bytes(s), content))
	}
	return out
}

// A dataset of each format in each store is the dataset of the same files in a folder: keys, labels, fields and bytes,
// when it is indexed and when its index was saved. Every format is there.
func TestEveryFormatInEveryStore(t *testing.T) {
	sets := recordSets(t)
	maps.Copy(sets, imageSets(t))
	missing := schemes()
	for uri, files := range sets { // order-free: each by itself
		scheme, _, _ := strings.Cut(uri, ":")
		missing = slices.DeleteFunc(missing, func(s string) bool { return s == scheme })
		t.Run(scheme, func(t *testing.T) {
			root := t.TempDir()
			places := everywhere(t, root, files)
			local, _ := open(t, "")
			here, err := local.Add(t.Context(), "", fmt.Sprintf(uri, root))
			must(t, err)
			want := samplesOf(t, local, here)
			for name, p := range places { // order-free: each by itself
				if name == "https" && !packed.InPlaces(scheme) { // a folder of images needs a list
					continue
				}
				index := t.TempDir()
				for _, when := range []string{"indexed", "saved"} {
					c, err := OpenCatalog(CatalogConfig{IndexDir: index, Stores: p.stores,
						Logger: slog.New(slog.DiscardHandler)})
					must(t, err)
					d, err := c.Add(t.Context(), "", fmt.Sprintf(uri, p.at))
					must(t, err)
					if got := samplesOf(t, c, d); len(got) < 3 || !slices.Equal(got, want) {
						t.Errorf("%s, %s: %q, not %q", d.URI(), when, got, want)
					}
					if path, _ := c.ObjectPath(d.Object(0)); !strings.HasPrefix(path, p.at+"/") {
						t.Errorf("%s: the first sample lies in %s", d.URI(), path)
					}
					must(t, c.Close())
				}
			}
		})
	}
	if len(missing) > 0 {
		t.Errorf("no dataset of %q: add one to recordSets or imageSets", missing)
	}
}
