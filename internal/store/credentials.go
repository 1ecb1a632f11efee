package store

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"gopkg.in/ini.v1"
)

// errNoCredentials says where they were looked for.
type errNoCredentials struct {
	looked []string
	cause  error // of the last place that had some, but not what is needed
}

func (e *errNoCredentials) Error() string {
	s := "no credentials found (looked at " + strings.Join(e.looked, ", ") + ")"
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// chain asks providers in turn. It implements credentials.Provider; unlike the library's own it does not sign as
// nobody when it finds nothing.
type chain struct {
	places []place

	mu   sync.Mutex
	curr credentials.Provider
}

type place struct {
	name string
	credentials.Provider
}

const (
	// metadataWait bounds the question to a metadata service, which is not there on most machines.
	metadataWait = 2 * time.Second
	// stsWait bounds the exchange of a token.
	stsWait = 20 * time.Second
)

// awsChain is where the tools of AWS look: the environment, the files of ~/.aws, a web identity, the container, the
// machine. A profile that is configured is the only place.
func awsChain(s Settings) *chain {
	if s.Profile != "" {
		return &chain{places: []place{fileCredentials(s.Profile)}}
	}
	c := &chain{places: []place{
		{"AWS_ACCESS_KEY_ID", &credentials.EnvAWS{}},
		fileCredentials(""),
	}}
	machine := true
	for _, v := range []string{"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		if os.Getenv(v) != "" {
			machine = false
			c.places = append(c.places, place{v, &credentials.IAM{Client: &http.Client{Timeout: stsWait},
				Endpoint: os.Getenv("AWS_ENDPOINT_URL_STS")}})
			break
		}
	}
	if machine && s.IMDS && !strings.EqualFold(os.Getenv("AWS_EC2_METADATA_DISABLED"), "true") {
		direct := &http.Transport{Proxy: nil}
		c.places = append(c.places, place{"the machine's metadata service",
			&credentials.IAM{Client: &http.Client{Timeout: metadataWait, Transport: direct},
				Endpoint: os.Getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT")}})
	}
	return c
}

// gsChain is for Google's store through its S3 interface, which takes HMAC keys. The credentials of AWS are not sent
// there.
func gsChain(s Settings) *chain {
	if s.Profile != "" {
		return &chain{places: []place{fileCredentials(s.Profile)}}
	}
	return &chain{places: []place{{"GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY", envGS{}}}}
}

func fileCredentials(profile string) place {
	shown := profile
	if shown == "" {
		if shown = os.Getenv("AWS_PROFILE"); shown == "" {
			shown = "default"
		}
	}
	return place{"profile " + shown + " of ~/.aws", &credentials.FileAWSCredentials{Profile: profile}}
}

// envGS are HMAC keys in the environment, under the names that gsutil has for them.
type envGS struct{}

func (envGS) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return credentials.Value{AccessKeyID: os.Getenv("GS_ACCESS_KEY_ID"),
		SecretAccessKey: os.Getenv("GS_SECRET_ACCESS_KEY"), SignerType: credentials.SignatureV4}, nil
}

func (e envGS) Retrieve() (credentials.Value, error) { return e.RetrieveWithCredContext(nil) }

func (envGS) IsExpired() bool { return false }

// RetrieveWithCredContext implements credentials.Provider.
func (c *chain) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	missing := &errNoCredentials{}
	for _, p := range c.places {
		v, err := p.RetrieveWithCredContext(cc)
		if err == nil && v.AccessKeyID != "" && v.SecretAccessKey != "" {
			c.mu.Lock()
			c.curr = p.Provider
			c.mu.Unlock()
			return v, nil
		}
		missing.looked = append(missing.looked, p.name)
		if err != nil && tellsMore(err) {
			missing.cause = plain(err)
		}
	}
	return credentials.Value{}, missing
}

// tellsMore reports whether an error of a provider is about credentials that are there, or should be.
func tellsMore(err error) bool {
	return !errors.Is(err, os.ErrNotExist) && !errors.Is(err, context.DeadlineExceeded) &&
		!strings.Contains(err.Error(), "does not exist") && !strings.Contains(err.Error(), "169.254.169.254") &&
		!strings.Contains(err.Error(), "not found in")
}

// Retrieve implements credentials.Provider.
func (c *chain) Retrieve() (credentials.Value, error) { return c.RetrieveWithCredContext(nil) }

// IsExpired implements credentials.Provider.
func (c *chain) IsExpired() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.curr == nil || c.curr.IsExpired()
}

// profileValue is a value of a profile in ~/.aws/config, "" where there is none.
func profileValue(profile, key string) string {
	if profile == "" {
		profile = os.Getenv("AWS_PROFILE")
	}
	file := os.Getenv("AWS_CONFIG_FILE")
	if file == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		file = filepath.Join(home, ".aws", "config")
	}
	f, err := ini.LooseLoad(file)
	if err != nil {
		return ""
	}
	section := "default"
	if profile != "" && profile != section {
		section = "profile " + profile
	}
	s, err := f.GetSection(section)
	if err != nil {
		return ""
	}
	return s.Key(key).String()
}
