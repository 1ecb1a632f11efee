package config

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// StoreConfig is what is configured for one kind of store, such as s3, or one place, such as s3://bucket.
type StoreConfig struct {
	Name   string
	values map[string]string // by attribute, as written
}

// StoreSettings say how a place is reached. internal/store says what each means; its Settings have the same fields in
// the same order.
type StoreSettings struct {
	Endpoint, Region, PathStyle string
	Anonymous                   bool
	Profile                     string
	IMDS, Insecure              bool

	Parallel          int
	Timeout, RetryFor time.Duration
	Hedge             float64

	PriceGet, PriceList, PriceGiB float64
}

const storesKey = "stores"

// StoreSchemes lists the kinds of stores that can be configured.
var StoreSchemes = []string{"s3", "gs", "az", "https", "http"}

func defaultStore() StoreSettings {
	return StoreSettings{PathStyle: "auto", IMDS: true, Parallel: 64, Timeout: 20 * time.Second, RetryFor: time.Minute,
		Hedge: 0.05}
}

// storeAttribute is an attribute of all stores, or of buckets alone. Its value is that of the scratch of a Config.
type storeAttribute struct {
	name, kind, doc string
	buckets         bool
	value
}

var storeAttributes = []storeAttribute{
	{"endpoint", "URL", "address of the server of s3://, gs:// or az://; " +
		"empty = AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's, else AWS or Google; AZURE_STORAGE_ACCOUNT's", true,
		textOf(func(c *Config) *string { return &c.scratch.Endpoint }, checkEndpoint)},
	{"region", "word", "region of the bucket; empty = AWS is asked, else AWS_REGION, the profile's, us-east-1", true,
		textOf(func(c *Config) *string { return &c.scratch.Region }, checkWord)},
	{"path_style", "auto | true | false", "the bucket stands in the path, not in the name of the host; " +
		"auto = where the server is not AWS", true,
		textOf(func(c *Config) *string { return &c.scratch.PathStyle }, oneOf("a style", "auto", "true", "false"))},
	{"anonymous", "true | false", "no credentials are looked for, and requests are not signed", true,
		boolOf(func(c *Config) *bool { return &c.scratch.Anonymous })},
	{"profile", "word", "profile of ~/.aws that alone has the credentials; empty = the usual places", true,
		textOf(func(c *Config) *string { return &c.scratch.Profile }, checkWord)},
	{"imds", "true | false", "ask the machine's metadata service for credentials, last", true,
		boolOf(func(c *Config) *bool { return &c.scratch.IMDS })},
	{"insecure", "true | false", "http:// to other machines is accepted", false,
		boolOf(func(c *Config) *bool { return &c.scratch.Insecure })},
	{"parallel", "number", "requests under way at once", false,
		intOf(func(c *Config) *int { return &c.scratch.Parallel }, 1, 4096)},
	{"timeout", "duration", "a request fails when no byte came for so long", false,
		value{setStoreTimeout, func(c *Config) string { return formatDuration(c.scratch.Timeout) }}},
	{"retry_for", "duration", "how long a read is tried again before it fails; 0 = never", false,
		durationOf(func(c *Config) *time.Duration { return &c.scratch.RetryFor }, time.Millisecond, 24*time.Hour)},
	{"hedge", "0 to 1", "second requests beside slow ones, as a part of all; 0 = none", false,
		numberOf(func(c *Config) *float64 { return &c.scratch.Hedge }, 1)},
	{"price_get", "number", "money for 1,000 requests for objects, for the counter", false,
		numberOf(func(c *Config) *float64 { return &c.scratch.PriceGet }, 1e9)},
	{"price_list", "number", "money for 1,000 lists, or writes", false,
		numberOf(func(c *Config) *float64 { return &c.scratch.PriceList }, 1e9)},
	{"price_gib", "number", "money for a GiB received", false,
		numberOf(func(c *Config) *float64 { return &c.scratch.PriceGiB }, 1e9)},
}

// notAzure are attributes of buckets that a container of Azure does not have.
var notAzure = []string{"region", "path_style", "profile"}

// Store returns the settings of a place: the defaults, then what is configured for its scheme, then what is for it
// alone.
func (c *Config) Store(scheme, place string) StoreSettings {
	d := Config{scratch: defaultStore()}
	for _, name := range []string{scheme, place} {
		i := slices.IndexFunc(c.Stores, func(s StoreConfig) bool { return s.Name == name })
		if i < 0 {
			continue
		}
		for _, a := range storeAttributes {
			if text, ok := c.Stores[i].values[a.name]; ok {
				_ = a.set(&d, text) // it was checked when it was set
			}
		}
	}
	return d.scratch
}

