package store

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestS3CredentialsFrom(t *testing.T) {
	srv := newS3(t)
	srv.put(t, "k", content(10))
	t.Run("environment before files", func(t *testing.T) {
		withKeys(t)
		writeTo(t, "AWS_SHARED_CREDENTIALS_FILE", credentialsFile)
		if got := signedBy(t, srv, quickly(srv.URL)); got != testKey {
			t.Errorf("signed by %q", got)
		}
		set := quickly(srv.URL)
		set.Profile = "other" // configured: alone
		if got := signedBy(t, srv, set); got != "OFOTHER+TOKEN" {
			t.Errorf("signed by %q", got)
		}
	})
	t.Run("files", func(t *testing.T) {
		noKeys(t)
		writeTo(t, "AWS_SHARED_CREDENTIALS_FILE", credentialsFile)
		if got := signedBy(t, srv, quickly(srv.URL)); got != "OFDEFAULT" {
			t.Errorf("signed by %q", got)
		}
		t.Setenv("AWS_PROFILE", "other")
		if got := signedBy(t, srv, quickly(srv.URL)); got != "OFOTHER+TOKEN" {
			t.Errorf("signed by %q", got)
		}
	})
	t.Run("endpoint and region of the profile and the environment", func(t *testing.T) {
		withKeys(t)
		writeTo(t, "AWS_CONFIG_FILE", "[default]\nregion = eu-south-7\nendpoint_url = "+srv.URL+"\n")
		set := quickly("")
		set.Region = ""
		_ = signedBy(t, srv, set)
		if got := srv.requests()[0].Header.Get("Authorization"); !strings.Contains(got, "/eu-south-7/s3/") {
			t.Errorf("signed as %q", got)
		}
		writeTo(t, "AWS_CONFIG_FILE", "")
		t.Setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
		t.Setenv("AWS_ENDPOINT_URL_S3", srv.URL)
		_ = signedBy(t, srv, set)
	})
	t.Run("anonymous", func(t *testing.T) {
		withKeys(t)
		set := quickly(srv.URL)
		set.Anonymous = true
		if got := signedBy(t, srv, set); got != "" {
			t.Errorf("signed by %q", got)
		}
	})
	credentialsThatFail(t, srv)
}

// credentialsThatFail tries no credentials, and ones that expire.
func credentialsThatFail(t *testing.T, srv *s3Server) {
	t.Helper()
	t.Run("none", func(t *testing.T) {
		noKeys(t)
		s, _ := openS3(t, quickly(srv.URL))
		srv.faulty(nil)
		_, err := s.Stat(t.Context(), "k")
		if m := saysAll(fmt.Sprint(err), "no credentials found", "AWS_ACCESS_KEY_ID", "profile default of ~/.aws",
			"anonymous: true"); m != nil {
			t.Errorf("%v does not say %q", err, m)
		}
		if n := len(srv.requests()); n != 0 {
			t.Errorf("%d requests without credentials", n)
		}
	})
	t.Run("files are read again when they have expired", func(t *testing.T) {
		noKeys(t)
		writeTo(t, "AWS_SHARED_CREDENTIALS_FILE", credentialsFile)
		s, _ := openS3(t, quickly(srv.URL))
		srv.faulty(func(_ int, w http.ResponseWriter, r *http.Request, next http.Handler) {
			if strings.Contains(r.Header.Get("Authorization"), "OFDEFAULT") {
				xmlError(w, 400, "ExpiredToken")
				return
			}
			next.ServeHTTP(w, r)
		})
		writeTo(t, "AWS_SHARED_CREDENTIALS_FILE", strings.Replace(credentialsFile, "OFDEFAULT", "OFDEFAULS", 1))
		if _, err := s.Stat(t.Context(), "k"); err != nil {
			t.Error(err)
		}
	})
}

// credentialsFile is one of AWS's command line.
const credentialsFile = "[default]\naws_access_key_id = OFDEFAULT\naws_secret_access_key = x\n" +
	"[other]\naws_access_key_id = OFOTHER\naws_secret_access_key = x\naws_session_token = +TOKEN\n"

