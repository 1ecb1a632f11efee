package main

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/jpeg"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	larderv1 "larder/proto/larder/v1"
)

// TestInspectPageShowsSamples: a thumbnail for each good sample, its texts escaped, and all bad ones with a reason.
func TestInspectPageShowsSamples(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	var b bytes.Buffer
	if err := jpeg.Encode(&b, image.NewGray(image.Rect(0, 0, 400, 100)), nil); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"<script>alert(1)</a.jpg": b.String(), "b & c/\"x\".jpg": b.String(), "b & c/<bad>.jpg": "no image",
		"b & c/cut.jpg": b.String()[:b.Len()/2],
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := openLocal(t.Context(), "imagefolder:"+dir, false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	out := filepath.Join(t.TempDir(), "page.html")
	met := []quarantined{{"job <1>", &larderv1.QuarantinedSample{Id: 2, Key: "k", Reason: "torn"}}}
	if err := l.writeHTML(t.Context(), out, "", 100, met); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	images := regexp.MustCompile(`data:image/jpeg;base64,([^"]*)"`).FindAllSubmatch(page, -1)
	if len(images) != 2 {
		t.Fatalf("%d thumbnails of 2 good samples", len(images))
	}
	for _, m := range images {
		raw, err := base64.StdEncoding.DecodeString(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		if c, err := jpeg.DecodeConfig(bytes.NewReader(raw)); err != nil || c.Width != thumbnail || c.Height != 40 {
			t.Errorf("a thumbnail has %d x %d pixels: %v", c.Width, c.Height, err)
		}
	}
	text := string(page)
	for _, bad := range []string{"<script>alert", "<bad>", "<1>"} {
		if strings.Contains(text, bad) {
			t.Errorf("%s is not escaped", bad)
		}
	}
	for _, want := range []string{"&lt;bad&gt;.jpg", "is truncated after", "job &lt;1&gt;", "torn", "b &amp; c"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestQuantiles(t *testing.T) {
	var all []int64
	for i := range int64(101) {
		all = append(all, 100-i)
	}
	if q := quantilesOf(all); q != (quantiles{0, 5, 50, 95, 100, 50}) {
		t.Errorf("got %+v", q)
	}
	if q := quantilesOf([]int64{7}); q != (quantiles{7, 7, 7, 7, 7, 7}) || quantilesOf(nil) != (quantiles{}) {
		t.Errorf("got %+v", q)
	}
}
