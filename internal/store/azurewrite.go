package store

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
)

func etagText(e *azcore.ETag) string {
	if e == nil {
		return ""
	}
	return strings.Trim(string(*e), `"`)
}

func (a *azure) put(ctx context.Context, key string, p *piece, fresh bool) (string, error) {
	o := &blockblob.UploadOptions{TransactionalValidation: blob.TransferValidationTypeMD5(p.md5[:])}
	if fresh {
		none := azcore.ETagAny
		o.AccessConditions = &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{
			IfNoneMatch: &none}}
	}
	res, err := a.client.NewBlockBlobClient(key).Upload(ctx, p.reader(), o)
	if err != nil {
		return "", azureWriteFailure(err)
	}
	return etagText(res.ETag), nil
}

// begin implements writing. Azure knows no uploads: pieces wait under the name of their object, by number.
func (a *azure) begin(context.Context, string) (string, error) { return "", nil }

func (a *azure) part(ctx context.Context, u upload, n int, p *piece) (string, error) {
	name := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%08d", n))
	_, err := a.client.NewBlockBlobClient(u.key).StageBlock(ctx, name, p.reader(), &blockblob.StageBlockOptions{
		TransactionalValidation: blob.TransferValidationTypeMD5(p.md5[:])})
	if err != nil {
		return "", azureWriteFailure(err)
	}
	return name, nil
}

func (a *azure) commit(ctx context.Context, u upload, names []string) (string, error) {
	res, err := a.client.NewBlockBlobClient(u.key).CommitBlockList(ctx, names, nil)
	if err != nil {
		return "", azureWriteFailure(err)
	}
	return etagText(res.ETag), nil
}

func (a *azure) landed([]string) string { return "" }

// abort implements writing: Azure forgets pieces that nobody commits within a week.
func (a *azure) abort(context.Context, upload) error { return nil }

func (a *azure) unfinished(context.Context, string) ([]upload, error) { return nil, nil }

func (a *azure) remove(ctx context.Context, key string) error {
	if _, err := a.client.NewBlobClient(key).Delete(ctx, nil); err != nil {
		return azureWriteFailure(err)
	}
	return nil
}

// azureWriteFailure is azureFailure for requests that write.
func azureWriteFailure(err error) error {
	if res, ok := errors.AsType[*azcore.ResponseError](err); ok {
		switch res.ErrorCode {
		case "AuthorizationPermissionMismatch":
			return &failure{kind: final, what: "access is denied (AuthorizationPermissionMismatch)", hint: "to write, the " +
				"credentials need the role Storage Blob Data Contributor, or a signature with read, write, create, delete and list"}
		case "BlobAlreadyExists":
			return &failure{kind: altered, what: "an object of that name is there"}
		case "Md5Mismatch":
			return &failure{kind: passing, what: "the bytes changed on their way"}
		case "InvalidBlockList", "InvalidBlobOrBlock":
			return &failure{kind: missing, what: "the server does not know the pieces any more"}
		}
	}
	return azureFailure(err)
}