// signedBy is who signs a request, and the token that comes with it.
func signedBy(t *testing.T, srv *s3Server, set Settings) string {
	t.Helper()
	s, _ := openS3(t, set)
	srv.faulty(nil)
	if _, err := s.Stat(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	got := srv.requests()[0].Header
	id, _, _ := strings.Cut(strings.TrimPrefix(got.Get("Authorization"), "AWS4-HMAC-SHA256 Credential="), "/")
	return id + got.Get("X-Amz-Security-Token")
}

// writeTo writes the file that a variable names.
func writeTo(t *testing.T, variable, text string) {
	t.Helper()
	if err := os.WriteFile(os.Getenv(variable), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The metadata service of a machine is asked last, and not where that is switched off.
func TestS3MetadataService(t *testing.T) {
	noKeys(t)
	srv := newS3(t)
	srv.put(t, "k", content(10))
	var asked atomic.Int64
	imds := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch r.URL.Path {
		case "/latest/api/token":
			fmt.Fprint(w, "token")
		case "/latest/meta-data/iam/security-credentials/":
			fmt.Fprint(w, "reader")
		case "/latest/meta-data/iam/security-credentials/reader":
			fmt.Fprintf(w, `{"Code":"Success","AccessKeyId":"OFMACHINE","SecretAccessKey":"x","Token":"t","Expiration":%q}`,
				time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		default:
			http.NotFound(w, r)
		}
	}))
	defer imds.Close()
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", imds.URL)
	off, _ := openS3(t, quickly(srv.URL))
	if _, err := off.Stat(t.Context(), "k"); err == nil || asked.Load() > 0 {
		t.Errorf("%v after %d questions, with imds: false", err, asked.Load())
	}
	s, _ := openS3(t, quickly(srv.URL).with(func(s *Settings) { s.IMDS = true }))
	srv.faulty(nil)
	if _, err := s.Stat(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if got := srv.requests()[0].Header.Get("Authorization"); !strings.Contains(got, "Credential=OFMACHINE/") {
		t.Errorf("signed as %q", got)
	}
}

// gs:// is signed with Google's HMAC keys, and never with those of AWS.
func TestGoogleHasItsOwnCredentials(t *testing.T) {
	withKeys(t)
	srv := newS3(t)
	srv.put(t, "k", content(10))
	open := func() Store {
		all := New(Config{Settings: func(string, string) Settings { return quickly(srv.URL) }})
		t.Cleanup(all.Close)
		s, _, err := all.Open(t.Context(), "gs://data/k")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	srv.faulty(nil)
	_, err := open().Stat(t.Context(), "k")
	sent := len(srv.requests())
	if m := saysAll(fmt.Sprint(err), "GS_ACCESS_KEY_ID", "stores.gs.anonymous: true"); m != nil || sent > 0 {
		t.Errorf("%v does not say %q, after %d requests", err, m, sent)
	}
	t.Setenv("GS_ACCESS_KEY_ID", "GOOGID")
	t.Setenv("GS_SECRET_ACCESS_KEY", "x")
	s := open()
	in, err := s.Stat(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := readAll(t.Context(), s, in); err != nil || !bytes.Equal(got, content(10)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	for _, r := range srv.requests() {
		if got := r.Header.Get("Authorization"); !strings.Contains(got, "Credential=GOOGID/") {
			t.Errorf("signed as %q", got)
		}
	}
	u, err := endpoint(Location{Scheme: "gs", Place: "data"}, Default())
	if err != nil || u.String() != "https://storage.googleapis.com" {
		t.Errorf("Google's address: %v, %v", u, err)
	}
}

// A token file of Kubernetes is exchanged for credentials.
func TestS3WebIdentity(t *testing.T) {
	noKeys(t)
	srv := newS3(t)
	srv.put(t, "k", content(10))
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil || r.Form.Get("WebIdentityToken") != "the token" ||
			r.Form.Get("RoleArn") != "arn:aws:iam::1:role/reader" {
			http.Error(w, "", 400)
			return
		}
		fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>OFROLE</AccessKeyId><SecretAccessKey>x</SecretAccessKey>
<SessionToken>t</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	defer sts.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("the token"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token)
	t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/reader")
	t.Setenv("AWS_ENDPOINT_URL_STS", sts.URL)
	s, _ := openS3(t, quickly(srv.URL))
	srv.faulty(nil)
	if _, err := s.Stat(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if got := srv.requests()[0].Header.Get("Authorization"); !strings.Contains(got, "Credential=OFROLE/") {
		t.Errorf("signed as %q", got)
	}
}
