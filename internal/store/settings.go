package store

import (
	"time"

	"larder/internal/errs"
)

// Settings say how to reach one place and what to spend on it. Default is where to begin. internal/config has the same
// fields in the same order.
type Settings struct {
	// Endpoint is the address of the server of s3://, gs:// and az://, such as http://127.0.0.1:9000; "" =
	// AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or AWS itself for s3, Google's for gs, what the environment says for az.
	Endpoint string
	Region   string // "" = what AWS says of the bucket; else AWS_REGION, AWS_DEFAULT_REGION, the profile's, us-east-1
	// PathStyle puts the bucket into the path instead of the name of the host: true | false | auto = where the endpoint is
	// not AWS's.
	PathStyle string
	Anonymous bool   // requests are not signed, and no credentials are looked for
	Profile   string // of ~/.aws, alone; "" = the environment, then AWS_PROFILE or default
	IMDS      bool   // ask the machine's metadata service for credentials, last
	Insecure  bool   // http:// to other machines

	Parallel int           // requests under way at once
	Timeout  time.Duration // without an answer, or without another byte of it, a request has failed
	RetryFor time.Duration // how long a read is tried again before its failure is reported; 0 = never
	Hedge    float64       // second requests beside slow ones, as a part of all requests; 0 = none

	PriceGet, PriceList float64 // of 1,000 requests; lists and writes are dearer
	PriceGiB            float64 // of 2^30 bytes received
}

// Default is the settings of a place about which nothing is configured.
func Default() Settings {
	return Settings{PathStyle: auto, IMDS: true, Parallel: 64, Timeout: 20 * time.Second, RetryFor: time.Minute,
		Hedge: 0.05}
}

// auto is decided by what is known of the place.
const auto = "auto"

func (s Settings) check(name string) error {
	bad := ""
	switch {
	case s.Parallel < 1:
		bad = "parallel must be at least 1"
	case s.Timeout <= 0:
		bad = "timeout must be above 0"
	case s.RetryFor < 0:
		bad = "retry_for must not be negative"
	case !(s.Hedge >= 0 && s.Hedge <= 1):
		bad = "hedge must be from 0 to 1"
	case s.PathStyle != auto && s.PathStyle != "true" && s.PathStyle != "false":
		bad = "path_style must be auto, true or false"
	}
	if bad == "" {
		return nil
	}
	return errs.New(errs.ConfigInvalid, name, "see docs/configuration.md", "the settings of %s: %s", name, bad)
}
