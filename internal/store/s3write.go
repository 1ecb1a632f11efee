package store

import (
	"context"
	"crypto/md5" //nolint:gosec // that is what ETags are
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/minio/minio-go/v7"
)

// putOptions: the sum of the whole body is in the signature, so that no server needs to know bodies signed in chunks.
func putOptions() minio.PutObjectOptions {
	return minio.PutObjectOptions{ContentType: "application/octet-stream", DisableContentSha256: true}
}

func (b *bucket) put(ctx context.Context, key string, p *piece, fresh bool) (string, error) {
	o := putOptions()
	if fresh {
		o.SetMatchETagExcept("*")
	}
	in, err := b.core.PutObject(ctx, b.bucket, key, p.reader(), p.size, p.md5Base64(), p.sha256Hex(), o)
	if err != nil {
		return "", b.writeFailure(err)
	}
	return strings.Trim(in.ETag, `"`), nil
}

func (b *bucket) begin(ctx context.Context, key string) (string, error) {
	id, err := b.core.NewMultipartUpload(ctx, b.bucket, key, putOptions())
	if err != nil {
		return "", b.writeFailure(err)
	}
	return id, nil
}

func (b *bucket) part(ctx context.Context, u upload, n int, p *piece) (string, error) {
	got, err := b.core.PutObjectPart(ctx, b.bucket, u.key, u.id, n, p.reader(), p.size, minio.PutObjectPartOptions{
		Md5Base64: p.md5Base64(), Sha256Hex: p.sha256Hex(), DisableContentSha256: true})
	if err != nil {
		return "", b.writeFailure(err)
	}
	return got.ETag, nil
}

func (b *bucket) commit(ctx context.Context, u upload, names []string) (string, error) {
	parts := make([]minio.CompletePart, len(names))
	for i, n := range names {
		parts[i] = minio.CompletePart{PartNumber: i + 1, ETag: n}
	}
	in, err := b.core.CompleteMultipartUpload(ctx, b.bucket, u.key, u.id, parts, minio.PutObjectOptions{})
	if err != nil {
		return "", b.writeFailure(err)
	}
	return strings.Trim(in.ETag, `"`), nil
}

// landed is how S3 makes the ETag of an object in parts of theirs.
func (b *bucket) landed(names []string) string {
	h := md5.New() //nolint:gosec // as above
	for _, n := range names {
		raw, err := hex.DecodeString(n)
		if err != nil || len(raw) != md5.Size {
			return ""
		}
		_, _ = h.Write(raw) // a hash never fails
	}
	return fmt.Sprintf("%x-%d", h.Sum(nil), len(names))
}

func (b *bucket) abort(ctx context.Context, u upload) error {
	if err := b.core.AbortMultipartUpload(ctx, b.bucket, u.key, u.id); err != nil {
		return b.writeFailure(err)
	}
	return nil
}

func (b *bucket) unfinished(ctx context.Context, prefix string) (out []upload, err error) {
	key, id := "", ""
	for {
		page, err := b.core.ListMultipartUploads(ctx, b.bucket, prefix, key, id, "", pageSize)
		if err != nil {
			err = b.writeFailure(err)
			if failureOf(err).kind == missing { // some servers say so of a bucket that never had one
				return out, nil
			}
			return nil, err
		}
		for _, u := range page.Uploads {
			if strings.HasPrefix(u.Key, prefix) {
				out = append(out, upload{u.Key, u.UploadID})
			}
		}
		if !page.IsTruncated || page.NextKeyMarker == key && page.NextUploadIDMarker == id {
			return out, nil
		}
		key, id = page.NextKeyMarker, page.NextUploadIDMarker
	}
}

func (b *bucket) remove(ctx context.Context, key string) error {
	if err := b.core.RemoveObject(ctx, b.bucket, key, minio.RemoveObjectOptions{}); err != nil {
		return b.writeFailure(err)
	}
	return nil
}

// writeCodes are the answers that mean something else, or come only, where objects are written.
var writeCodes = map[string]failure{
	"AccessDenied": {kind: final, what: "access is denied", hint: "to write, the credentials need s3:PutObject, " +
		"s3:GetObject, s3:DeleteObject, s3:AbortMultipartUpload, s3:ListBucket and s3:ListBucketMultipartUploads"},
	"NoSuchUpload":  {kind: missing, what: "the server does not know the upload any more"},
	"BadDigest":     {kind: passing, what: "the bytes changed on their way"},
	"QuotaExceeded": {kind: final, what: "the store is full", hint: "free some room in the bucket"},
	"InvalidRequest": {kind: final, what: "the server does not take the request",
		hint: "check what the bucket asks of writers: encryption, locks of objects"},
}

// sameWriteCodes are other names for them.
var sameWriteCodes = map[string]string{
	"XAmzContentSHA256Mismatch": "BadDigest", "IncompleteBody": "BadDigest", "XMinioStorageFull": "QuotaExceeded",
	"XMinioAdminBucketQuotaExceeded": "QuotaExceeded", "AllAccessDisabled": "AccessDenied",
}

// writeFailure is failure for requests that write.
func (b *bucket) writeFailure(err error) error {
	if res, ok := errors.AsType[minio.ErrorResponse](err); ok {
		code := res.Code
		if same := sameWriteCodes[code]; same != "" {
			code = same
		}
		if f, ok := writeCodes[code]; ok {
			if f.kind == final {
				f.what += " (" + codeWord(res.Code) + ")"
			}
			return &f
		}
	}
	return b.failure(err)
}
