package config

import (
	"strings"
	"testing"
	"time"
)

func TestStoresAreSetByKindAndByPlace(t *testing.T) {
	c := mustParse(t, `
stores:
  s3: {endpoint: "http://127.0.0.1:9000", parallel: 8, price_get: 0.0004}
  "s3://my.bucket": {endpoint: "https://ceph.example", region: eu, anonymous: true}
  https: {timeout: 5s, hedge: 0}
`)
	if err := c.Set("stores.s3.retry_for", "2m", Origin{}); err != nil {
		t.Fatal(err)
	}
	def := Default().Store("s3", "s3://x")
	want := def
	want.Endpoint, want.Parallel, want.PriceGet, want.RetryFor = "http://127.0.0.1:9000", 8, 0.0004, 2*time.Minute
	if got := c.Store("s3", "s3://x"); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	want.Endpoint, want.Region, want.Anonymous = "https://ceph.example", "eu", true
	if got := c.Store("s3", "s3://my.bucket"); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := c.Store("gs", "gs://my.bucket"); got != def {
		t.Errorf("%+v, want the defaults", got)
	}
	if got := c.Store("https", "https://h"); got.Timeout != 5*time.Second || got.Hedge != 0 {
		t.Errorf("%+v", got)
	}
	again, err := Parse("again", c.Marshal(Docs))
	if err != nil {
		t.Fatal(err)
	}
	if d := Diff(c, again); len(d) != 0 || len(again.Stores) != 3 {
		t.Errorf("written and read: %v\n%s", d, c.Marshal(NoComments))
	}
	clone := c.Clone()
	if err := clone.Set("stores.s3.region", "us", Origin{}); err != nil {
		t.Fatal(err)
	}
	d := Diff(c, clone)
	if len(d) != 1 || d[0].Key != "stores.s3.region" || d[0].Apply != Restart || c.Store("s3", "").Region != "" {
		t.Errorf("changed: %v", d)
	}
	env, err := Load("", []string{"LARDER_STORES__S3__ENDPOINT=https://x", "LARDER_STORES__S3__PATH_STYLE=true"}, nil)
	if err != nil || env.Store("s3", "").PathStyle != "true" || env.Store("s3", "").Endpoint != "https://x" {
		t.Errorf("from the environment: %+v, %v", env, err)
	}
}

func TestMistakesAboutStores(t *testing.T) {
	for text, want := range map[string]string{
		"stores: {s4: {endpoint: \"https://x\"}}":        "did you mean stores.s3.endpoint?",
		"stores: {s3: {endpont: \"https://x\"}}":         "did you mean stores.s3.endpoint?",
		"stores: {https: {endpoint: \"https://x\"}}":     "unknown key",
		"stores: {s3: {endpoint: \"localhost:9000\"}}":   "not an address",
		"stores: {s3: {endpoint: \"https://u:p@x\"}}":    "credentials",
		"stores: {s3: {endpoint: \"https://x/bucket\"}}": "a path",
		"stores: {s3: {path_style: yes}}":                "path_style",
		"stores: {s3: {parallel: 0}}":                    "from 1 to 4096",
		"stores: {s3: {timeout: 0}}":                     "between 100ms and 1h",
		"stores: {s3: {hedge: 2}}":                       "from 0 to 1",
		"stores: {s3: {price_get: .nan}}":                "from 0",
		"stores: {s3: {secret_access_key: x}}":           "unknown key",
		"stores: {s3: x}":                                "must hold keys",
		"stores: x":                                      "e.g. stores",
		"stores: {\"s3://b\": {region: \"a b\"}}":        "one word",
		"stores: {s3: {region: a}, s3: {region: b}}":     "set already",
	} {
		if _, err := Parse("larder.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
