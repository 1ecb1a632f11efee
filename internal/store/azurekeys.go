package store

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"larder/internal/errs"
)

// azureKeys are what the environment says of an account; each may be "".
type azureKeys struct{ account, key, signature, endpoint string }

// azureEnvironment reads a connection string, and without one the variables of the command az.
func azureEnvironment() azureKeys {
	text := os.Getenv("AZURE_STORAGE_CONNECTION_STRING")
	if text == "" {
		k := azureKeys{account: os.Getenv("AZURE_STORAGE_ACCOUNT"), key: os.Getenv("AZURE_STORAGE_KEY"),
			signature: os.Getenv("AZURE_STORAGE_SAS_TOKEN")}
		k.signature = strings.TrimPrefix(k.signature, "?")
		return k
	}
	parts := map[string]string{}
	for part := range strings.SplitSeq(text, ";") {
		name, value, _ := strings.Cut(part, "=")
		parts[strings.ToLower(strings.TrimSpace(name))] = strings.TrimSpace(value)
	}
	k := azureKeys{account: parts["accountname"], key: parts["accountkey"], endpoint: parts["blobendpoint"],
		signature: strings.TrimPrefix(parts["sharedaccesssignature"], "?")}
	if suffix := parts["endpointsuffix"]; k.endpoint == "" && k.account != "" && suffix != "" {
		k.endpoint = "https://" + k.account + ".blob." + suffix
		if strings.EqualFold(parts["defaultendpointsprotocol"], schemeHTTP) {
			k.endpoint = schemeHTTP + strings.TrimPrefix(k.endpoint, schemeHTTPS)
		}
	}
	return k
}

// azureAddress is the address of the account, which the settings or the environment say, and which of them did.
func azureAddress(s Settings) (text, from string) {
	k := azureEnvironment()
	switch {
	case s.Endpoint != "":
		return s.Endpoint, "stores.az.endpoint"
	case k.endpoint != "":
		return k.endpoint, "AZURE_STORAGE_CONNECTION_STRING"
	case k.account != "":
		return "https://" + k.account + ".blob.core.windows.net", "AZURE_STORAGE_ACCOUNT"
	}
	return "", ""
}

// azureClient makes the client of a container with the first credentials that there are: a connection string, a key, a
// signature, then those that Azure's own chain finds.
func azureClient(l Location, s Settings, o *container.ClientOptions) (*container.Client, error) {
	k := azureEnvironment()
	text, from := azureAddress(s)
	if text == "" {
		return nil, errs.New(errs.ConfigInvalid, l.name(), "set AZURE_STORAGE_ACCOUNT or AZURE_STORAGE_CONNECTION_STRING of "+
			"the daemon, or stores.az.endpoint: https://ACCOUNT.blob.core.windows.net",
			"%s: nothing says which account of Azure has the container", l.name())
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != schemeHTTP && u.Scheme != schemeHTTPS || u.User != nil ||
		u.RawQuery != "" {
		return nil, errs.New(errs.ConfigInvalid, l.name(), "write it as https://ACCOUNT.blob.core.windows.net, without a "+
			"container or a signature", "the endpoint of %s (%s) is no address of a server", l.name(), from)
	}
	if err := checkPlain(l.name(), u, s); err != nil {
		return nil, err
	}
	c, err := k.client(u.JoinPath(l.Place), s, o)
	if err != nil {
		return nil, errs.New(errs.ConfigInvalid, l.name(), azureHint, "%s: the credentials cannot be used", l.name())
	}
	return c, nil
}

func (k azureKeys) client(u *url.URL, s Settings, o *container.ClientOptions) (*container.Client, error) {
	switch {
	case s.Anonymous:
		return container.NewClientWithNoCredential(u.String(), o)
	case k.key != "":
		if k.account == "" {
			k.account, _, _ = strings.Cut(u.Hostname(), ".")
		}
		shared, err := container.NewSharedKeyCredential(k.account, k.key)
		if err != nil {
			return nil, err
		}
		return container.NewClientWithSharedKeyCredential(u.String(), shared, o)
	case k.signature != "":
		u.RawQuery = k.signature
		return container.NewClientWithNoCredential(u.String(), o)
	}
	chain, err := azureChain(s)
	if err != nil {
		return nil, err
	}
	return container.NewClient(u.String(), &tokens{chain}, o)
}

// azureChain is Azure's own: a service principal of the environment, a workload identity, the managed identity of the
// machine, and who is logged in with az or azd.
func azureChain(s Settings) (azcore.TokenCredential, error) {
	if s.IMDS {
		return azidentity.NewDefaultAzureCredential(nil)
	}
	var all []azcore.TokenCredential
	if c, err := azidentity.NewEnvironmentCredential(nil); err == nil {
		all = append(all, c)
	}
	if c, err := azidentity.NewWorkloadIdentityCredential(nil); err == nil {
		all = append(all, c)
	}
	c, err := azidentity.NewAzureCLICredential(nil)
	if err != nil {
		return nil, err
	}
	return azidentity.NewChainedTokenCredential(append(all, c), nil)
}

// tokens says in larder's words that no token was given: what a chain says holds answers of servers.
type tokens struct{ chain azcore.TokenCredential }

// GetToken implements azcore.TokenCredential.
func (t *tokens) GetToken(ctx context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	token, err := t.chain.GetToken(ctx, o)
	if err == nil {
		return token, nil
	}
	if ctx.Err() != nil {
		return token, ctx.Err()
	}
	f := &failure{kind: final, what: "no credentials found (looked at AZURE_STORAGE_CONNECTION_STRING, " +
		"AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID, the identity of this machine, az login)",
		hint: "set one of them for the daemon; for a public container stores.az.anonymous: true"}
	if failed, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok {
		f.what = "Azure gives no token for the credentials that were found"
		if failed.RawResponse != nil && failed.RawResponse.StatusCode >= 500 {
			f.kind = passing
		}
		f.hint = "check AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, or log in again (az login)"
	}
	return token, f
}