// storeKey makes the key stores.NAME.ATTRIBUTE; nil when it is none.
func storeKey(key string) *Key {
	rest, ok := strings.CutPrefix(key, storesKey+".")
	if !ok {
		return nil
	}
	i := strings.LastIndexByte(rest, '.')
	if i <= 0 || i > 4096 || checkPath(rest[:i]) != nil {
		return nil
	}
	name, attribute := rest[:i], rest[i+1:]
	scheme, _, _ := strings.Cut(name, "://")
	if !slices.Contains(StoreSchemes, scheme) && name != "NAME" { // which documents them all
		return nil
	}
	for _, a := range storeAttributes {
		if a.name != attribute || a.buckets && strings.HasPrefix(scheme, "http") ||
			scheme == "az" && slices.Contains(notAzure, a.name) {
			continue
		}
		return &Key{Name: key, Kind: a.kind, Doc: a.doc, Apply: Restart, See: "stores.md",
			path: []string{storesKey, name, attribute}, value: storeValue(name, scheme, a)}
	}
	return nil
}

func storeValue(name, scheme string, a storeAttribute) value {
	return value{
		set: func(c *Config, text string) error {
			d := Config{scratch: defaultStore()}
			if err := a.set(&d, text); err != nil {
				return err
			}
			s := StoreConfig{name, map[string]string{}}
			for _, o := range c.Stores {
				if o.Name == name {
					s.values = maps.Clone(o.values)
				}
			}
			s.values[a.name] = a.get(&d)
			c.Stores = slices.DeleteFunc(slices.Clone(c.Stores), func(o StoreConfig) bool { return o.Name == name })
			c.Stores = append(c.Stores, s)
			slices.SortFunc(c.Stores, func(a, b StoreConfig) int { return strings.Compare(a.Name, b.Name) })
			return nil
		},
		get: func(c *Config) string { return a.get(&Config{scratch: c.Store(scheme, name)}) },
	}
}

// KeysOfStore returns the keys of a kind of store or of a place.
func KeysOfStore(name string) []Key {
	var own []Key
	for _, a := range storeAttributes {
		if k := storeKey(storesKey + "." + name + "." + a.name); k != nil {
			own = append(own, *k)
		}
	}
	return own
}

// keysOfStores are the keys that are set.
func (c *Config) keysOfStores() (all []Key) {
	for _, s := range c.Stores {
		for _, k := range KeysOfStore(s.Name) {
			if _, ok := s.values[k.path[2]]; ok {
				all = append(all, k)
			}
		}
	}
	return all
}

// storeNames are keys near which an unknown one may be.
func storeNames(key string) (names []string) {
	name := ""
	if rest, ok := strings.CutPrefix(key, storesKey+"."); ok {
		if i := strings.LastIndexByte(rest, '.'); i > 0 {
			name = rest[:i]
		}
	}
	for _, s := range append(slices.Clip(StoreSchemes), name) {
		for _, k := range KeysOfStore(s) {
			names = append(names, k.Name)
		}
	}
	return names
}

func checkEndpoint(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("it is not an address like https://HOST:PORT")
	case u.User != nil:
		return errors.New("it holds credentials, which do not belong into a configuration (docs/stores.md)")
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "":
		return errors.New("it has a path; the bucket belongs into the URI of the dataset")
	}
	return nil
}

func checkWord(s string) error {
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '/' }) || len(s) > 256 {
		return errors.New("it is not one word")
	}
	return nil
}

// setStoreTimeout leaves out 0, which would never end.
func setStoreTimeout(c *Config, s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		return errors.New("it is not a duration like 30s or 5m")
	}
	if d < 100*time.Millisecond || d > time.Hour {
		return errors.New("it must be between 100ms and 1h")
	}
	c.scratch.Timeout = d
	return nil
}

// numberOf is a number from 0 to hi.
func numberOf(at func(*Config) *float64, hi float64) value {
	return value{
		set: func(c *Config, s string) error {
			v, err := strconv.ParseFloat(s, 64)
			if err != nil || !(v >= 0 && v <= hi) {
				return fmt.Errorf("it is not a number from 0 to %g", hi)
			}
			*at(c) = v
			return nil
		},
		get: func(c *Config) string { return strconv.FormatFloat(*at(c), 'f', -1, 64) },
	}
}
