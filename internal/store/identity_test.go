package store

import (
	"strings"
	"testing"
)

// Containers of one name in two accounts are two places; so are the emulator's accounts, which are folders.
func TestIdentityOfAzureHasTheAccount(t *testing.T) {
	for _, name := range []string{"AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_CONNECTION_STRING",
		"AZURE_STORAGE_SAS_TOKEN"} {
		t.Setenv(name, "")
	}
	seen := map[string]string{}
	add := func(what string, set Settings) {
		s := New(Config{Settings: func(string, string) Settings { return set }})
		name := s.Identity("az://box/train")
		if before, ok := seen[name]; ok {
			t.Errorf("%s and %s are both %q", before, what, name)
		}
		if strings.Contains(name, "geheim") {
			t.Errorf("%s shows a secret", name)
		}
		seen[name] = what
	}
	add("no account", Default())
	for _, account := range []string{"one", "two"} {
		t.Setenv("AZURE_STORAGE_ACCOUNT", account)
		add(account, Default())
	}
	t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=three;AccountKey=geheim;EndpointSuffix=example.org")
	add("a connection string", Default())
	for _, path := range []string{"dev1", "dev2"} {
		set := Default()
		set.Endpoint = "http://127.0.0.1:10000/" + path
		add(path, set)
	}
}

// A query that signs a request is a secret, whatever the scheme; a key with a question mark is not one.
func TestRedactHidesSignatures(t *testing.T) {
	for uri, want := range map[string]string{
		"s3://data/a.tar?X-Amz-Credential=me&X-Amz-Signature=geheim":   "s3://data/a.tar?***",
		"s3://data/a.tar?versionId=1&x-amz-signature=geheim":           "s3://data/a.tar?***",
		"s3://data/a.tar?AWSAccessKeyId=me&Signature=geheim&Expires=1": "s3://data/a.tar?***",
		"gs://data/a.tar?X-Goog-Signature=geheim":                      "gs://data/a.tar?***",
		"az://data/a.tar?sv=2020&sp=r&sig=geheim":                      "az://data/a.tar?***",
		"s3://data/why?.jpg":  "s3://data/why?.jpg",
		"s3://data/a?b=c.jpg": "s3://data/a?b=c.jpg",
	} {
		if got := Redact(uri); got != want {
			t.Errorf("%s is shown as %s", uri, got)
		}
	}
}
