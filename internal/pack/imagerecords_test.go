package pack

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"larder/internal/errs"
)

// pictured is a dataset of records with images, and its uri as a dataset of images with the same samples.
func pictured(t *testing.T, seed uint64, each int) (records, images string) {
	t.Helper()
	r := must(t, Config{URI: "imagefolder:" + photos(t, seed, each), To: to(t, MDS), disk: disk{sync: unsynced}})
	return r.URI + "?fields=image,label", r.URI
}

// TestImagesOfRecordsAreEncodedAgain: image fields become the bytes that the images of a plain pack become, and other
// fields stay.
func TestImagesOfRecordsAreEncodedAgain(t *testing.T) {
	uri, plain := pictured(t, 6, 11)
	for _, format := range []string{WDS, MDS} {
		for _, flags := range []struct{ size, quality int }{{30, 0}, {30, 80}, {0, 50}} {
			cfg := Config{URI: plain, To: to(t, format), disk: disk{sync: unsynced}, MaxSize: flags.size,
				Quality: flags.quality, ShardSize: 16 << 10, Verify: true}
			of := must(t, cfg)
			want := read(t, of.URI)
			cfg.URI, cfg.To = uri, to(t, format)
			r := must(t, cfg)
			if r.Encoded != of.Encoded || r.Encoded == 0 || r.Encoder != of.Encoder || r.Verified != len(want) {
				t.Errorf("%s: %+v: encoded %d of %d, verified %d", format, flags, r.Encoded, of.Encoded, r.Verified)
			}
			got := fieldsOf(t, r.URI)
			if len(got) != len(want) {
				t.Fatalf("%s: %d records of %d", format, len(got), len(want))
			}
			for i, row := range got {
				image := row["image"] + row["image.jpg"] + row["image.png"]
				label := fmt.Sprintf("scalar int64 [] %02x00000000000000", want[i].label)
				if !strings.HasSuffix(image, fmt.Sprintf(" %x", want[i].raw)) || row["label"] != label {
					t.Errorf("%s: %+v: record %d: %.80s, label %s, not %s", format, flags, i, image, row["label"], label)
				}
			}
		}
	}
}

// TestInterruptedRunsThatEncodeRecords: a run that ends wherever it may is continued, to the very bytes.
func TestInterruptedRunsThatEncodeRecords(t *testing.T) {
	uri, _ := pictured(t, 7, 25)
	for _, format := range []string{WDS, MDS} {
		cfg := Config{URI: uri, To: to(t, format), disk: disk{sync: unsynced}, ShardSize: 16 << 10, MaxSize: 40,
			Quality: 85, Shuffle: 9}
		cfg.To = continued(t, cfg, 3)
		cfg.Quality, cfg.disk.create = 80, nil
		if _, err := Run(t.Context(), cfg); !errs.Is(err, errs.AlreadyExists) ||
			!strings.Contains(err.Error(), "--quality was 85 and is 80") {
			t.Errorf("%s: other flags: %v", format, err)
		}
	}
}

// tarred writes a tar whose samples are an image file and a text.
func tarred(t *testing.T, images ...[]byte) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i, body := range images {
		for _, m := range []member{{"jpg", body}, {"txt", []byte("a text")}} {
			h := &tar.Header{Name: fmt.Sprintf("%03d.%s", i, m.ext), Size: int64(len(m.body)), Mode: 0o600}
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(m.body); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a.tar")
	put(t, path, b.Bytes())
	return "wds:" + path + "?fields=jpg,txt"
}

// TestRecordsWithBadImages: one costs what a bad image costs elsewhere. Without flags nothing looks at images.
func TestRecordsWithBadImages(t *testing.T) {
	var good []byte
	for _, s := range read(t, "imagefolder:"+photos(t, 3, 5)) {
		if strings.HasPrefix(s.raw, "\xff\xd8") && s.w > 20 && s.h > 20 {
			good = []byte(s.raw)
		}
	}
	if good == nil {
		t.Fatal("no image is large enough")
	}
	for name, bad := range map[string][]byte{"no image": []byte("no image at all"), "cut": good[:len(good)/2]} {
		uri := tarred(t, bad, good, bad, good)
		cfg := Config{URI: uri, To: to(t, MDS), disk: disk{sync: unsynced}, MaxSize: 20, Verify: true}
		_, err := Run(t.Context(), cfg)
		if !errs.Is(err, errs.SampleBad) || !strings.Contains(err.Error(), "000") ||
			!strings.Contains(err.Error(), `field "jpg"`) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(cfg.To.Dir); err == nil {
			t.Errorf("%s: something was written", name)
		}
		cfg.SkipBad = true
		r := must(t, cfg)
		if r.Samples != 2 || r.Encoded != 2 || len(r.Skipped) != 2 ||
			!strings.Contains(r.Skipped[1].Reason, `field "jpg"`) {
			t.Errorf("%s: %+v", name, r)
		}
		cfg.To, cfg.MaxSize = to(t, MDS), 0
		if r := must(t, cfg); r.Samples != 4 || r.Encoded != 0 || r.Encoder != "" {
			t.Errorf("%s: copied: %+v", name, r)
		}
	}
}

// TestRecordsWithoutImagesAreNotEncoded: flags that would change nothing are refused, and so are properties.
func TestRecordsWithoutImagesAreNotEncoded(t *testing.T) {
	cfg := Config{URI: lines(t, 3), To: to(t, WDS), disk: disk{sync: unsynced}}
	for flag, change := range map[string]func(*Config){
		"--max-size":   func(c *Config) { c.MaxSize = 100 },
		"--quality":    func(c *Config) { c.Quality = 90 },
		"--properties": func(c *Config) { c.Properties = true },
	} {
		c := cfg
		change(&c)
		_, err := Run(t.Context(), c)
		if !errs.Is(err, errs.Unsupported) || !strings.Contains(err.Error()+errs.From(err).Hint, flag) {
			t.Errorf("%s: %v", flag, err)
		}
		if _, err := os.Stat(c.To.Dir); err == nil {
			t.Errorf("%s: something was written", flag)
		}
	}
}
